"""A rank's own faults: told before they come, once whatever restarts, and to one rank alone."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.spec import RUN_MARK
from orchestrator.config import Fault, FaultPhase, FaultsConfig
from orchestrator.faults import act, marks
from orchestrator.faults.inject import Injector

ROOT = Path(__file__).parents[4]
TRAINING = FaultPhase.training


def injector(run_dir: Path, config: FaultsConfig, *, rank: int = 1, attempt: int = 1) -> Injector:
    return Injector(config, run_dir, rank=rank, world_size=2, attempt=attempt)


def events(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


RANK = """
import sys
from pathlib import Path
from launch.spec import RUN_MARK
from orchestrator.config import Fault, FaultPhase, FaultsConfig
from orchestrator.faults.inject import Injector
config = FaultsConfig(name=Fault[sys.argv[2]], step=3)
one = Injector(config, Path(sys.argv[1]), rank=1, world_size=2, attempt=int(sys.argv[3]))
for step in range(1, 6):
    one.reached(FaultPhase.training, step)
    print(step, flush=True)
"""


def start(run_dir: Path, fault: str, attempt: int) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", RANK, str(run_dir), fault, str(attempt)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.returncode, done.stdout.split()


def test_a_rank_is_killed_at_its_step_once(tmp_path: Path) -> None:
    assert start(tmp_path, "kill_rank", 1) == (-9, ["1", "2"])
    (told,) = events(tmp_path)
    expected = {"event": "fault_injected", "fault": "kill_rank", "attempt": 1, "step": 3, "rank": 1, "steps_done": 2}
    assert expected.items() <= told.items()
    assert start(tmp_path, "kill_rank", 2) == (0, ["1", "2", "3", "4", "5"])
    assert len(events(tmp_path)) == 1


def test_a_damaged_checkpoint_needs_one(tmp_path: Path) -> None:
    """It waits for a checkpoint, and the rank dies with it."""
    assert start(tmp_path, "truncate_checkpoint", 1) == (0, ["1", "2", "3", "4", "5"])
    assert not events(tmp_path)
    folder = tmp_path / "checkpoints" / "step-00000002"
    folder.mkdir(parents=True)
    (folder / "moments.safetensors").write_bytes(bytes(100))
    assert start(tmp_path, "truncate_checkpoint", 2) == (-9, ["1", "2"])
    assert (folder / "moments.safetensors").stat().st_size == 50
    assert [told["event"] for told in events(tmp_path)] == ["fault_injected", "checkpoint_damaged"]


def test_the_other_ranks_are_left_alone(tmp_path: Path) -> None:
    config = FaultsConfig(name=Fault.kill_rank, step=1)
    assert injector(tmp_path, config).is_on
    assert not injector(tmp_path, config, rank=0).is_on
    assert not injector(tmp_path, FaultsConfig(step=1)).is_on
    # Rank 0 writes the checkpoints.
    assert injector(tmp_path, replace(config, name=Fault.disk_full), rank=0).is_on


def test_what_cannot_be_done_is_told_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_MARK, raising=False)
    one = injector(tmp_path, FaultsConfig(name=Fault.kill_supervisor, step=1))
    one.reached(TRAINING, 1)
    (told,) = events(tmp_path)
    assert told["event"] == "fault_refused"
    assert "was not started by" in told["why"]


def test_what_others_do_is_refused_by_a_rank(tmp_path: Path) -> None:
    assert not injector(tmp_path, FaultsConfig(name=Fault.slurm_preempt)).is_on
    assert events(tmp_path)[0]["event"] == "fault_refused"


# Whatever starts the rank, without or with the mark of the run.
PARENT = """
import os, subprocess, sys
done = subprocess.run(
    [sys.executable, "-c", *sys.argv[2:]], env={**os.environ, sys.argv[1]: "a run"}, capture_output=True, text=True
)
print(done.returncode, *done.stdout.split())
"""


def parent_of_a_rank(run_dir: Path, fault: str, **marks: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != RUN_MARK}
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, RUN_MARK, RANK, str(run_dir), fault, "1"],
        env={**environ, "PYTHONPATH": str(ROOT), **marks},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("fault", ["kill_launcher", "stop_launcher"])
def test_a_run_that_starts_its_rank_itself_has_no_launcher(tmp_path: Path, fault: str) -> None:
    parent = parent_of_a_rank(tmp_path, fault)
    try:
        said, _ = parent.communicate(timeout=30)
    finally:
        parent.kill()
    assert (parent.returncode, said.split()) == (0, ["0", "1", "2", "3", "4", "5"])
    (told,) = events(tmp_path)
    assert (told["event"], told["why"]) == ("fault_refused", "this rank was not started by a launcher of the run")


def test_a_launcher_of_the_run_is_killed(tmp_path: Path) -> None:
    parent = parent_of_a_rank(tmp_path, "kill_launcher", **{RUN_MARK: "a run"})
    parent.communicate(timeout=30)
    assert parent.returncode == -9
    assert events(tmp_path)[0]["event"] == "fault_injected"


class Parameter:
    """As torch's: hooks change the gradient as it is made."""

    def __init__(self) -> None:
        self.hooks: list[Callable[[float], float]] = []

    def register_hook(self, hook: Callable[[float], float]) -> Any:
        self.hooks.append(hook)
        handle = type("Handle", (), {})()
        handle.remove = lambda: self.hooks.remove(hook)
        return handle

    def gradient(self) -> float:
        found = 1.0
        for hook in self.hooks:
            found = hook(found)
        return found


def test_gradients_are_nan_in_one_step_alone(tmp_path: Path) -> None:
    parameter = Parameter()
    one = injector(tmp_path, FaultsConfig(name=Fault.nan_gradients, step=2))
    one.parameters = lambda: [parameter]
    seen = {}
    for step in (1, 2, 3):
        one.reached(TRAINING, step)
        one.reached(TRAINING, step, 1)
        seen[step] = math.isnan(parameter.gradient())
        one.reached(TRAINING, step)
    assert seen == {1: False, 2: True, 3: False}


def test_a_slow_rank_sleeps_for_what_it_computed_not_for_what_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    used = iter([0.0, 7.0, 7.0, 7.0, 9.0, 9.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(used))
    monkeypatch.setattr(time, "sleep", slept.append)
    one = injector(tmp_path, FaultsConfig(name=Fault.slow_rank, step=2, factor=3.0))
    one.reached(TRAINING, 1)
    assert slept == []
    one.reached(TRAINING, 2)
    one.reached(TRAINING, 2, 1)
    assert slept == [0.0, 4.0]


def test_a_slow_rank_stays_slow_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    config = FaultsConfig(name=Fault.slow_rank, step=2)
    injector(tmp_path, config).reached(TRAINING, 2)
    injector(tmp_path, config, attempt=2).reached(TRAINING, 1)
    assert len(slept) == 2
    assert len(events(tmp_path)) == 1


def test_two_processes_cannot_both_do_it(tmp_path: Path) -> None:
    assert marks.mark(tmp_path, Fault.hang, 3, {})
    assert not marks.mark(tmp_path, Fault.hang, 3, {})
    assert marks.mark(tmp_path, Fault.hang, 4, {})
    assert marks.fired(tmp_path, Fault.hang) == {3, 4}
    assert marks.fired(tmp_path, Fault.kill_rank) == set()


def test_memory_runs_out_with_the_error_of_the_allocator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise MemoryError

    monkeypatch.setattr(act, "exhaust_host", refuse)
    one = injector(tmp_path, FaultsConfig(name=Fault.out_of_memory, step=1, phase=FaultPhase.evaluating))
    one.reached(TRAINING, 1)
    with pytest.raises(MemoryError):
        one.reached(FaultPhase.evaluating, 1)
    assert events(tmp_path)[0]["steps_done"] == 1
