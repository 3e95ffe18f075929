"""Terms of ZeRO-3 by hand; `bench/own_engines.py` measures the same ones on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Checkpointing, Engine, Offload, Quant
from orchestrator.estimate import base
from orchestrator.estimate.memory import adapter_terms, estimate_memory
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.zero3 import gathered_at_head, gathered_bytes, held_bytes, knobs_of, layer_elements

FP32 = 4
Build = Callable[..., Setting]


def terms_of(setting: Setting) -> dict[str, int]:
    return {term.name: term.bytes for term in adapter_terms(setting)}


def with_knobs(setting: Setting, **changes: object) -> Setting:
    return replace(setting, zero3=replace(knobs_of(setting), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("offload", [Offload.none, Offload.cpu])
def test_states_of_a_cpu_rank(make_setting: Build, offload: Offload) -> None:
    setting = with_knobs(make_setting(engine=Engine.zero3), offload_optimizer=offload)
    share = setting.adapter.params // 2
    bucket = knobs_of(setting).reduce_bucket_size
    copies = 1 if offload is Offload.none else 2
    assert terms_of(setting) == {
        "adapters": FP32 * share,
        "gradients": FP32 * (bucket + copies * share),
        "optimizer": 3 * FP32 * share,
    }


def test_an_offloaded_optimizer_leaves_a_gpu(make_setting: Build) -> None:
    setting = make_setting(engine=Engine.zero3, machine="gpu", compute_dtype="bf16", adapter_dtype="bf16")
    offloaded = with_knobs(setting, offload_optimizer=Offload.cpu)
    assert set(terms_of(setting)) - set(terms_of(offloaded)) == {"optimizer"}
    assert terms_of(offloaded)["gradients"] == 2 * knobs_of(setting).reduce_bucket_size


def test_small_adapters_stay_whole(make_setting: Build) -> None:
    setting = make_setting(engine=Engine.zero3)
    sizes = {16 * x for target in setting.adapter.targets for x in (target.in_features, target.out_features)}
    below, all_of_them = terms_of(with_knobs(setting, param_persistence_threshold=min(sizes) - 1)), max(sizes)
    assert below == terms_of(setting)
    whole = terms_of(with_knobs(setting, param_persistence_threshold=all_of_them))
    assert whole["adapters"] == FP32 * (setting.adapter.params + setting.adapter.params // 2)


def test_one_rank_gathers_nothing(make_setting: Build) -> None:
    setting = make_setting(engine=Engine.zero3, world_size=1)
    assert gathered_bytes(setting) == gathered_at_head(setting) == 0
    names = {term.name for term in estimate_memory(setting).train.terms}
    assert "embedding_gather" not in names


@given(limits=st.lists(st.integers(0, 10**8), min_size=2, max_size=2))
def test_the_window_follows_the_live_limit(make_setting: Build, limits: list[int]) -> None:
    setting = make_setting(engine=Engine.zero3)
    small, large = (gathered_bytes(with_knobs(setting, max_live_parameters=x)) for x in sorted(limits))
    everything = gathered_bytes(with_knobs(setting, max_live_parameters=10**12))
    assert small <= large <= everything
    layer = gathered_bytes(with_knobs(setting, max_live_parameters=0))
    assert 0 < layer <= small
    assert layer < layer_elements(setting) * FP32 <= everything


@pytest.mark.parametrize(
    ("changes", "is_held"),
    [
        ({}, True),
        ({"checkpointing": Checkpointing.full}, False),
        ({"quant": Quant.none}, False),
        ({"world_size": 1}, False),
    ],
)
def test_the_graph_holds_packed_weights(make_setting: Build, changes: dict[str, object], is_held: bool) -> None:
    setting = make_setting(**{"engine": Engine.zero3, "checkpointing": Checkpointing.none, **changes})
    assert held_bytes(setting) == (base.packed_bytes(setting) if is_held else 0)


def test_a_parameter_that_is_fetched_below_the_limit_goes_beyond_it(make_setting: Build) -> None:
    setting = make_setting(engine=Engine.zero3)
    table = setting.model.vocab * setting.model.hidden
    at, above = (gathered_bytes(with_knobs(setting, max_live_parameters=table + x), table) for x in (0, 1))
    assert at == 0
    largest = max(base.stored_bytes(linear, setting) for linear in setting.model.linears)
    assert largest <= above < 2 * largest, "the largest weight, and its part of norms and adapters"
