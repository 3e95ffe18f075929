"""Adapters in a smaller rank: the last lever but one where memory runs out, and only where the user allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.calibration_file import Chosen
from orchestrator.config import AdapterConfig, BatchConfig, ResizeConfig
from orchestrator.errors import NothingFits
from orchestrator.planner.events import OutOfMemory
from orchestrator.planner.plan import Plan, dumps, loads
from orchestrator.planner.replan import Ground, Replanned, replan
from orchestrator.planner.smaller_ranks import with_rank
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from tests.unit.orchestrator.conftest import MODELS
from topology.presets import preset

_EVENT = OutOfMemory(where="device", phase="train")


def _ladder(plan_for: Callable[..., Plan], **adapter: Any) -> tuple[Plan, list[Replanned]]:
    """The first plan, and all that follow one out of memory after the other."""
    stats = DataStats(rows=1000, eval_rows=50, mean_tokens=512, max_tokens=1024, total_tokens=512_000, source="counted")
    shape = shape_from_config("7b", {"model_type": "llama", **MODELS["7b"]})
    ground = Ground(topology=preset("1x24gb"), model=shape, data=stats, known=Chosen())
    batch = BatchConfig(global_=2)
    first = plan = plan_for("7b", "1x24gb", tokens=1024, batch=batch, adapter=AdapterConfig(rank=64, **adapter))
    found: list[Replanned] = []
    for _ in range(40):
        try:
            again = replan(plan, ground, _EVENT)
        except NothingFits:
            return first, found
        found.append(again)
        plan = loads(dumps(again.plan))
    raise AssertionError("no end")


def test_ranks_get_smaller_last_and_only_where_it_is_allowed(plan_for: Callable[..., Plan]) -> None:
    first, found = _ladder(plan_for, resize=ResizeConfig(under_pressure=True, min_rank=16))
    ranks = [again.plan.run_config.adapter.settled_rank for again in found]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] == 64
    assert ranks[-1] == 16
    scales = {again.plan.run_config.adapter.alpha / rank for again, rank in zip(found, ranks, strict=True)}
    assert scales == {first.run_config.adapter.alpha / 64}
    at = ranks.index(next(rank for rank in ranks if rank < 64))
    assert found[at].changes[0].startswith(f"adapters in rank {ranks[at]}, not 64")
    setbacks = found[-1].plan.setbacks
    assert setbacks is not None
    assert setbacks.rank == 16
    assert found[-1].plan.workload.trainable_params * 4 == first.workload.trainable_params
    # What the other levers reach is the same as without.
    _, without = _ladder(plan_for)
    assert all(again.plan.run_config.adapter.rank == 64 for again in without)
    assert [again.plan.chosen.strategy for again in without] == [again.plan.chosen.strategy for again in found[:at]]


@pytest.mark.parametrize("rank", [4, 16])
def test_later_ranks_are_limited_as_well(rank: int) -> None:
    adapter = AdapterConfig(rank=32, resize=ResizeConfig(at=(("10", 8.0), ("20", 64.0)), under_pressure=True))
    limited = with_rank(adapter, rank)
    assert limited.resize.largest == rank
    assert replace(limited.resize, at=()) == replace(adapter.resize, at=())


@pytest.mark.parametrize("rslora", [False, True])
def test_scales_stay(rslora: bool) -> None:
    adapter = AdapterConfig(rank=32, alpha=64, alpha_pattern=(("q_proj", 16.0), ("o_proj", 8.0)), rslora=rslora)
    limited = with_rank(adapter, 8)
    over, under = (32**0.5, 8**0.5) if rslora else (32, 8)
    assert limited.alpha / under == pytest.approx(adapter.alpha / over)
    assert [own / under for _, own in limited.alpha_pattern] == pytest.approx([16 / over, 8 / over])


def test_a_plan_has_room_for_the_largest_rank_of_the_run(plan_for: Callable[..., Plan]) -> None:
    growing = AdapterConfig(rank=16, resize=ResizeConfig(at=(("10", 64.0), ("20", 8.0))))
    plans = [plan_for("7b", "1x24gb", adapter=adapter) for adapter in (growing, AdapterConfig(rank=64))]
    one, other = (plan.workload.trainable_params for plan in plans)
    assert one == other


def test_an_engine_that_cannot_change_ranks_is_no_choice(plan_for: Callable[..., Plan]) -> None:
    asked = AdapterConfig(rank=16, resize=ResizeConfig(at=(("10", 8.0),)))
    plan = plan_for("7b", "2x24gb-pcie", adapter=asked)
    reasons = [entry.reason for entry in plan.rejected if "flat buffers" in entry.reason]
    assert reasons
    assert not any(choice.strategy.zero3 for choice in plan.ranked)
