"""`logs follow=true` of a run on this host; of a job under SLURM see tests/cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import main

# Stands for the process that watches a run: its words and its number in the lock are what it is known by.
WATCHER = """
import os, sys, time
path = sys.argv[2]
open(path + "/.lock", "w").write(str(os.getpid()))
with open(path + "/logs/run-1.log", "w", buffering=1) as log:
    print("ready", flush=True)
    for number in range(4):
        time.sleep(0.3)
        log.write(f"line {number}\\n")
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "plan.json").write_text("{}")
    return tmp_path


def test_lines_come_until_the_run_has_ended(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [sys.executable, "-c", WATCHER, "orchestrator", str(run_dir)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
        assert main(["logs", str(run_dir), "follow=true"]) == 0
    assert capsys.readouterr().out == "line 0\nline 1\nline 2\nline 3\n"


def test_a_run_that_has_ended_is_shown_whole(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "logs" / "run-1.log").write_text("all\nof it\n")
    assert main(["logs", str(run_dir), "follow=true"]) == 0
    assert capsys.readouterr().out == "all\nof it\n"


def test_before_the_first_start_there_is_nothing_to_follow(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(run_dir), "follow=true"]) == 2
    assert "no output yet" in capsys.readouterr().err
