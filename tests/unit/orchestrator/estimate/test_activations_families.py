"""Saved bytes of one layer on a GPU, per token, as counted on fake tensors (1 row of 1024 tokens, rank 16, bf16)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import AdapterConfig, Checkpointing
from orchestrator.estimate.activations import kept_bytes_per_token, layer_copy_bytes, saved_bytes_per_token
from orchestrator.estimate.backward import layer_peak
from orchestrator.estimate.masks import mask_bytes_per_token, masked_layers
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Setting
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.named import preset_shape

Make = Callable[..., Setting]


def _setting(make: Make, name: str, **changes: object) -> Setting:
    model = preset_shape(name)
    base = make(machine="gpu", compute_dtype="bf16", load_dtype="bf16", adapter_dtype="bf16", seq_len=1024)
    return replace(
        base,
        model=model,
        adapter=adapter_shape(model, AdapterConfig(rank=16)),
        batch=replace(base.batch, padded=False, fixed=True),
        micro=1,
        eager_attention=model.architecture == "gemma2",
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("llama-3-8b", 184_680),
        ("qwen3-8b", 188_937),
        ("gemma-7b", 266_561),
        ("gemma-2-9b", 350_504),
        ("phi-3-mini", 145_673),
        ("phi-2", 240_989),
        ("pythia-6.9b", 172_369),
        ("olmo-2-7b", 203_121),
        ("qwen1.5-moe-a2.7b", 140_995),
    ],
)
def test_saved_bytes_of_each_family(make_setting: Make, name: str, counted: int) -> None:
    assert saved_bytes_per_token(_setting(make_setting, name)) == pytest.approx(counted, rel=0.005)


def test_a_row_as_long_as_the_window_costs_a_mask(make_setting: Make) -> None:
    """The memory-efficient kernel repeats grouped keys and takes a bias of the compute dtype, in windowed layers."""
    setting = _setting(make_setting, "mistral-7b", checkpointing=Checkpointing.none)
    model, length = setting.model, setting.batch.longest_tokens

    def cut(window: int, layers: int) -> Setting:
        return replace(setting, model=replace(model, sliding_window=window, windowed_layers=layers))

    below, at, half = cut(length + 1, 32), cut(length, 32), cut(length, 16)
    assert [masked_layers(x) for x in (below, at, half)] == [0, 32, 16]
    extra = 2 * 2 * (model.query_width - model.key_width) + 2 * length
    assert saved_bytes_per_token(at) - saved_bytes_per_token(below) == extra
    assert kept_bytes_per_token(half) == (kept_bytes_per_token(at) + kept_bytes_per_token(below)) / 2
    assert [mask_bytes_per_token(x) for x in (below, at)] == [0, length]
    assert mask_bytes_per_token(replace(at, micro=4)) == length / 4  # one mask for all rows
    flash = replace(at, flash_attention=True)
    assert saved_bytes_per_token(flash) == saved_bytes_per_token(below)
    assert mask_bytes_per_token(flash) == 0


def test_padded_rows_need_a_mask_for_each_kind_of_layer(make_setting: Make) -> None:
    setting = _setting(make_setting, "gemma-3-1b")
    padded = replace(setting, batch=replace(setting.batch, padded=True))
    assert masked_layers(padded) == setting.model.layers
    assert mask_bytes_per_token(padded) == 2 * 1024
    assert masked_layers(setting) == setting.model.windowed_layers == 22
    assert masked_layers(replace(padded, eager_attention=True)) == 0


def test_adapted_experts_are_kept_merged(make_setting: Make) -> None:
    setting = _setting(make_setting, "mixtral-8x7b")
    assert layer_copy_bytes(setting) == 3 * 8 * 4096 * 14336 * 2
    plain = replace(setting, adapter=adapter_shape(setting.model, AdapterConfig(targets=("q_proj",))))
    assert layer_copy_bytes(plain) == 0


def test_fp32_adapters_are_cast_once_a_layer(make_setting: Make) -> None:
    setting = _setting(make_setting, "llama-3-8b")
    assert layer_copy_bytes(setting) == 0
    wide = replace(setting, adapter_dtype="fp32")
    assert layer_copy_bytes(wide) == 2 * wide.adapter.params // wide.model.layers


def test_gradients_left_over_from_earlier_passes_count(make_setting: Make) -> None:
    once, often = (
        estimate_memory(_setting(make_setting, "llama-3-8b", accumulation=n, checkpointing=Checkpointing.none)).train
        for n in (1, 2)
    )
    gradients = _setting(make_setting, "llama-3-8b").adapter.params * 2
    assert often.allocated_bytes - once.allocated_bytes == gradients


def test_every_moment_is_reached(make_setting: Make) -> None:
    """Which moment is the largest depends on the family and on tokens against widths."""
    full = Checkpointing.full
    llama, mixtral, gemma, phi, olmo = (
        _setting(make_setting, name, checkpointing=full)
        for name in ("llama-3-8b", "mixtral-8x7b", "gemma-2-9b", "phi-2", "olmo-2-7b")
    )
    assert "MLP" in layer_peak(llama, 0, recomputes=True).why
    assert "experts" in layer_peak(mixtral, 0, recomputes=True).why
    assert "norm" in layer_peak(gemma, 0, recomputes=True).why
    long = replace(gemma, batch=replace(gemma.batch, longest_tokens=4096))
    assert "scores" in layer_peak(long, 0, recomputes=True).why
    assert "product" in layer_peak(phi, 0, recomputes=True).why
    assert "norm" in layer_peak(olmo, 0, recomputes=True).why
