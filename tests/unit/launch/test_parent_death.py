"""Tying a process to its parent, with the parent still there and already gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import launch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux only")


def run(call: str) -> int:
    code = f"from launch.parent_death import die_with_parent; die_with_parent({call})"
    repository = Path(launch.__file__).parents[1]
    return subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(repository)}, check=False).returncode


def test_with_its_parent_alive_a_process_goes_on() -> None:
    assert run("") == 0
    assert run(f"expected_parent_pid={os.getpid()}") == 0


def test_with_its_parent_gone_a_process_ends_at_once() -> None:
    assert run(f"expected_parent_pid={os.getpid() + 1}") == -signal.SIGKILL
