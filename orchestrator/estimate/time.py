"""Seconds of one optimizer step: named terms, with a lower and an upper bound."""

from __future__ import annotations

from orchestrator.config import Checkpointing, Engine, Quant
from orchestrator.estimate import base, zero3
from orchestrator.estimate import calibration as c
from orchestrator.estimate.activations import saved_bytes_per_token
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.values import StepTime, TimeTerm

_PRODUCTS = "products"
_OVERLAPPED = frozenset({"all_reduce", "gathers", "offload_copies"})


def estimate_time(setting: Setting) -> StepTime:
    """Time of one optimizer step of this rank, in seconds, and the world's real tokens per second.

    The rank's own rows decide; the caller gives the setting of the slowest rank.
    """
    terms = tuple(
        term
        for term in (
            _products(setting),
            _elementwise(setting),
            _dequantise(setting),
            _overhead(setting),
            _optimizer(setting),
            *_communication(setting),
        )
        if term.seconds > 0
    )
    total = sum(term.seconds for term in terms)
    best = c.GEMM_EFFICIENCY_GPU.value / c.EFFICIENCY_BEST_GPU.value if setting.machine.is_gpu else 0.9
    compute = [term for term in terms if term.name not in _OVERLAPPED]
    busy = sum(term.seconds * (best if term.name == _PRODUCTS else 1.0) for term in compute)
    moved = max((term.seconds for term in terms if term.name in _OVERLAPPED), default=0.0)
    tokens = setting.rows * setting.batch.real_tokens_per_row * setting.world_size
    return StepTime(
        step_seconds=total,
        lower_seconds=max(busy, moved),
        upper_seconds=2 * total,
        tokens_per_second=tokens / total,
        terms=terms,
    )


def _tokens(setting: Setting) -> float:
    """Expected tokens of a step on this rank, padding included."""
    return setting.rows * setting.batch.expected_tokens(setting.micro)


def _recompute(setting: Setting) -> bool:
    return setting.checkpointing is not Checkpointing.none


def _passes(setting: Setting) -> int:
    """Passes over every frozen weight: forward, input gradient, recomputation."""
    return 3 if _recompute(setting) else 2


def flops_per_token(setting: Setting) -> float:
    """Floating-point operations per token of one micro-step.

    Frozen weights 2 per pass (no weight gradient); adapters 6, and 2 more when recomputed (selective
    keeps A's half); attention 4 s q forward, twice that backward; the fused head recomputes its tile.
    """
    model, adapter = setting.model, setting.adapter
    passes = _passes(setting)
    recomputed = {Checkpointing.none: 0.0, Checkpointing.selective: 1.0}.get(setting.checkpointing, 2.0)
    length = setting.batch.expected_tokens(setting.micro)
    attention = 4 * length * model.query_width * model.layers * (passes + 1)
    head = (6 if setting.stack == "trl" else 4) * model.vocab * model.hidden
    return 2 * passes * model.linear_params + (6 + recomputed) * adapter.params + attention + head


def _products(setting: Setting) -> TimeTerm:
    efficiency = c.GEMM_EFFICIENCY_GPU if setting.machine.is_gpu else c.GEMM_EFFICIENCY_CPU
    rate = setting.machine.flops_per_second * efficiency.value
    flops = _tokens(setting) * flops_per_token(setting)
    why = f"{flops / 1e12:.3g} TFLOP at {rate / 1e12:.3g} TFLOP/s ({efficiency.value:.0%} of peak)"
    return TimeTerm(name=_PRODUCTS, seconds=flops / rate, why=why)


def _elementwise(setting: Setting) -> TimeTerm:
    """Norms, rotations, activations and casts: passes over what a layer saves, at memory bandwidth."""
    model, tokens = setting.model, _tokens(setting)
    share = 1.33 if _recompute(setting) else 1.0
    moved = tokens * model.layers * saved_bytes_per_token(setting) * c.ELEMENTWISE_PASSES.value * share
    if not setting.machine.is_gpu and setting.stack == "trl":
        moved += tokens * model.vocab * 4 * c.HEAD_TILE_PASSES_CPU.value
    seconds = moved / setting.machine.memory_bytes_per_second
    return TimeTerm(name="elementwise", seconds=seconds, why=f"{moved / 1e9:.3g} GB through memory")


def _dequantise(setting: Setting) -> TimeTerm:
    passes = _passes(setting) * setting.accumulation
    weights = setting.model.linear_params * passes
    if setting.quant is Quant.none:
        return TimeTerm(name="dequantise", seconds=0.0, why="the base is stored as it is multiplied")
    if setting.machine.is_gpu:
        moved = passes * base.packed_bytes(setting) + weights * setting.compute_bytes
        seconds = moved / (setting.machine.memory_bytes_per_second * c.DEQUANTISE_BANDWIDTH_GPU.value)
    else:
        seconds = weights / (c.DEQUANTISE_WEIGHTS_PER_CORE.value * setting.machine.cores)
    why = f"every weight unpacked {_passes(setting)} times per micro-step, {setting.accumulation} micro-steps"
    return TimeTerm(name="dequantise", seconds=seconds, why=why)


def _overhead(setting: Setting) -> TimeTerm:
    gpu = setting.machine.is_gpu
    module = c.MODULE_PASS_SECONDS_GPU if gpu else c.MODULE_PASS_SECONDS_CPU
    layer = c.CHECKPOINT_LAYER_SECONDS_GPU if gpu else c.CHECKPOINT_LAYER_SECONDS_CPU
    modules = setting.model.layers * len(setting.model.linears)
    seconds = modules * _passes(setting) * module.value + c.MICRO_STEP_SECONDS.value
    if _recompute(setting):
        seconds += setting.model.layers * layer.value
    if not gpu:
        seconds /= min(1.0, setting.machine.cores)
    if setting.engine is Engine.zero3:
        gathers = zero3.gather_passes(recompute=_recompute(setting))
        seconds += modules * gathers * (c.ZERO3_MODULE_SECONDS_GPU if gpu else c.ZERO3_MODULE_SECONDS_CPU).value
    why = f"Python and kernel launches of {modules} linear modules, {setting.accumulation} micro-steps"
    return TimeTerm(name="overhead", seconds=seconds * setting.accumulation, why=why)


def _optimizer(setting: Setting) -> TimeTerm:
    shared = setting.world_size if setting.engine is Engine.zero3 else 1
    moved = setting.adapter.params * setting.adapter_bytes * c.ADAM_PASS_BYTES.value / shared
    seconds = moved / setting.machine.memory_bytes_per_second
    seconds += setting.adapter.tensors * c.OPTIMIZER_TENSOR_SECONDS.value
    return TimeTerm(name="optimizer", seconds=seconds, why=f"{setting.adapter.tensors} adapter tensors")


def _communication(setting: Setting) -> tuple[TimeTerm, ...]:
    machine, ranks = setting.machine, setting.world_size
    size_bytes = setting.adapter.params * setting.adapter_bytes
    buckets = max(1, -(-size_bytes // c.DDP_BUCKET_BYTES))
    ring = 2 * (ranks - 1) / ranks * size_bytes / machine.link_bytes_per_second
    # Under ZeRO-3 gradients are reduced after every micro-step, not once.
    times = setting.accumulation if setting.engine is Engine.zero3 else 1
    reduce_seconds = times * (ring + 2 * (ranks - 1) * buckets * machine.link_alpha_seconds) if ranks > 1 else 0.0
    reduce = TimeTerm(
        name="all_reduce",
        seconds=reduce_seconds,
        why=f"{size_bytes / 1e6:.3g} MB of adapter gradients over {ranks} ranks",
    )
    return (reduce, *_gathers(setting)) if setting.engine is Engine.zero3 else (reduce,)


def _gathers(setting: Setting) -> tuple[TimeTerm, ...]:
    gathers = zero3.gather_passes(recompute=_recompute(setting)) * setting.accumulation
    received, offloaded = zero3.moved_bytes_per_gather(setting)
    modules = setting.model.layers * len(setting.model.linears)
    latency = modules * setting.machine.link_alpha_seconds if setting.world_size > 1 else 0.0
    link = gathers * (received / setting.machine.gather_bytes_per_second + latency)
    copies = gathers * offloaded / zero3.offload_bytes_per_second(setting)
    return (
        TimeTerm(name="gathers", seconds=link, why=f"{received / 1e9:.3g} GB received {gathers} times a step"),
        TimeTerm(
            name="offload_copies",
            seconds=copies,
            why=f"{offloaded / 1e9:.3g} GB from the offload target {gathers} times a step",
        ),
    )
