"""The summary people read at the end of a run."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.compose import compose
from orchestrator.inputs import gather, located
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan
from orchestrator.report.text import summary_text

PHASE = {"allocated_bytes": 1, "reserved_bytes": 1, "device_bytes": 800 * 2**20, "host_bytes": 2 * 2**30}


@pytest.fixture(scope="module")
def plan() -> Plan:
    config = located(compose(["experiment=demo"])[0])
    inputs = gather(config)
    return make_plan(config, inputs.topology, inputs.model, inputs.data, "test")


def summary(**changes: Any) -> dict[str, Any]:
    numbers = {"step_seconds": 0.5, "tokens_per_second": 1000.0, "memory": {"train": PHASE}}
    return {
        "steps": 10,
        "samples": 160,
        "world_size": 2,
        "wall_seconds": 12.3,
        "eval_loss_before": 4.0,
        "eval_loss_after": 3.0,
        "eval_row_losses": [1.0],
        "predicted": numbers,
        "measured": numbers | {"step_seconds": 1.0},
        **changes,
    }


def test_predicted_against_measured(plan: Plan) -> None:
    text = summary_text(plan, summary(), Path("/runs/a"))
    assert "held-out 4.0000 before, 3.0000 after (-25.0%)" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("step time")]
    assert row == ["step", "time", "0.500", "s", "1.000", "s", "2.00"]
    assert "device memory" not in text, "on a CPU it is the same as host memory"
    assert "2.0 GiB" in text
    assert "/runs/a/adapter" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eval_loss_after": None}, "not a number"),
        ({"eval_loss_after": None, "eval_row_losses": None}, "no held-out rows"),
        ({"eval_loss_before": None}, "held-out 3.0000 after training"),
    ],
)
def test_losses_that_are_not_there(plan: Plan, changes: dict[str, Any], said: str) -> None:
    assert said in summary_text(plan, summary(**changes), Path("/runs/a"))


def test_a_time_that_was_not_measured(plan: Plan) -> None:
    body = summary()
    body["measured"] = body["measured"] | {"step_seconds": None, "tokens_per_second": None}
    assert "0.500 s" in summary_text(plan, body, Path("/runs/a"))
