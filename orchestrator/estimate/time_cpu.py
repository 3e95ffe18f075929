"""Terms of a step on CPU cores: one core does everything, so nothing overlaps and the terms add up."""

from __future__ import annotations

from orchestrator.config import Engine, Quant
from orchestrator.estimate import calibration as c
from orchestrator.estimate import zero3
from orchestrator.estimate.activations import saved_bytes_per_token
from orchestrator.estimate.dora import dora_work
from orchestrator.estimate.recomputed import recomputed_layers, recomputed_share
from orchestrator.estimate.setting import FOUR_BIT, MODULES_OF_A_LAYER, Setting
from orchestrator.estimate.time_flops import flops_per_token, passes_of
from orchestrator.estimate.values import TimeTerm


def cpu_terms(setting: Setting) -> tuple[TimeTerm, ...]:
    """Seconds of one optimizer step but for what ranks exchange."""
    return (
        _products(setting),
        _elementwise(setting),
        _dequantise(setting),
        _overhead(setting),
        *_dora(setting),
        _optimizer(setting),
    )


def _tokens(setting: Setting) -> float:
    """Expected tokens of a step on this rank, padding included."""
    return setting.rows * setting.batch.expected_tokens(setting.micro)


def _products(setting: Setting) -> TimeTerm:
    machine, efficiency = setting.machine, c.GEMM_EFFICIENCY_CPU.value
    rate, source = machine.flops_per_second * efficiency, f"table: {efficiency:.0%} of peak"
    measured = machine.measured.products_at(setting.model.hidden) if machine.measured else None
    if measured is not None:
        rate, source = measured, machine.source("gemm")
    flops = _tokens(setting) * flops_per_token(setting)
    why = f"{flops / 1e12:.3g} TFLOP at {rate / 1e12:.3g} TFLOP/s ({source})"
    return TimeTerm(name="products", seconds=flops / rate, why=why)


def _elementwise(setting: Setting) -> TimeTerm:
    """Norms, rotations, activations and casts: passes over what a layer saves, at memory bandwidth."""
    model, tokens = setting.model, _tokens(setting)
    share = 1.0 + 0.33 * recomputed_share(setting)
    moved = tokens * model.layers * saved_bytes_per_token(setting) * c.ELEMENTWISE_PASSES.value * share
    if setting.stack == "trl":
        moved += tokens * model.vocab * 4 * c.HEAD_TILE_PASSES_CPU.value
    machine = setting.machine
    rate, source = machine.memory_bytes_per_second, "table"
    if machine.measured and machine.measured.elementwise_bytes_per_second:
        rate, source = machine.measured.elementwise_bytes_per_second, machine.source("layer")
    why = f"{moved / 1e9:.3g} GB through memory at {rate / 1e9:.3g} GB/s ({source})"
    return TimeTerm(name="elementwise", seconds=moved / rate, why=why)


def _dequantise(setting: Setting) -> TimeTerm:
    if setting.quant is Quant.none:
        return TimeTerm(name="dequantise", seconds=0.0, why="the base is stored as it is multiplied")
    passes = passes_of(setting)
    weights = setting.model.packed_params * passes * setting.accumulation
    machine = setting.machine
    rate, source = c.DEQUANTISE_WEIGHTS_PER_CORE.value * machine.cores, "table"
    measured = machine.measured.unpacked_at(setting.model.hidden) if machine.measured else None
    if measured is not None and setting.quant in FOUR_BIT:
        rate, source = measured, machine.source("dequantise")
    why = f"every weight unpacked {passes:.3g} times per micro-step, {setting.accumulation} micro-steps, "
    why += f"{rate / 1e9:.3g} billion a second ({source})"
    return TimeTerm(name="dequantise", seconds=weights / rate, why=why)


def _dora(setting: Setting) -> tuple[TimeTerm, ...]:
    """Norms of every adapted weight, in each pass forward."""
    work = dora_work(setting)
    if work is None:
        return ()
    machine = setting.machine
    passes = setting.accumulation * (1 + recomputed_share(setting))
    seconds = work.flops / (machine.flops_per_second * c.GEMM_EFFICIENCY_CPU.value)
    seconds += work.moved / machine.memory_bytes_per_second
    if setting.quant is not Quant.none:
        seconds += work.weights / (c.DEQUANTISE_WEIGHTS_PER_CORE.value * machine.cores)
    why = f"{work.weights / 1e9:.3g} billion weights unpacked and normed again in each pass forward"
    return (TimeTerm(name="dora", seconds=seconds * passes, why=why),)


def _overhead(setting: Setting) -> TimeTerm:
    modules = setting.model.layers * len(setting.model.linears)
    each, source = c.MODULE_PASS_SECONDS_CPU.value, "table"
    if setting.machine.measured and setting.machine.measured.layer_pass_seconds:
        each = setting.machine.measured.layer_pass_seconds / MODULES_OF_A_LAYER
        source = setting.machine.source("overhead")
    seconds = modules * passes_of(setting) * each + c.MICRO_STEP_SECONDS.value
    seconds += recomputed_layers(setting) * c.CHECKPOINT_LAYER_SECONDS_CPU.value
    seconds /= min(1.0, setting.machine.cores)
    if setting.engine is Engine.zero3:
        seconds += modules * zero3.gather_passes(setting) * c.ZERO3_MODULE_SECONDS_CPU.value
    if setting.streamed is not None:
        seconds += setting.streamed.fetched_layers * 2 * c.STREAMED_LAYER_SECONDS_CPU.value
    why = f"Python and kernel launches of {modules} linear modules, {setting.accumulation} micro-steps "
    why += f"({source})"
    return TimeTerm(name="overhead", seconds=seconds * setting.accumulation, why=why)


def _optimizer(setting: Setting) -> TimeTerm:
    shared = setting.world_size if setting.engine is Engine.zero3 else 1
    moved = setting.adapter.params * setting.adapter_bytes * c.ADAM_PASS_BYTES.value / shared
    measured = setting.machine.measured.memory_bytes_per_second if setting.machine.measured else None
    seconds = moved / (measured or setting.machine.memory_bytes_per_second)
    seconds += setting.adapter.tensors * c.OPTIMIZER_TENSOR_SECONDS.value
    return TimeTerm(name="optimizer", seconds=seconds, why=f"{setting.adapter.tensors} adapter tensors")
