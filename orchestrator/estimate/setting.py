"""What an estimate is asked about: one rank's work on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer, Quant
from orchestrator.estimate.stacks import DEFAULT, STACKS, Stack
from orchestrator.estimate.streamed_share import StreamedShare
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.model import ModelShape

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_PACKED_STORAGE_BYTES = 2
FOUR_BIT = (Quant.nf4, Quant.fp4)
MODULES_OF_A_LAYER = 7  # adapted linear modules of the layer that `bench` times


def storage_bytes(quant: Quant, compute_dtype: str) -> int:
    """Bytes of one element as ZeRO-3 stores it: packed 4-bit bytes travel as a 16-bit type, whatever computes."""
    return _PACKED_STORAGE_BYTES if quant in FOUR_BIT else DTYPE_BYTES[compute_dtype]


class Trained(Enum):
    """What the optimizer updates."""

    adapters = "adapters"
    everything = "everything"


class Stage(Enum):
    """How an engine other than our own two shards a model."""

    zero2 = "zero2"  # DeepSpeed: gradients and optimizer states
    zero3 = "zero3"  # DeepSpeed, with the knobs that transformers derives
    fsdp = "fsdp"  # torch FSDP 1: flat parameters of one layer
    fsdp2 = "fsdp2"  # torch fully_shard: each parameter of a layer
    streamed = "streamed"  # frozen bytes of the layers as shards, adapters under DDP


class Gradients(Enum):
    """What a rank holds of gradients under FSDP while micro-steps add up.

    `no_sync()` leaves them unsharded: accelerate and Fabric call it for every micro-step but the last.
    """

    sharded = "sharded"  # every micro-step reduces and scatters them
    trained = "trained"  # unsharded, of what trains: frozen parameters are wrapped apart from it
    flat = "flat"  # unsharded, of flat parameters that mix adapters with frozen weights, so of these too


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """An engine that `Setting.engine` cannot tell: of published runs, and the streamed one.

    Attributes:
        stage: what is sharded.
        offload_params: parameters wait in host memory between uses.
        offload_optimizer: master copies and moments live in host memory.
        gradients: how FSDP adds up several micro-steps.
    """

    stage: Stage
    offload_params: bool = False
    offload_optimizer: bool = False
    gradients: Gradients = Gradients.trained

    @property
    def is_fsdp(self) -> bool:
        """Whether torch shards it."""
        return self.stage in (Stage.fsdp, Stage.fsdp2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """What `trainmaster bench` found for a rank like this one; None, or empty, where it measured nothing.

    Attributes:
        products: FLOP/s of linear modules in the precision of the passes, by width of the model, narrowest first.
        memory_bytes_per_second: that a copy reads and writes.
        elementwise_bytes_per_second: of a CPU rank in what of a layer is no product, as the estimate counts it.
        unpacked: weights per second from NF4 to the compute dtype, by width of the model.
        context_bytes: of a CUDA process, outside the allocator.
        layer_pass_seconds: of the host, for one layer of seven adapted modules, forward or backward.
        days: section of the calibration, and the day it was measured.
    """

    products: tuple[tuple[int, float], ...] = ()
    memory_bytes_per_second: float | None = None
    elementwise_bytes_per_second: float | None = None
    unpacked: tuple[tuple[int, float], ...] = ()
    context_bytes: float | None = None
    layer_pass_seconds: float | None = None
    days: tuple[tuple[str, str], ...] = ()

    def products_at(self, width: int) -> float | None:
        """FLOP/s at a width of the model."""
        return _at(self.products, width)

    def unpacked_at(self, width: int) -> float | None:
        """Weights per second at a width of the model."""
        return _at(self.unpacked, width)


def _at(points: tuple[tuple[int, float], ...], width: int) -> float | None:
    """Between the two nearest on a scale of logarithms; beyond the outermost ones as they are."""
    if not points:
        return None
    below = max((point for point in points if point[0] <= width), default=points[0])
    above = min((point for point in points if point[0] >= width), default=points[-1])
    if above[0] <= below[0]:
        return below[1]
    return below[1] + math.log(width / below[0]) / math.log(above[0] / below[0]) * (above[1] - below[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStack:
    """What `trainmaster bench` counted of one of our own stacks in the installed libraries; None where it did not.

    Attributes:
        logit_bytes: of a logit: of whole ones, or of a tile of the fused head in 16 bits.
        layer_factor: bytes of one running layer, times what is counted for it.
        day: when.
    """

    logit_bytes: float | None
    layer_factor: float | None
    day: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device of a rank, and its way to the others.

    Attributes:
        is_gpu: False for a rank that computes on CPU cores; device memory is then host memory.
        memory_bytes: of the device.
        flops_per_second: peak of the chosen precision for this rank (all its threads on a CPU).
        memory_bytes_per_second: peak of the device's memory for this rank.
        cores: of a CPU rank, below 1 when ranks share cores; 1 on a GPU.
        link_bytes_per_second: all-reduce rate per rank over the slowest link it needs.
        gather_bytes_per_second: the same for all-gathers.
        link_alpha_seconds: latency of a collective (of an all-reduce, for each rank it passes).
        gather_alpha_seconds: latency of one gather or reduce-scatter over all ranks; None for `link_alpha_seconds`.
        h2d_bytes_per_second: pinned host memory to device.
        known: the peaks come from a table, not from a fall-back.
        device_name: as the driver tells it; what large products reach is looked up by it. Empty when unknown.
        measured: what stands in for the tables; None where nothing was measured.
    """

    is_gpu: bool
    memory_bytes: int
    flops_per_second: float
    memory_bytes_per_second: float
    cores: float
    link_bytes_per_second: float
    gather_bytes_per_second: float
    link_alpha_seconds: float
    h2d_bytes_per_second: float
    known: bool
    device_name: str = ""
    gather_alpha_seconds: float | None = None
    measured: MeasuredRates | None = None

    def source(self, section: str) -> str:
        """Where the rates of a section of the calibration come from: a day, or the table."""
        days = dict(self.measured.days) if self.measured else {}
        return f"measured {days[section]}" if section in days else "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero3Knobs:
    """DeepSpeed ZeRO-3 settings. Bucket and window sizes count ELEMENTS of the stored dtype, not bytes."""

    offload_param: Offload
    offload_optimizer: Offload
    nvme_path: str
    param_persistence_threshold: int
    prefetch_bucket_size: int
    max_live_parameters: int
    max_reuse_distance: int
    reduce_bucket_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """Gradients of which only the largest elements travel, the rest waiting for later steps; for one rank and step.

    Attributes:
        wire_seconds: of all packets on the links.
        codec_seconds: of the device: finding, packing, unpacking and summing.
        sent_bytes: by the rank.
        residual_bytes: of what was not sent yet.
        count_bytes: of the steps since each element was sent, which AdamW's moments need.
        buffer_bytes: of packets and sums at work.
    """

    wire_seconds: float
    codec_seconds: float
    sent_bytes: int
    residual_bytes: int
    count_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Answers that evaluations make on a rank at a time.

    `rows` None: as many as a training pass has. `prompt_tokens` of the longest question, `new_tokens` of an answer.
    """

    rows: int | None
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that memory and time depend on, for one rank.

    `micro` is rows per forward pass, `rows` per optimizer step. Dtypes are `fp32`, `bf16` or `fp16`.
    `stack` names whose kernels are assumed: `trl` (fused head), `hf_plain` (full logits) or one of
    `stacks.STACKS`. The fields after it describe published runs; our own engines leave them as they are:

    Attributes:
        trained: adapters, or every parameter.
        trained_tables: embedding and head train too, as 16-bit copies beside the frozen ones (`modules_to_save`).
        sharding: another engine than our own.
        offload_activations: layer inputs wait in pinned host memory for the backward pass.
        paged_optimizer: moments live in unified memory, outside the allocator; None for what `optimizer` says.
        moment_bytes: bytes of each of the two moments per parameter; 0 for what `optimizer` says.
        step_in_backward: each gradient is used and freed as soon as it exists.
        step_copies: fp32 tensors as large as the parameter being updated that the optimizer makes, one after the other.
        autocast: the compute dtype comes from autocast, so losses are computed in fp32.
        upcasts: PEFT's preparation for k-bit training has put norms, tables and hidden states into fp32.
        loads_whole: every rank holds the whole base on its device before it is sharded.
        logit_chunks: the loss takes the rows in so many parts, one after the other; 0 for a fused head.
        calibrated: constants fitted for this run's stack, in place of the table's.
        counted: what `bench` counted of it, in place of either.
        flash_attention: FlashAttention 2 runs, which needs no mask and skips what a window hides.
        sparse: gradients of ddp travel so; None for dense ones.
        streamed: this rank's part of the layers when `engine` is streamed.
        generation: answers that evaluations make; None where they make none.
        recomputed_layers: how many layers, from the first on, `checkpointing` is for; None for all (`recomputed`).
    """

    model: ModelShape
    adapter: AdapterShape
    batch: BatchShape
    quant: Quant
    double_quant: bool
    engine: Engine
    world_size: int
    micro: int
    rows: int
    accumulation: int
    compute_dtype: str
    load_dtype: str
    adapter_dtype: str
    checkpointing: Checkpointing
    optimizer: Optimizer
    allocator: str
    eager_attention: bool
    zero3: Zero3Knobs | None
    machine: Machine
    stack: str = "trl"
    trained: Trained = Trained.adapters
    trained_tables: bool = False
    sharding: Sharding | None = None
    offload_activations: bool = False
    paged_optimizer: bool | None = None
    moment_bytes: float = 0.0
    step_in_backward: bool = False
    step_copies: int = 0
    autocast: bool = True
    upcasts: bool = False
    loads_whole: bool = False
    logit_chunks: int = 1
    calibrated: Stack | None = None
    counted: CountedStack | None = None
    flash_attention: bool = False
    sparse: Sparse | None = None
    recomputed_layers: int | None = None
    streamed: StreamedShare | None = None
    generation: Generation | None = None

    @property
    def constants(self) -> Stack:
        """Constants of the stack: fitted ones, the table's, or the default ones; over them what was measured."""
        stack = self.calibrated or STACKS.get(self.stack, DEFAULT)
        if self.counted and self.counted.layer_factor:
            stack = replace(stack, layer_factor=self.counted.layer_factor)
        if self.counted and self.counted.logit_bytes and not stack.fused_head:
            stack = replace(stack, logit_copies=self.counted.logit_bytes / DTYPE_BYTES["fp32"])
        if self.machine.measured and self.machine.measured.context_bytes:
            stack = replace(stack, context_bytes=self.machine.measured.context_bytes)
        return stack

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element in the compute dtype."""
        return DTYPE_BYTES[self.compute_dtype]

    @property
    def load_bytes(self) -> int:
        """Bytes of an unquantised weight."""
        return DTYPE_BYTES[self.load_dtype]

    @property
    def adapter_bytes(self) -> int:
        """Bytes of an adapter parameter, its gradient and each of AdamW's moments."""
        return DTYPE_BYTES[self.adapter_dtype]

    @property
    def trained_params(self) -> int:
        """Parameters with a gradient."""
        if self.trained is Trained.everything:
            return self.model.total_params
        tables = self.model.embedding_params + (self.model.head_params or self.model.embedding_params)
        return self.adapter.params + (tables if self.trained_tables else 0)

    @property
    def peak_tokens(self) -> int:
        """Tokens of the largest forward pass: what memory must allow for."""
        return self.micro * self.batch.longest_tokens
