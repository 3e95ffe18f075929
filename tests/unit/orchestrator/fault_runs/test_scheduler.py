"""When the scheduler does what was asked; and taking it back, whatever state a node is in by then."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import Fault, FaultsConfig
from orchestrator.fault_runs.scheduler import Scheduler


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `scontrol` that tells of a node in the state in the file returned; updates fail unless it is DOWN."""
    state, program = tmp_path / "state", tmp_path / "scontrol"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1 $2" in\n"show node") echo "NodeName=node1 State=$(cat {state}) CPUTot=1";;\n'
        f'"update nodename=node1") grep -q "^DOWN$" {state} && echo IDLE > {state} '
        '|| { echo "Invalid node state specified" >&2; exit 1; };;\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return state


def _downed(run_dir: Path, node: str = "node1") -> Scheduler:
    made = Scheduler(FaultsConfig(), Fault.slurm_node_down, run_dir)
    made._node = node
    return made


def test_a_node_that_is_down_is_brought_back(node: Path, tmp_path: Path) -> None:
    node.write_text("DOWN\n")
    assert not _downed(tmp_path).mend()
    assert node.read_text() == "IDLE\n"


def test_a_node_that_came_back_by_itself_is_left_alone(node: Path, tmp_path: Path) -> None:
    node.write_text("IDLE\n")
    assert not _downed(tmp_path).mend()


def test_a_node_that_stays_away_is_told_with_the_command(node: Path, tmp_path: Path) -> None:
    node.write_text("DOWN*+DRAIN\n")
    told = _downed(tmp_path).mend()
    assert told.startswith("node node1 could not be brought back (Invalid node state specified)")
    assert "scontrol update nodename=node1 state=resume" in told


def test_a_scheduler_that_is_gone_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "node node1 could not be brought back" in _downed(tmp_path).mend()


def test_nothing_was_done_and_nothing_is_taken_back(tmp_path: Path) -> None:
    assert not _downed(tmp_path, "").mend()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `scontrol` that shows a job as it stands in the file returned, and takes each node down."""
    shown, program = tmp_path / "job", tmp_path / "scontrol"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1 $2" in\n"show job") cat {shown} || exit 1;;\n'
        '"show hostnames") [ "$3" = "node[1-2]" ] && printf "node1\\nnode2\\n" || exit 1;;\nesac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("orchestrator.fault_runs.scheduler._ASK_SECONDS", 0.0)
    return shown


def _submitted(run_dir: Path, **faults: Any) -> Scheduler:
    (run_dir / "launch").mkdir()
    (run_dir / "launch" / "submitted.json").write_text(json.dumps({"job": "7"}))
    return Scheduler(FaultsConfig(**faults), Fault.slurm_node_down, run_dir)


def _events(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("step", [0, 1])
def test_a_job_that_waits_for_its_turn_is_waited_for(job: Path, tmp_path: Path, step: int) -> None:
    scheduler = _submitted(tmp_path, step=step, rank=1)
    for waiting in ("PENDING Reason=Resources NodeList=(null)", "CONFIGURING NodeList=node[1-2]"):
        job.write_text(f"JobId=7 JobState={waiting} NumNodes=2\n")
        scheduler.look()
    assert not _events(tmp_path)
    job.write_text("JobId=7 JobState=RUNNING NodeList=node[1-2] NumNodes=2\n")
    scheduler.look()
    scheduler.look()
    (told,) = _events(tmp_path)
    assert (told["event"], told["node"]) == ("fault_injected", "node2")


def test_a_scheduler_that_does_not_know_the_job_is_told_once(job: Path, tmp_path: Path) -> None:
    scheduler = _submitted(tmp_path, step=1)
    for _ in range(2):
        scheduler.look()
    assert [event["event"] for event in _events(tmp_path)] == ["fault_refused"]
    assert not job.exists()
