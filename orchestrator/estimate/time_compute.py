"""Seconds that a GPU computes for one micro-step: products, attention, elementwise kernels, unpacking, head.

A product takes the time of its operations at what large products of this generation reach, plus the time of
its operands at memory bandwidth. The sum makes small products less efficient, as ramps and partial waves do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from orchestrator.config import Checkpointing, Quant
from orchestrator.estimate import calibration_time as ct
from orchestrator.estimate.dora import dora_work
from orchestrator.estimate.kept import LINKS, kept
from orchestrator.estimate.masks import masked_layers
from orchestrator.estimate.recomputed import recomputed_share
from orchestrator.estimate.setting import FOUR_BIT, MODULES_OF_A_LAYER, Setting, Trained
from orchestrator.estimate.time_practice import Practice
from orchestrator.workload.adapter import AdapterShape
from orchestrator.workload.model import ModelShape

_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of work of a micro-step, all layers together; `backward` holds the recomputation too."""

    name: str
    forward_seconds: float
    backward_seconds: float
    why: str

    @property
    def seconds(self) -> float:
        """Both ways."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the device reaches: FLOP/s of large products and of attention, and bytes/s of memory."""

    products: float
    attention: float
    memory: float


def rates_of(setting: Setting) -> Rates:
    """Reachable rates of a GPU."""
    machine = setting.machine
    products = machine.flops_per_second * ct.generation_of(machine.device_name).share
    measured = machine.measured
    if measured and measured.products:
        _, products = measured.products[-1]  # the widest: what smaller ones lose, the operands' time tells
    return Rates(
        products=products,
        attention=products * ct.ATTENTION_SHARE.value,
        memory=machine.memory_bytes_per_second * ct.MEMORY_SHARE.value,
    )


def host_factor(setting: Setting) -> float:
    """Host time of a layer and pass that `bench` measured, times that of the table; 1 where it was not."""
    measured = setting.machine.measured
    if measured is None or measured.layer_pass_seconds is None:
        return 1.0
    table = ct.LAYER_HOST_SECONDS.value + MODULES_OF_A_LAYER * ct.ADAPTER_HOST_SECONDS.value
    return measured.layer_pass_seconds / table


def length_of(setting: Setting) -> float:
    """Expected tokens of a row of a micro-batch, padding included."""
    return setting.batch.expected_tokens(setting.micro)


@kept(
    *("world_size", "rows", "accumulation", "engine", "zero3", "sparse", "streamed", "optimizer", "allocator"),
    *("double_quant", "load_dtype", "adapter_dtype", "machine.memory_bytes", *LINKS),
)
def compute_parts(setting: Setting, practice: Practice) -> tuple[Part, ...]:
    """All work of one micro-step on the compute stream but the optimizer."""
    rates = rates_of(setting)
    return (
        _products(setting, rates),
        _attention(setting, rates),
        _elementwise(setting, practice, rates),
        _dequantise(setting, practice),
        _head(setting, practice, rates),
        _experts(setting, practice),
        *_dora(setting, practice, rates),
    )


def _dora(setting: Setting, practice: Practice, rates: Rates) -> tuple[Part, ...]:
    """What DoRA adds to the pass forward and to its recomputation."""
    work = dora_work(setting)
    if work is None:
        return ()
    unpacked = 0.0 if setting.quant is Quant.none else work.weights / unpacked_per_second(setting, practice)
    forward = work.flops / rates.products + work.moved / rates.memory + unpacked
    why = f"{work.weights / 1e9:.3g} billion weights normed again, {work.moved / 1e9:.3g} GB through memory"
    return (Part(name="dora", forward_seconds=forward, backward_seconds=forward * recomputed_share(setting), why=why),)


def trains_base(setting: Setting) -> bool:
    """Whether every weight has a gradient."""
    return setting.trained is Trained.everything


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Operations and bytes of one pass over some products."""

    flops: float = 0.0
    moved: float = 0.0

    def __add__(self, other: _Work) -> _Work:
        return _Work(flops=self.flops + other.flops, moved=self.moved + other.moved)

    def times(self, factor: float) -> _Work:
        return _Work(flops=self.flops * factor, moved=self.moved * factor)

    def seconds(self, rates: Rates) -> float:
        return self.flops / rates.products + self.moved / rates.memory


def _tiled(tokens: float) -> float:
    """Rows that are computed for `tokens` rows: tiles are filled up."""
    tile = ct.ROW_TILE.value
    # Where lengths vary, or an expert's share does, half a tile is wasted on average.
    return tokens if tokens % tile == 0 else tokens + tile / 2


def _product(tokens: float, rows: int, columns: int, size: int) -> _Work:
    moved = size * (tokens * (rows + columns) + rows * columns)
    return _Work(flops=2 * _tiled(tokens) * rows * columns, moved=moved)


def _is_routed(name: str) -> bool:
    """Whether a module or parameter belongs to experts that see a share of the tokens."""
    return "expert" in name and "shared" not in name


def _active_share(setting: Setting) -> float:
    model = setting.model
    return model.experts_per_token / model.experts if model.experts else 1.0


def base_pass(setting: Setting) -> _Work:
    """One pass over the weights of all layers; experts see their share of the tokens."""
    return _base_pass(setting.model, setting.compute_bytes, setting.micro * length_of(setting), _active_share(setting))


@lru_cache(256)
def _base_pass(model: ModelShape, size: int, tokens: float, share: float) -> _Work:
    work = _Work()
    for linear, count in model.linear_counts:
        seen = tokens * share if _is_routed(linear.name) else tokens
        work += _product(seen, linear.out_features, linear.in_features, size).times(count)
    if model.expert_params:
        wide = 3 * (model.hidden + (model.expert_width or model.intermediate)) * model.layers
        moved = size * (model.expert_params + tokens * model.experts_per_token * wide)
        work += _Work(flops=2 * tokens * share * model.expert_params, moved=moved)
    return work


def adapter_pass(setting: Setting) -> _Work:
    """One pass over all adapters: A and B."""
    tokens = setting.micro * length_of(setting)
    return _adapter_pass(setting.adapter, setting.compute_bytes, tokens, _active_share(setting))


@lru_cache(256)
def _adapter_pass(adapter: AdapterShape, size: int, tokens: float, share: float) -> _Work:
    work = _Work()
    for piece in adapter.all_pieces:
        seen = tokens * share if _is_routed(piece.name) else tokens
        down = _product(seen, piece.rank, piece.in_features, size)
        up = _product(seen, piece.out_features, piece.rank, size)
        work += (down + up).times(piece.count)
    return work


def products_work(setting: Setting) -> tuple[_Work, _Work]:
    """Operations and bytes of the layers' products, forward and backward.

    Frozen weights need the input's gradient only. Selective checkpointing keeps A's results.
    """
    weights = base_pass(setting)
    again = recomputed_share(setting)
    backward = weights.times(again + (2.0 if trains_base(setting) else 1.0))
    if trains_base(setting):
        return weights, backward
    adapters = adapter_pass(setting)
    kept = 0.5 if setting.checkpointing is Checkpointing.selective else 1.0
    return weights + adapters, backward + adapters.times(2.0 + again * kept)


def _products(setting: Setting, rates: Rates) -> Part:
    forward, backward = products_work(setting)
    both = forward + backward
    machine = setting.machine
    source, reached = machine.source("gemm"), both.flops / both.seconds(rates)
    why = (
        f"{both.flops / 1e12:.3g} TFLOP a micro-step at {reached / 1e12:.3g} TFLOP/s ({source}: "
        f"{rates.products / machine.flops_per_second:.0%} of peak for large products, "
        f"{reached / machine.flops_per_second:.0%} for these)"
    )
    return Part(
        name="products", forward_seconds=forward.seconds(rates), backward_seconds=backward.seconds(rates), why=why
    )


def attended_tokens(setting: Setting) -> float:
    """Mean keys that a query is multiplied with, over all layers: half the row under a causal mask.

    Unfused kernels, and those that take a mask for padding or a window, compute all of them. FlashAttention 2 skips
    what a window hides.
    """
    length, model = length_of(setting), setting.model
    if setting.eager_attention:
        return length
    if not setting.flash_attention:
        masked = masked_layers(setting) / model.layers
        return masked * length + (1 - masked) * length / 2
    window = min(model.sliding_window, length)
    inside = window - window * window / (2 * length)
    share = model.windowed_layers / model.layers
    return share * inside + (1 - share) * length / 2


def _attention(setting: Setting, rates: Rates) -> Part:
    model = setting.model
    tokens = setting.micro * length_of(setting)
    seen = attended_tokens(setting)
    flops = 4 * tokens * seen * model.query_width * model.layers
    forward = flops / rates.attention
    if setting.eager_attention:
        forward += tokens * seen * model.heads * model.layers * ct.SCORE_BYTES.value / rates.memory
    backward = forward * (ct.ATTENTION_BACKWARD.value + recomputed_share(setting))
    kind = "unfused" if setting.eager_attention else "fused"
    why = f"{kind}, {seen:.0f} keys a query on average"
    return Part(name="attention", forward_seconds=forward, backward_seconds=backward, why=why)


def elementwise_bytes(setting: Setting, practice: Practice) -> float:
    """Bytes through memory of one forward pass of a micro-step."""
    model = setting.model
    scale = setting.compute_bytes / 2
    mlp = model.experts_per_token * (model.expert_width or model.intermediate) if model.experts else model.intermediate
    norm = (ct.LAYER_NORM_BYTES if model.layer_norm else ct.NORM_BYTES).value
    heads = model.query_width + model.key_width
    layer = (
        (model.norms_per_layer * norm + 2 * ct.RESIDUAL_BYTES.value) * model.hidden
        + (ct.ROTARY_BYTES.value + (norm if model.qk_norm else 0.0)) * heads
        + (ct.GATE_BYTES if model.gated_mlp else ct.UNGATED_BYTES).value * mlp
    )
    adapters = 0.0
    if not trains_base(setting):
        adapters = ct.ADAPTER_BYTES.value * sum(
            piece.count * piece.out_features * (_active_share(setting) if _is_routed(piece.name) else 1.0)
            for piece in setting.adapter.all_pieces
        )
    tokens = setting.micro * length_of(setting)
    return tokens * scale * practice.elementwise * (layer * model.layers + adapters)


def _elementwise(setting: Setting, practice: Practice, rates: Rates) -> Part:
    moved = elementwise_bytes(setting, practice)
    passes = ct.ELEMENTWISE_BACKWARD.value + recomputed_share(setting)
    why = f"norms, rotations, activations, adapters: {moved * (1 + passes) / 1e9:.3g} GB through memory a micro-step "
    why += f"at {rates.memory / 1e9:.3g} GB/s ({setting.machine.source('memory')})"
    return Part(
        name="elementwise",
        forward_seconds=moved / rates.memory,
        backward_seconds=moved * passes / rates.memory,
        why=why,
    )


def _dequantise(setting: Setting, practice: Practice) -> Part:
    if setting.quant is Quant.none:
        return Part(name="dequantise", forward_seconds=0.0, backward_seconds=0.0, why="stored as it is multiplied")
    weights = setting.model.packed_params + (setting.model.expert_params if practice.packs_experts else 0)
    rate = unpacked_per_second(setting, practice)
    forward = weights / rate
    passes = 1 + recomputed_share(setting)
    why = f"{weights / 1e9:.3g} billion weights unpacked {passes + 1:.3g} times, {rate / 1e9:.3g} billion a second "
    why += f"({setting.machine.source('dequantise')})"
    return Part(name="dequantise", forward_seconds=forward, backward_seconds=forward * passes, why=why)


def unpacked_per_second(setting: Setting, practice: Practice) -> float:
    """Weights that the device unpacks per second: by memory, or by the kernel's instructions."""
    machine = setting.machine
    measured = machine.measured.unpacked_at(setting.model.hidden) if machine.measured else None
    if measured is not None and setting.quant in FOUR_BIT:
        return measured
    each = practice.dequantise_bytes or _packed_bytes(setting) + setting.compute_bytes
    rate = machine.memory_bytes_per_second * practice.dequantise_share / each
    if practice.dequantise_per_cycle:
        generation = ct.generation_of(machine.device_name)
        each_cycle = generation.cycle_flops_fp32 if setting.compute_dtype == "fp32" else generation.cycle_flops
        rate = min(rate, machine.flops_per_second / each_cycle * practice.dequantise_per_cycle)
    return rate


def _packed_bytes(setting: Setting) -> float:
    return 1.0 if setting.quant is Quant.int8 else 0.5 + _FP32 / 64


def _experts(setting: Setting, practice: Practice) -> Part:
    each = setting.model.experts * setting.model.layers * practice.expert_seconds
    passes = 1 + recomputed_share(setting)
    why = "a loop over experts that waits for each of them"
    return Part(name="expert_loop", forward_seconds=each, backward_seconds=each * passes, why=why)


def _head(setting: Setting, practice: Practice, rates: Rates) -> Part:
    model = setting.model
    tokens = setting.micro * length_of(setting)
    passes = practice.head_passes + (1 if trains_base(setting) else 0)
    products = _product(tokens, model.vocab, model.hidden, setting.compute_bytes).times(passes)
    moved = tokens * model.vocab * practice.logit_bytes
    seconds = products.seconds(rates) + moved / rates.memory
    why = f"{model.vocab} logits a token, {passes} products with the head"
    return Part(name="head", forward_seconds=seconds / 2, backward_seconds=seconds / 2, why=why)
