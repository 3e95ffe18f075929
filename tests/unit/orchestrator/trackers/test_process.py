"""The process of the trackers when a launch ends in any way: it says how the run ended, and then ends by itself."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from launch.execute import Outcome, execute
from launch.request import Request
from launch.spec import HOST_MARK, LATE_MARK, RUN_MARK, Backend

ROOT = Path(__file__).parents[4]
# The process as it is, with a tracker that takes its time.
TRACKER = """
import os, sys, time
from types import SimpleNamespace as Bag
from orchestrator.trackers import follow
run_dir = sys.argv[1]
def write(name, text):
    with open(f"{run_dir}/.{name}", "w") as file: file.write(text)
    os.rename(f"{run_dir}/.{name}", f"{run_dir}/{name}")
class Slow(follow.Tracker):
    name = "slow"
    def open(self, about):
        return {}
    def log(self, points):
        pass
    def close(self, status, summary):
        time.sleep(SECONDS)
        write("told", status)
        return "there"
strategy = Bag(label="", engine=Bag(value=""), world_size=1)
follow.loads = lambda _: Bag(
    chosen=Bag(strategy=strategy), run_config=Bag(monitor=Bag(project="")), machine=""
)
follow.dump_config = lambda _: {}
follow._made = lambda _: Slow()
follow._LEFT_SECONDS = LEFT
write("pid", " ".join([str(os.getpid()), *os.environ]))
follow.main(sys.argv[1:])
"""
# A launcher and its rank in one.
RANK = """
import os, signal, sys, time
from pathlib import Path
from orchestrator.trackers import process
process.MODULE = "slow_tracker"
run_dir = Path(sys.argv[1])
process.TrackerProcess(run_dir, ["slow"], lambda line: None)
while not (run_dir / "pid").exists():
    time.sleep(0.02)
if sys.argv[2] == "hang":
    time.sleep(300)
os._exit(1)
"""


def ran(run_dir: Path, end: str, *, seconds: float = 2.0, left: float = 60.0) -> Outcome:
    """A launch that fails, or hangs until it is ended as such."""
    tracker = TRACKER.replace("SECONDS)", f"{seconds})").replace("= LEFT", f"= {left}")
    (run_dir / "slow_tracker.py").write_text(tracker)
    (run_dir / "plan.json").touch()
    request = Request(
        argv=(sys.executable, "-c", RANK, str(run_dir), end),
        env=((HOST_MARK, "run 0"), ("PYTHONPATH", f"{run_dir}{os.pathsep}{ROOT}")),
        cwd=str(run_dir),
        log_path=str(run_dir / "logs" / "a.log"),
        backend=Backend.local,
    )
    user_env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def look() -> str | None:
        return "it hangs" if end == "hang" and (run_dir / "pid").exists() else None

    return execute(request, user_env=user_env, on_line=print, on_poll=look)


def came(path: Path, seconds: float = 20.0) -> str:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"no {path.name}"
        time.sleep(0.02)
    return path.read_text()


def ended(run_dir: Path, seconds: float = 20.0) -> bool:
    pid = int((run_dir / "pid").read_text().split()[0])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("end", ["fail", "hang"])
def test_a_run_that_fails_is_told(tmp_path: Path, end: str) -> None:
    """Closing takes longer than what a launch leaves behind gets before it is killed."""
    outcome = ran(tmp_path, end)
    assert outcome.returncode != 0
    assert came(tmp_path / "told") == "failed"
    assert ended(tmp_path)
    assert not outcome.leftovers or "slow_tracker" not in " ".join(outcome.leftovers)


def test_it_bears_no_mark_of_the_ranks(tmp_path: Path) -> None:
    """Those of one host are killed by it as soon as its launcher has ended."""
    ran(tmp_path, "fail", seconds=0.0)
    names = (tmp_path / "pid").read_text().split()[1:]
    assert [name in names for name in (RUN_MARK, HOST_MARK, LATE_MARK)] == [False, False, True]


def test_a_tracker_that_never_ends_does_not_stay(tmp_path: Path) -> None:
    ran(tmp_path, "fail", seconds=300.0, left=0.3)
    assert ended(tmp_path)
    assert not (tmp_path / "told").exists()
