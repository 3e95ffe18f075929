"""Real ranks under each launcher: they meet, and however a run ends, all of it ends.

The run is executed by a driver process, which a test may kill.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

DRIVER = Path(__file__).with_name("driver.py")
REPOSITORY = Path(__file__).parents[3]

ALL_REDUCE = """
import os, sys, torch
import torch.distributed as dist
from launch.parent_death import die_with_parent
die_with_parent()
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {os.environ['LOCAL_WORLD_SIZE']} sum {value.item()} {sys.argv[1:]}")
print(f"stderr of {dist.get_rank()}", file=sys.stderr)
print(f"devices {os.environ['CUDA_VISIBLE_DEVICES']!r} {os.getcwd()}")
dist.destroy_process_group()
"""

# Blocks for ever, and ignores SIGTERM as a rank inside a collective does: only die_with_parent or SIGKILL ends it.
STUBBORN = """
import os, signal
from launch.parent_death import die_with_parent
die_with_parent()
signal.signal(signal.SIGTERM, lambda *_: None)
with open(f"{os.environ['RANK']}.pid", "w") as file:
    print(os.getpid(), file=file)
while True:
    signal.pause()
"""
# Someone else's module: knows nothing of us.
UNAWARE = STUBBORN.replace("die_with_parent()\n", "\n").replace("signal.signal(", "0 and signal.signal(")
# Finishes its step when asked to stop.
POLITE = STUBBORN.replace("lambda *_: None", "lambda *_: (print('saved', flush=True), os._exit(0))")


def wait_until(condition: Callable[[], bool], *, seconds: float) -> float:
    """Poll `condition`; return how long it took, or fail after `seconds`."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "the condition did not come true in time"
        time.sleep(0.02)
    return time.monotonic() - start


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Driven:
    """A driver process and the run directory it works in."""

    def __init__(self, run_dir: Path, process: subprocess.Popen[str]) -> None:
        self.run_dir = run_dir
        self.process = process

    def rank_pids(self, count: int) -> list[int]:
        """Wait until all ranks have written their pid; in the order of ranks."""
        files = [self.run_dir / f"{rank}.pid" for rank in range(count)]
        wait_until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), seconds=60)
        return [int(file.read_text()) for file in files]

    def tree(self) -> list[int]:
        """All processes below the driver."""
        return [process.pid for process in psutil.Process(self.process.pid).children(recursive=True)]

    def outcome(self) -> dict[str, Any]:
        """What `execute` returned, once the driver has ended."""
        self.process.wait(timeout=60)
        return dict(json.loads((self.run_dir / "outcome.json").read_text()))


Drive = Callable[..., Driven]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    """Start `source` as a module on a backend; whatever is left at the end of the test is killed."""
    started: list[Driven] = []
    seen: set[int] = set()

    def start(backend: str, source: str, *, grace_seconds: float = 10.0) -> Driven:
        (tmp_path / "rank_module.py").write_text(source)
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), backend, "rank_module", str(tmp_path), str(grace_seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        started.append(Driven(tmp_path, process))
        return started[-1]

    yield start
    for driven in started:
        if driven.process.poll() is None:
            seen |= set(driven.tree())
            driven.process.kill()
        seen |= {int(file.read_text() or 0) for file in driven.run_dir.glob("*.pid")} - {0}
        driven.process.communicate()
    for pid in filter(is_alive, seen):
        os.kill(pid, signal.SIGKILL)


def test_torchrun_shows_rank_0_live_and_keeps_every_ranks_log(drive: Drive, tmp_path: Path) -> None:
    driven = drive("torchrun", ALL_REDUCE)
    shown, _ = driven.process.communicate(timeout=110)
    assert driven.outcome() == {"returncode": 0, "stopped_by_signal": None, "leftovers": []}
    # Whole lines: no prefix, and nothing of rank 1.
    assert sorted(shown.splitlines()) == [f"devices '' {tmp_path}", "rank 0 of 2 sum 3.0 ['--text=a b']", "stderr of 0"]
    (attempt,) = tmp_path.glob("logs/attempt-1_*/attempt_0")
    for rank in range(2):
        assert f"rank {rank} of 2 sum 3.0" in (attempt / str(rank) / "stdout.log").read_text()
        assert (attempt / str(rank) / "stderr.log").read_text() == f"stderr of {rank}\n"


def test_deepspeeds_launcher_shows_all_ranks(drive: Drive, tmp_path: Path) -> None:
    driven = drive("deepspeed", ALL_REDUCE)
    shown, _ = driven.process.communicate(timeout=110)
    assert driven.outcome() == {"returncode": 0, "stopped_by_signal": None, "leftovers": []}
    for rank in range(2):
        assert f"rank {rank} of 2 sum 3.0 ['--text=a b']" in shown
        assert f"stderr of {rank}" in shown
    assert f"devices '-1,-1' {tmp_path}" in shown
    assert (tmp_path / "logs" / "attempt-1.log").read_text() == shown


def test_local_needs_no_launcher(drive: Drive) -> None:
    driven = drive("local", ALL_REDUCE)
    shown, _ = driven.process.communicate(timeout=110)
    assert driven.outcome()["returncode"] == 0
    assert "rank 0 of 1 sum 1.0 ['--text=a b']" in shown


@pytest.mark.parametrize("backend", ["local", "torchrun", "deepspeed"])
def test_a_killed_supervisor_takes_unaware_ranks_along(drive: Drive, backend: str) -> None:
    driven = drive(backend, UNAWARE)
    ranks = driven.rank_pids(1 if backend == "local" else 2)
    tree = driven.tree()
    assert set(ranks) <= set(tree)
    driven.process.kill()
    wait_until(lambda: not any(map(is_alive, tree)), seconds=3)


def test_a_killed_supervisor_takes_a_stubborn_rank_along(drive: Drive) -> None:
    driven = drive("local", STUBBORN)
    (rank,) = driven.rank_pids(1)
    driven.process.kill()
    wait_until(lambda: not is_alive(rank), seconds=3)


@pytest.mark.parametrize("backend", ["torchrun", "deepspeed"])
def test_a_killed_rank_ends_the_run_with_an_error(drive: Drive, backend: str) -> None:
    driven = drive(backend, UNAWARE)
    first, second = driven.rank_pids(2)
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: driven.process.poll() is not None, seconds=10)
    outcome = driven.outcome()
    assert outcome["returncode"] > 0
    assert outcome["leftovers"] == []
    assert not is_alive(first)


@pytest.mark.parametrize("backend", ["torchrun", "deepspeed"])
def test_a_killed_launcher_takes_stubborn_ranks_along(drive: Drive, backend: str) -> None:
    driven = drive(backend, STUBBORN)
    ranks = driven.rank_pids(2)
    (launcher,) = [pid for pid in driven.tree() if pid not in ranks]
    os.kill(launcher, signal.SIGKILL)
    assert driven.outcome()["returncode"] == -signal.SIGKILL
    assert not any(map(is_alive, ranks))


@pytest.mark.parametrize("backend", ["torchrun", "deepspeed"])
def test_a_signal_reaches_the_ranks_and_they_may_finish(drive: Drive, backend: str) -> None:
    driven = drive(backend, POLITE)
    ranks = driven.rank_pids(2)
    driven.process.send_signal(signal.SIGINT)
    shown, _ = driven.process.communicate(timeout=60)
    outcome = driven.outcome()
    assert outcome["stopped_by_signal"] == signal.SIGINT
    assert outcome["leftovers"] == []
    assert outcome["returncode"] != 0
    assert "saved" in shown
    assert not any(map(is_alive, ranks))


def test_what_ignores_the_signal_is_killed_after_the_grace(drive: Drive) -> None:
    driven = drive("torchrun", STUBBORN, grace_seconds=0.5)
    tree = [*driven.rank_pids(2), *driven.tree()]
    driven.process.send_signal(signal.SIGTERM)
    wait_until(lambda: driven.process.poll() is not None, seconds=10)
    outcome = driven.outcome()
    assert outcome["stopped_by_signal"] == signal.SIGTERM
    assert outcome["returncode"] == -signal.SIGKILL
    assert len(outcome["leftovers"]) == 2
    assert not any(map(is_alive, tree))


def test_a_second_signal_does_not_wait_for_the_grace(drive: Drive) -> None:
    driven = drive("local", STUBBORN, grace_seconds=100)
    (rank,) = driven.rank_pids(1)
    driven.process.send_signal(signal.SIGTERM)
    driven.process.send_signal(signal.SIGINT)
    wait_until(lambda: driven.process.poll() is not None, seconds=10)
    # Which of two pending signals comes first is the system's choice.
    assert driven.outcome()["stopped_by_signal"] in {signal.SIGTERM, signal.SIGINT}
    assert not is_alive(rank)
