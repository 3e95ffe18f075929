"""What an estimate is asked about: one rank's work on one device."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer, Quant
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.model import ModelShape

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_PACKED_STORAGE_BYTES = 2
_FOUR_BIT = (Quant.nf4, Quant.fp4)


def storage_bytes(quant: Quant, compute_dtype: str) -> int:
    """Bytes of one element as ZeRO-3 stores it: packed 4-bit bytes travel as a 16-bit type, whatever computes."""
    return _PACKED_STORAGE_BYTES if quant in _FOUR_BIT else DTYPE_BYTES[compute_dtype]


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
        link_alpha_seconds: latency of a collective.
        h2d_bytes_per_second: pinned host memory to device.
        known: the peaks come from a table, not from a fall-back.
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
class Setting:
    """Everything that memory and time depend on, for one rank.

    `micro` is rows per forward pass, `rows` per optimizer step. Dtypes are `fp32`, `bf16` or `fp16`.
    `stack` names whose kernels are assumed: `trl` (fused head) or `hf_plain` (full logits).
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
    def peak_tokens(self) -> int:
        """Tokens of the largest forward pass: what memory must allow for."""
        return self.micro * self.batch.longest_tokens
