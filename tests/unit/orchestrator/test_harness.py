"""The harness runs in a process of its own; whatever becomes of it, the run is done."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator import harness
from orchestrator.harness import command_of, environment_of, run_harness
from orchestrator.planner.plan import dumps
from orchestrator.train.harness import _numbers


def test_a_failure_is_told_and_the_summary_stays(tmp_path: Path) -> None:
    said: list[str] = []
    assert run_harness(tmp_path, {"status": "done"}, said.append) == {"status": "done"}
    assert f"{tmp_path}/plan.json: No such file or directory" in said[-1]
    assert " ".join(command_of(tmp_path)) in said[-1]  # how to try again
    assert (tmp_path / "logs" / "lm_eval.log").is_file()


def test_metrics_are_taken_by_their_names() -> None:
    found = {
        "alias": "arc_easy",
        "acc,none": 0.5,
        "acc_stderr,none": 0.1,
        "acc_norm,none": 1,
        "exact_match,strict": 0.25,
        "exact_match_stderr,strict": "N/A",
        "sample_len": 20,
    }
    assert _numbers(found) == {"acc": 0.5, "acc_norm": 1.0, "exact_match,strict": 0.25}


def _on(plan: Any, device: str) -> Any:
    strategy = plan.chosen.strategy
    strategy = replace(strategy, device_ids=(device, *strategy.device_ids[1:]))
    chosen = replace(plan.chosen, strategy=strategy)
    return replace(plan, chosen=chosen, ranked=(chosen, *plan.ranked[1:]))


def test_it_runs_on_the_first_device_of_the_plan(
    plan_for: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _on(plan_for("8b", "1x24gb", tokens=2048), "GPU-00000007")
    found = environment_of(plan, tmp_path, {"CUDA_VISIBLE_DEVICES": "0", "HOME": "/home/u"})
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("GPU-00000007", "PCI_BUS_ID")
    assert (found["HOME"], found["PYTHONSAFEPATH"]) == ("/home/u", "1")
    drawn = environment_of(_on(plan, "drawn-7"), tmp_path, {"CUDA_VISIBLE_DEVICES": "3"})
    assert drawn["CUDA_VISIBLE_DEVICES"] == "3"

    given: list[dict[str, str]] = []

    def run(*_: object, env: dict[str, str], **__: object) -> Any:
        given.append(env)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(harness, "subprocess", SimpleNamespace(run=run, STDOUT=0))
    (tmp_path / "plan.json").write_text(dumps(plan))
    said: list[str] = []
    run_harness(tmp_path, {}, said.append)
    assert given[0]["CUDA_VISIBLE_DEVICES"] == "GPU-00000007"
    assert "again: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=GPU-00000007 " in said[-1]
