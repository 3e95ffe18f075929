"""What of the base may live on a rank after the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from orchestrator.config import Engine, EngineConfig, Offload
from orchestrator.engines.live import base_by_place
from orchestrator.planner.plan import Plan
from orchestrator.train.guard import Held, check_base, planned_base
from topology.units import GIB

Planner = Callable[..., Plan]


def _plan(plan_for: Planner, machine: str, **engine: Any) -> Plan:
    return plan_for("8b", machine, engine=EngineConfig(**engine))


@pytest.mark.parametrize(
    "engine",
    [
        {"name": Engine.ddp},
        {"name": Engine.zero3, "offload_param": Offload.none},
        {"name": Engine.zero3, "offload_param": Offload.cpu},
        {"name": Engine.streamed},
        {"name": Engine.streamed, "host_share": 0.5},
    ],
)
def test_what_was_planned_passes_and_a_tenth_more_does_not(plan_for: Planner, engine: dict[str, Any]) -> None:
    plan = _plan(plan_for, "2x24gb-pcie", **engine)
    planned = planned_base(plan, 0)
    assert check_base(plan, 0, {}, planned) is None
    more = Held(device=planned.device + planned.device // 10 + 2**21, host=planned.host)
    problem = check_base(plan, 0, {"base_packed": more.device}, more)
    assert problem is not None
    assert "were planned" in problem.found


def test_an_offload_that_did_nothing_is_named(plan_for: Planner) -> None:
    plan = _plan(plan_for, "2x24gb-pcie", name=Engine.zero3, offload_param=Offload.cpu)
    planned = planned_base(plan, 0)
    assert planned.host > GIB
    problem = check_base(plan, 0, {}, Held(device=planned.total))
    assert problem is not None
    assert "offloading has not taken effect" in problem.found


def test_a_cut_that_did_nothing_is_named(plan_for: Planner) -> None:
    plan = _plan(plan_for, "2x24gb-pcie", name=Engine.streamed, shards=(7.0, 3.0))
    first, second = planned_base(plan, 0), planned_base(plan, 1)
    assert first.device > second.device + GIB
    assert check_base(plan, 1, {}, first) is not None


def test_bytes_are_told_by_place() -> None:
    base = torch.zeros(8, dtype=torch.uint8)
    named = {
        "base_partition": [base, base[:4], torch.zeros(16, dtype=torch.uint8, device="meta")],
        "adapters": [torch.zeros(32, dtype=torch.uint8)],
    }
    assert base_by_place(named)["cpu"] == base.nbytes
