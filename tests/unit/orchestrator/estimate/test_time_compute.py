"""Compute of a micro-step on a GPU: counts by hand, and what makes products slower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import AdapterConfig, Checkpointing, Quant
from orchestrator.estimate import calibration_time as ct
from orchestrator.estimate.setting import Setting, Trained
from orchestrator.estimate.time_compute import (
    Part,
    attended_tokens,
    base_pass,
    compute_parts,
    products_work,
    rates_of,
    unpacked_per_second,
)
from orchestrator.estimate.time_practice import PRACTICES, practice_of
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.named import preset_shape
from topology.hardware import peak

Make = Callable[..., Setting]
PLAIN = practice_of("hf_plain")


def on_gpu(make: Make, *, tokens: int = 256, **changes: object) -> Setting:
    setting = make(machine="gpu", seq_len=tokens, micro=1, compute_dtype="bf16", **changes)
    return replace(setting, batch=replace(setting.batch, fixed=True, padded=False))


def part(setting: Setting, name: str, stack: str = "hf_plain") -> Part:
    return next(x for x in compute_parts(setting, practice_of(stack)) if x.name == name)


def test_products_by_hand(make_setting: Make) -> None:
    setting = on_gpu(make_setting)
    layer = 256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 688
    adapter = 16 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 688))
    forward, backward = products_work(setting)
    assert forward.flops == pytest.approx(2 * 256 * 4 * (layer + adapter))
    # Frozen weights: the input's gradient; adapters: both gradients.
    assert backward.flops == pytest.approx(2 * 256 * 4 * (layer + 2 * adapter))


def test_recomputation_adds_a_forward_pass(make_setting: Make) -> None:
    none, selective, full = (
        products_work(on_gpu(make_setting, checkpointing=mode))[1].flops
        for mode in (Checkpointing.none, Checkpointing.selective, Checkpointing.full)
    )
    forward = products_work(on_gpu(make_setting))[0].flops
    assert full == pytest.approx(none + forward)
    assert none < selective < full


def test_training_the_base_needs_the_weights_gradient(make_setting: Make) -> None:
    frozen = on_gpu(make_setting)
    trained = replace(frozen, trained=Trained.everything)
    weights = base_pass(frozen).flops
    assert products_work(trained)[0].flops == pytest.approx(weights)
    assert products_work(trained)[1].flops == pytest.approx(2 * weights)


def test_small_products_are_less_efficient(make_setting: Make) -> None:
    reached = []
    for tokens in (128, 512, 2048, 8192):
        setting = on_gpu(make_setting, tokens=tokens)
        forward, _ = products_work(setting)
        reached.append(forward.flops / forward.seconds(rates_of(setting)))
    assert reached == sorted(reached)
    assert reached[-1] < rates_of(on_gpu(make_setting)).products


def test_tiles_are_filled_up(make_setting: Make) -> None:
    whole, more = base_pass(on_gpu(make_setting, tokens=256)).flops, base_pass(on_gpu(make_setting, tokens=264)).flops
    assert more / whole == pytest.approx((264 + 64) / 256)


def test_experts_see_their_share(make_setting: Make) -> None:
    mixtral = preset_shape("mixtral-8x7b")
    adapter = adapter_shape(mixtral, AdapterConfig(rank=16, targets=("q_proj", "v_proj")))
    setting = replace(on_gpu(make_setting, tokens=4096), model=mixtral, adapter=adapter)
    assert base_pass(setting).flops == pytest.approx(2 * 4096 * mixtral.active_params, rel=0.01)
    assert mixtral.active_params < 0.35 * mixtral.total_params


def test_attention_sees_half_the_row_under_a_causal_mask(make_setting: Make) -> None:
    setting = on_gpu(make_setting, tokens=1024)
    assert attended_tokens(setting) == 512
    assert attended_tokens(replace(setting, eager_attention=True)) == 1024
    masked = replace(setting, batch=replace(setting.batch, padded=True))
    assert attended_tokens(masked) == 1024
    eager = part(replace(setting, eager_attention=True), "attention")
    assert eager.seconds > 2 * part(setting, "attention").seconds


def test_a_window_limits_what_flash_attention_sees(make_setting: Make) -> None:
    setting = replace(on_gpu(make_setting, tokens=1024), flash_attention=True)
    layers = setting.model.layers
    every = replace(setting, model=replace(setting.model, sliding_window=256, windowed_layers=layers))
    # Rows 1 to 256 see themselves and all before, the others 256 keys.
    expected = (sum(range(1, 257)) + 768 * 256) / 1024
    assert attended_tokens(every) == pytest.approx(expected, rel=0.01)
    half = replace(setting, model=replace(setting.model, sliding_window=256, windowed_layers=layers // 2))
    assert attended_tokens(half) == pytest.approx((attended_tokens(every) + attended_tokens(setting)) / 2)
    assert attended_tokens(setting) == 512
    wide = replace(setting, model=replace(setting.model, sliding_window=4096, windowed_layers=layers))
    assert attended_tokens(wide) == 512


def test_torch_s_kernel_computes_what_a_window_hides(make_setting: Make) -> None:
    setting = on_gpu(make_setting, tokens=1024)
    layers = setting.model.layers
    every = replace(setting, model=replace(setting.model, sliding_window=1024, windowed_layers=layers))
    assert attended_tokens(every) == 1024
    half = replace(every, model=replace(every.model, windowed_layers=layers // 2))
    assert attended_tokens(half) == 768
    assert attended_tokens(replace(every, model=replace(every.model, sliding_window=1025))) == 512


def test_unpacking_is_bound_by_instructions_or_memory(make_setting: Make) -> None:
    setting = on_gpu(make_setting)
    fast = replace(setting, machine=replace(setting.machine, memory_bytes_per_second=1e14))
    cycles = setting.machine.flops_per_second / ct.UNKNOWN_GENERATION.cycle_flops
    assert unpacked_per_second(fast, PLAIN) == pytest.approx(cycles * ct.DEQUANTISE_PER_CYCLE.value)
    slow = replace(setting, machine=replace(setting.machine, memory_bytes_per_second=1e10))
    assert unpacked_per_second(slow, PLAIN) == pytest.approx(1e10 * ct.MEMORY_SHARE.value / 2.5625)


def test_multiprocessors_do_not_depend_on_the_precision(make_setting: Make) -> None:
    """An A100's fp32 and bf16 peaks tell the same cycles."""
    setting = on_gpu(make_setting)
    machine = replace(setting.machine, device_name="NVIDIA A100-SXM4-80GB", memory_bytes_per_second=1e14)
    half = replace(setting, machine=replace(machine, flops_per_second=312e12))
    full = replace(setting, machine=replace(machine, flops_per_second=19.5e12), compute_dtype="fp32")
    assert unpacked_per_second(half, PLAIN) == pytest.approx(unpacked_per_second(full, PLAIN), rel=0.02)


def test_a_plain_base_is_not_unpacked(make_setting: Make) -> None:
    assert part(on_gpu(make_setting, quant=Quant.none), "dequantise").seconds == 0
    once = part(on_gpu(make_setting), "dequantise")
    thrice = part(on_gpu(make_setting, checkpointing=Checkpointing.full), "dequantise")
    assert thrice.seconds == pytest.approx(1.5 * once.seconds)


def test_the_tiled_head_multiplies_once_more(make_setting: Make) -> None:
    setting = on_gpu(make_setting, tokens=8192)
    assert part(setting, "head", "trl").why.startswith("4096 logits a token, 3 products")
    assert part(setting, "head", "hf_plain").why.startswith("4096 logits a token, 2 products")


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("NVIDIA A100-SXM4-80GB", 0.86),
        ("NVIDIA A100 80GB PCIe", 0.82),
        ("NVIDIA A10G", 1.0),
        ("NVIDIA A10", 0.845),
        ("NVIDIA GeForce RTX 3090", 1.08),
        ("NVIDIA GeForce RTX 4090", 1.08),
        ("NVIDIA RTX 4000 Ada Generation", 0.74),
        ("NVIDIA L40S", 0.74),
        ("NVIDIA RTX A6000", 0.845),
        ("NVIDIA H100 80GB HBM3", 0.81),
        ("NVIDIA H100 PCIe", 0.63),
        ("NVIDIA H200", 0.81),
        ("NVIDIA B200", 0.776),
        ("Tesla V100-SXM2-32GB", 0.77),
        ("Quadro RTX 4000", 0.8),
        ("", 0.8),
    ],
)
def test_generations_by_name(name: str, share: float) -> None:
    assert ct.generation_of(name).share == share
    assert not name or peak(name) is not None


def test_every_constant_and_generation_has_a_source() -> None:
    names = [name for name, _ in ct.table()]
    assert set(names) >= ct.SEEN
    assert all(value.unit and value.source for _, value in ct.table())
    assert all(row.source and 0.5 < row.share < 1.2 for row in ct.GENERATIONS)


def test_stacks_have_practices() -> None:
    assert practice_of("trl").head_passes == 3
    assert practice_of("something else") == practice_of("hf_plain")
    assert all(practice.elementwise > 0 for practice in PRACTICES.values())
