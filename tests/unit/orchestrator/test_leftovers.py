"""What an earlier start has left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.spec import RUN_MARK
from orchestrator.leftovers import end_leftovers, leftovers

SLEEP = "import time; time.sleep({})"


def started(run_dir: Path, seconds: float, *words: str) -> subprocess.Popen[bytes]:
    argv = (sys.executable, "-c", SLEEP.format(seconds), *words)
    process = subprocess.Popen(argv, env={**os.environ, RUN_MARK: str(run_dir)})
    while not leftovers(run_dir):  # its environment is there once it runs
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(("words", "least_seconds"), [(("torch.distributed.run",), 0.0), (("a rank",), 0.5)])
def test_ranks_have_their_time_and_launchers_without_them_none(
    tmp_path: Path, words: tuple[str, ...], least_seconds: float
) -> None:
    process = started(tmp_path, 60, *words)
    said: list[str] = []
    began = time.monotonic()
    end_leftovers(tmp_path, said.append, grace_seconds=0.5)
    assert least_seconds <= time.monotonic() - began < 10
    assert leftovers(tmp_path) == []
    assert f"{process.pid}" in said[-1]


def test_one_that_ends_by_itself_is_not_killed(tmp_path: Path) -> None:
    process = started(tmp_path, 0.3)
    end_leftovers(tmp_path, lambda _: None, grace_seconds=20)
    assert process.wait(timeout=10) == 0


def test_nothing_is_left(tmp_path: Path) -> None:
    said: list[str] = []
    end_leftovers(tmp_path, said.append)
    assert said == []
