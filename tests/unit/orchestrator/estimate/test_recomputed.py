"""Recomputing the first layers alone: bytes and seconds between those of all layers and of none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import Checkpointing, Engine
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.recomputed import mode_text, recomputed_layers
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.time import estimate_time

Make = Callable[..., Setting]
FULL, SELECTIVE, NONE = Checkpointing.full, Checkpointing.selective, Checkpointing.none
DEEP = {"num_hidden_layers": 12}


def _parts(setting: Setting) -> list[Setting]:
    """Nothing recomputed, the first layer, the first two, ... and all."""
    layers = setting.model.layers
    return [
        replace(setting, checkpointing=NONE),
        *(replace(setting, recomputed_layers=count) for count in range(1, layers)),
        setting,
    ]


def _term(setting: Setting, name: str) -> int:
    return sum(term.bytes for term in estimate_memory(setting).train.terms if term.name == name)


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from([FULL, SELECTIVE]),
    engine=st.sampled_from([Engine.ddp, Engine.zero3]),
    machine=st.sampled_from(["gpu", "cpu"]),
    micro=st.integers(1, 16),
    length=st.integers(32, 2048),
    accumulation=st.integers(1, 2),
)
def test_memory_falls_and_time_grows_with_every_layer(
    make_setting: Make, mode: Checkpointing, engine: Engine, machine: str, micro: int, length: int, accumulation: int
) -> None:
    setting = make_setting(model=DEEP, checkpointing=mode, engine=engine, micro=micro, seq_len=length)
    setting = replace(setting, accumulation=accumulation)
    if machine == "gpu":
        setting = replace(setting, machine=make_setting(machine="gpu").machine)
    line = _parts(setting)
    # A layer's input outlives the recomputation of the last layers, which saves nothing: they may cost as much.
    stream = micro * length * setting.model.hidden * 4
    bytes_ = [estimate_memory(part).train.device_bytes for part in line]
    assert all(after <= before + 2 * stream for before, after in pairwise(bytes_))
    assert bytes_[-1] <= bytes_[0]
    seconds = [estimate_time(part).step_seconds for part in line]
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(seconds))
    assert seconds[-1] > seconds[0]


def test_kept_bytes_are_those_of_each_layer(make_setting: Make) -> None:
    setting = make_setting(model=DEEP, machine="gpu", checkpointing=FULL, micro=4, seq_len=512, padded=False)
    none, *_, full = (_term(part, "activations") for part in _parts(setting))
    third = _term(replace(setting, recomputed_layers=4), "activations")
    assert third == pytest.approx(none + (full - none) / 3, abs=2)


def test_a_layer_at_the_end_adds_nothing_to_what_is_kept(make_setting: Make) -> None:
    """The first layers are recomputed when the others are gone, so no whole layer comes on top of them."""
    wide = {**DEEP, "intermediate_size": 4096}
    setting = make_setting(model=wide, machine="gpu", checkpointing=FULL, micro=16, seq_len=4096, padded=False)
    half, none = replace(setting, recomputed_layers=6), replace(setting, checkpointing=NONE)
    assert _term(half, "layer_transient") == _term(none, "layer_transient")
    assert _term(setting, "layer_transient") > 1.5 * _term(half, "layer_transient") > 0


def test_time_is_the_mean_of_all_layers(make_setting: Make) -> None:
    """Where the device is busy all the time; the optimizer and the head take what they take."""
    setting = make_setting(model=DEEP, checkpointing=FULL, micro=8, seq_len=1024)
    none, *parts, full = (estimate_time(part).step_seconds for part in _parts(setting))
    assert parts[5] == pytest.approx((none + full) / 2)


def test_zero3_holds_and_gathers_by_the_layers(make_setting: Make) -> None:
    setting = make_setting(model=DEEP, machine="gpu", checkpointing=FULL, engine=Engine.zero3, micro=1, seq_len=64)
    none, *parts, full = (_term(part, "activations") for part in _parts(setting))
    assert parts[5] == pytest.approx((none + full) / 2, rel=1e-6)
    gathers = [estimate_time(part) for part in _parts(setting)]
    totals = [sum(term.total_seconds for term in time.terms if term.name == "gathers") for time in gathers]
    assert totals[6] == pytest.approx((totals[0] + totals[-1]) / 2)
    assert totals[-1] == pytest.approx(1.5 * totals[0])


def test_numbers_and_words(make_setting: Make) -> None:
    setting = make_setting(model=DEEP, checkpointing=FULL)
    assert recomputed_layers(setting) == 12
    assert recomputed_layers(replace(setting, recomputed_layers=5)) == 5
    assert recomputed_layers(replace(setting, recomputed_layers=5, checkpointing=NONE)) == 0
    assert mode_text(FULL, 5, 12) == "checkpointing full for 5 of 12 layers"
    assert mode_text(FULL, None, 12) == "checkpointing full"
    terms = estimate_memory(replace(setting, recomputed_layers=5)).train.terms
    assert any("full for 5 of 12 layers" in term.why for term in terms)
