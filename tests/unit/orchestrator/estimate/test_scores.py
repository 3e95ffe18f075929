"""Peaks of models with unfused attention or odd layers, as counted on fake tensors (4 layers, bf16 adapters)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import AdapterConfig, Checkpointing
from orchestrator.estimate.activations import unsaved_bytes_per_token
from orchestrator.estimate.backward import layer_peak
from orchestrator.estimate.masks import EAGER_BY_DEFAULT, mask_buffer_bytes
from orchestrator.estimate.memory import base_terms, estimate_memory
from orchestrator.estimate.scores import scores_of
from orchestrator.estimate.setting import Setting
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.named import find_preset
from topology.units import GIB

Make = Callable[..., Setting]
NONE, SOME, FULL = Checkpointing.none, Checkpointing.selective, Checkpointing.full


def _setting(make: Make, name: str, *targets: str, tokens: int = 1024, rank: int = 64, **changes: object) -> Setting:
    preset = find_preset(name)
    assert preset is not None
    layers = next(x for x in ("num_hidden_layers", "n_layer", "n_layers") if x in preset.config)
    model = shape_from_config(name, {**preset.config, layers: 4})
    base = make(machine="gpu", compute_dtype="bf16", load_dtype="bf16", adapter_dtype="bf16", seq_len=tokens)
    adapters = AdapterConfig(rank=rank, targets=targets or ("all-linear",))
    setting = replace(
        base,
        model=model,
        adapter=adapter_shape(model, adapters),
        batch=replace(base.batch, padded=False, fixed=True),
        micro=4,
        rows=4,
        accumulation=1,
        checkpointing=NONE,
        eager_attention=model.architecture in EAGER_BY_DEFAULT,
    )
    return replace(setting, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("bloom-7b1", 9.53),
        ("mpt-7b", 7.13),
        ("gpt-oss-20b", 14.01),
        ("deepseek-v2-lite", 11.15),
        ("gemma-2-9b", 7.92),
        ("opt-6.7b", 4.52),
        ("phi-2", 4.80),
    ],
)
def test_peak_without_checkpointing(make_setting: Make, name: str, counted: float) -> None:
    allocated = estimate_memory(_setting(make_setting, name)).train.allocated_bytes
    assert allocated / GIB == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize(
    ("name", "counted"), [("bloom-7b1", 10.96), ("gpt-oss-20b", 14.59), ("deepseek-v2-lite", 6.61), ("opt-6.7b", 2.34)]
)
def test_peak_of_long_rows_with_checkpointing(make_setting: Make, name: str, counted: float) -> None:
    changes = {"micro": 1, "accumulation": 4, "checkpointing": FULL}
    allocated = estimate_memory(_setting(make_setting, name, tokens=4096, rank=16, **changes)).train.allocated_bytes
    assert allocated / GIB == pytest.approx(counted, rel=0.03)


def test_returned_weights_outlive_their_layer(make_setting: Make) -> None:
    """Recomputing the next layer's scores meets the weights that the layer before has returned."""
    bloom = _setting(make_setting, "bloom-7b1", tokens=4096, micro=1, checkpointing=FULL)
    assert (scores_of(bloom).saved, scores_of(bloom).forward) == (6, 16)
    assert layer_peak(bloom, 0, recomputes=True).why == "the attention scores are recomputed"


def test_the_sink_keeps_scores_in_16_bits(make_setting: Make) -> None:
    assert scores_of(_setting(make_setting, "gpt-oss-20b")).saved == 2


def test_first_parallel_mlp_saves_nothing_without_adapters(make_setting: Make) -> None:
    attention = _setting(make_setting, "phi-2", "q_proj", "v_proj")
    assert unsaved_bytes_per_token(attention) == pytest.approx((3 * 4 + 4) * attention.model.intermediate)
    assert unsaved_bytes_per_token(replace(attention, checkpointing=SOME)) == 0
    assert unsaved_bytes_per_token(_setting(make_setting, "phi-2")) == 0
    assert unsaved_bytes_per_token(_setting(make_setting, "opt-6.7b", "q_proj")) == 0


def test_masks_that_modules_are_built_with(make_setting: Make) -> None:
    setting = _setting(make_setting, "opt-6.7b")
    starcoder = replace(setting, model=replace(setting.model, architecture="gpt_bigcode", max_positions=8192))
    neo = replace(setting, model=replace(setting.model, architecture="gpt_neo", max_positions=2048))
    assert mask_buffer_bytes(setting) == 0
    assert mask_buffer_bytes(starcoder) == 8192**2
    assert mask_buffer_bytes(neo) == 4 * 2048**2
    assert [x.bytes for x in base_terms(neo) if x.name == "mask_buffers"] == [4 * 2048**2]
