"""Memory and time of a rank whose layers stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config import Checkpointing, Engine, Quant
from orchestrator.estimate.extents import layer_bytes, outside_bytes, slot_bytes, stored_of
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.streamed import load_peak
from orchestrator.estimate.streamed_share import StreamedShare
from orchestrator.estimate.time import estimate_time, schedule_of, timeline_of

Builder = Callable[..., Setting]
GPU = {"machine": "gpu", "compute_dtype": "bf16", "load_dtype": "bf16"}


def streamed(make: Builder, share: dict[str, Any] | None = None, **changes: Any) -> Setting:
    """Two ranks that hold half of the layers each, with a window of two."""
    setting = make(engine=Engine.streamed, world_size=2, **changes)
    sizes = layer_bytes(setting.model, stored_of(setting))
    held: dict[str, Any] = {
        "device_bytes": sum(sizes) // 2,
        "window_bytes": slot_bytes(sizes, 2),
        "window": 2,
        "layers": len(sizes),
        "ranks": 2,
        "fetched_layers": len(sizes) - 2,
        "gather_seconds": 1e-3,
        "gathered_bytes": sum(sizes) / 2,
    }
    return replace(setting, streamed=StreamedShare(**(held | (share or {}))))


@pytest.mark.parametrize("quant", [Quant.nf4, Quant.int8, Quant.none])
@pytest.mark.parametrize("machine", [{}, GPU])
def test_terms_add_up_in_every_phase(make_setting: Builder, quant: Quant, machine: dict[str, Any]) -> None:
    setting = streamed(make_setting, quant=quant, **machine)
    memory = estimate_memory(setting)
    for phase in (memory.load, memory.train, memory.save):
        assert sum(term.bytes for term in phase.terms) == phase.allocated_bytes
        assert sum(term.bytes for term in phase.host_terms) == phase.host_bytes
        names = {term.name: term.bytes for term in phase.terms}
        own = setting.streamed
        assert own is not None
        assert names["base_shard"] == own.device_bytes
        assert names["window"] == own.window_bytes
        outside = outside_bytes(setting.model, stored_of(setting), is_gpu=setting.machine.is_gpu)
        assert names["base_unquantised"] == outside
        assert not {"base_packed", "absmax"} & set(names)


def test_what_trains_is_that_of_ddp(make_setting: Builder) -> None:
    base = {"base_shard", "window", "base_unquantised", "base_packed", "absmax"}
    for passes in ({}, {"accumulation": 1, "micro": 8}):
        ours = estimate_memory(streamed(make_setting, **GPU, **passes)).train.terms
        theirs = estimate_memory(make_setting(world_size=2, **GPU, **passes)).train.terms
        assert [x for x in ours if x.name not in base] == [x for x in theirs if x.name not in base]


def test_host_memory_holds_what_waits_there(make_setting: Builder) -> None:
    own = {"host_bytes": 123, "nvme_bytes": 4_000}
    memory = estimate_memory(streamed(make_setting, own, **GPU))
    for phase in (memory.load, memory.train, memory.save):
        terms = {term.name: term.bytes for term in phase.host_terms}
        assert terms["offloaded_base"] == 123
        assert terms["drive_staging"] == 1_000  # of one of four layers
        assert phase.pinned_bytes == 1_123


def test_loading_holds_a_tensor_not_the_model(make_setting: Builder) -> None:
    """A wide model: what loading takes beside the share does not grow with the layers."""
    wide = {"hidden_size": 1024, "intermediate_size": 4096}
    few, many = (streamed(make_setting, model={**wide, "num_hidden_layers": n}, **GPU) for n in (4, 16))
    assert load_peak(few).beside == load_peak(many).beside
    linear = 1024 * 4096
    assert load_peak(few).raw == 2 * max(linear, 4096 * 1024)
    assert estimate_memory(few).load.host_bytes < estimate_memory(replace(few, engine=Engine.ddp)).load.host_bytes


@pytest.mark.parametrize("machine", [{}, GPU])
def test_time_terms_add_up_and_name_what_is_fetched(make_setting: Builder, machine: dict[str, Any]) -> None:
    time = estimate_time(streamed(make_setting, **machine))
    assert sum(term.seconds for term in time.terms) == pytest.approx(time.step_seconds, rel=1e-6)
    names = {term.name: term for term in time.terms}
    # Two of four layers are still there at each turn: two fetched in each of two passes of four micro-steps.
    assert names["base_gather"].total_seconds == pytest.approx(4 * 2 * 2 * 1e-3)
    assert "gathers" not in names


def test_recomputing_fetches_no_layer_again(make_setting: Builder) -> None:
    """A layer that is recomputed is at hand for its own backward pass."""
    full = estimate_time(streamed(make_setting, checkpointing=Checkpointing.full, **GPU))
    none = estimate_time(streamed(make_setting, **GPU))
    totals = [next(x.total_seconds for x in time.terms if x.name == "base_gather") for time in (full, none)]
    assert totals[0] == totals[1]


def test_fetching_costs_what_computing_does_not_hide(make_setting: Builder) -> None:
    alone = estimate_time(make_setting(world_size=2, **GPU)).step_seconds

    def step(**share: Any) -> float:
        return estimate_time(streamed(make_setting, share, **GPU)).step_seconds

    assert alone <= step(gather_seconds=0.0) <= step(gather_seconds=1e-4) < step(gather_seconds=1.0)
    slow = step(gather_seconds=1.0, fetched_layers=4)
    assert slow == pytest.approx(4 * 2 * 4 * 1.0, rel=0.05)  # the links alone
    assert step(gather_seconds=0.0, copy_seconds=1.0, fetched_layers=4) == pytest.approx(slow, rel=0.05)
    both = {"gather_seconds": 1.0, "copy_seconds": 1.0, "fetched_layers": 4}
    assert step(**both, shares_path=True) == pytest.approx(2 * slow, rel=0.05)
    assert step(**both) < 1.6 * slow


@pytest.mark.parametrize("window", [1, 2, 4])
def test_so_many_layers_are_fetched_ahead(make_setting: Builder, window: int) -> None:
    schedule = schedule_of(streamed(make_setting, {"window": window}, **GPU))
    assert schedule.forward.window == schedule.backward.window == window - 1


def test_a_picture_shows_gathers_beside_layers(make_setting: Builder) -> None:
    streams = {segment.stream for segment in timeline_of(streamed(make_setting, {"copy_seconds": 1e-3}, **GPU))}
    assert len(streams) == 4


def test_a_streamed_setting_has_its_share(make_setting: Builder) -> None:
    with pytest.raises(ValueError, match="carries its share"):
        estimate_memory(make_setting(engine=Engine.streamed))
