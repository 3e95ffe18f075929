"""The text for people, held whole for one machine and by parts for the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.planner.explain import explain, explain_estimate
from orchestrator.planner.plan import Plan
from topology.presets import preset_names

GOLDEN = Path(__file__).parent / "golden"
Planner = Callable[..., Plan]


@pytest.mark.parametrize(
    ("name", "model", "machine"),
    [("8b-2x24gb-pcie", "8b", "2x24gb-pcie"), ("8b-4xv100-16gb", "8b", "4xv100-16gb"), ("tiny-cpu", "tiny", "cpu")],
)
def test_golden(plan_for: Planner, name: str, model: str, machine: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = explain(plan_for(model, machine, tokens=1024))
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_estimate_lists_every_phase_and_time_term(plan_for: Planner) -> None:
    plan = plan_for("8b", "2x24gb-pcie")
    text = explain_estimate(plan)
    for words in ("while loading", "while training", "while saving", "Time of a step"):
        assert words in text
    assert all(f"  {term.name} " in text for term in plan.chosen.estimate.time_terms)


@pytest.mark.parametrize("machine", preset_names())
def test_every_preset_is_explained(plan_for: Planner, machine: str) -> None:
    plan = plan_for("tiny", machine)
    text = explain(plan)
    assert text.startswith("Machine  ")
    assert plan.chosen.strategy.label in text
    assert all(reason in text for reason in plan.reasons)
    assert 3 <= len(plan.reasons) <= 8
    assert max(len(line) for line in text.splitlines()) < 400
