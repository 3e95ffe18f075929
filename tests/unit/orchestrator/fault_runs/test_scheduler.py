"""Taking back what was done to a node, whatever state it is in by then."""

from __future__ import annotations

import os
from pathlib import Path

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
