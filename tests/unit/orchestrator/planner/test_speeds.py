"""What the user says of each rank's speed: rows follow it, and so does the predicted step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.config import BatchConfig, Engine, EngineConfig
from orchestrator.config_codec import parse_config
from orchestrator.errors import UserError
from orchestrator.planner.plan import Plan

Planner = Callable[..., Plan]


def _plan(plan_for: Planner, machine: str = "2x24gb-pcie", **engine: Any) -> Plan:
    return plan_for("8b", machine, engine=EngineConfig(**engine), batch=BatchConfig(global_=32))


@pytest.mark.parametrize("engine", [Engine.ddp, Engine.streamed])
def test_rows_follow_the_speed(plan_for: Planner, engine: Engine) -> None:
    even, uneven = _plan(plan_for, name=engine), _plan(plan_for, name=engine, speeds=(1.0, 1 / 3))
    assert even.chosen.strategy.shares == (16, 16)
    fast, slow = uneven.chosen.strategy.shares
    assert fast / slow == pytest.approx(3, rel=0.2)
    slower = uneven.chosen.estimate.step_seconds / even.chosen.estimate.step_seconds
    assert 1.4 < slower < 1.9  # 1.5 at best, and 3 with equal rows


def test_equal_speeds_change_nothing_but_the_clock(plan_for: Planner) -> None:
    plain, half = _plan(plan_for, name=Engine.ddp), _plan(plan_for, name=Engine.ddp, speeds=(0.5, 0.5))
    assert half.chosen.strategy.shares == plain.chosen.strategy.shares
    assert half.chosen.estimate.step_seconds > 1.5 * plain.chosen.estimate.step_seconds
    assert half.chosen.estimate.memory.train.device_bytes == pytest.approx(
        plain.chosen.estimate.memory.train.device_bytes, rel=0.3
    )


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"speeds": [1, 0]}, "engine.speeds: found"),
        ({"speeds": [1, -1]}, "engine.speeds: found"),
        ({"speeds": [1, 2], "budgets_gib": [1, 2, 3]}, "3 numbers in budgets_gib and 2 numbers in speeds"),
    ],
)
def test_odd_lists_are_refused(engine: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_config({"model": {"path": "m"}, "data": {"path": "d"}, "engine": engine})


def test_one_number_for_each_rank(plan_for: Planner) -> None:
    with pytest.raises(UserError, match="3 numbers for 1 or 2 ranks"):
        _plan(plan_for, name=Engine.ddp, speeds=(1.0, 1.0, 1.0))
