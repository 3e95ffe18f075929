"""The life of a run, with small processes in place of ranks: they beat, write checkpoints, and end as they are told."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.request import FileToWrite, Request
from launch.spec import Backend
from orchestrator.attempt_files import STOP_FILE
from orchestrator.compose import compose
from orchestrator.errors import RunFailed, RunStopped, UserError
from orchestrator.inputs import Inputs, gather
from orchestrator.monitor.facts import Facts, Patience
from orchestrator.observing import longest_over_mean
from orchestrator.planner.plan import Plan
from orchestrator.planning import plan_of
from orchestrator.recovery.event import Action, Decision, Ended, Kind
from orchestrator.recovery.observer import Observer
from orchestrator.run_dir import RunDir
from orchestrator.supervise import Attempt
from orchestrator.supervisor import supervise
from topology.model import Topology

ROOT = Path(__file__).parents[3]
# Each attempt does a word of the story: `N:end`, to go N steps on from the newest checkpoint and then end so.
RANK = """
import json, os, signal, sys, time
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from orchestrator.monitor.beat import Heart
run, attempt = Path(sys.argv[1]), int(sys.argv[2])
steps, end = sys.argv[4].split(":", 1)
heart = Heart(run, 0, attempt)
folder = run / "checkpoints"
folder.mkdir(exist_ok=True)
done = max([int(path.name[5:]) for path in folder.glob("step-*")], default=0)
heart.beat("training", step=done)
for step in range(done + 1, done + int(steps) + 1):
    heart.beat("training", step=step)
    (folder / f"step-{step:08d}").mkdir()
print("words of the rank", flush=True)
if end == "done":
    (run / "summary.json").write_text(json.dumps({"status": "done", "steps": step}))
elif end == "stopped":
    (run / "summary.json").write_text(json.dumps({"status": "stopped", "steps": step, "planned_steps": 99}))
elif end.startswith("say "):
    print(end[4:], flush=True)
    sys.exit(1)
elif end == "collected":  # a launcher that waits for its other rank
    rank = os.fork()
    if rank == 0:
        Heart(run, 1, attempt).fail(1)
        os._exit(1)
    os.waitpid(rank, 0)
    log = run / "logs" / f"run-{attempt}_x" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"ValueError: row {attempt} is odd\\n")
    time.sleep(300)
elif end == "silent":
    time.sleep(300)
elif end.startswith("signal"):
    os.kill(os.getpid(), int(end[7:]))
elif end.startswith("code"):
    sys.exit(int(end[5:]))
"""


@pytest.fixture(scope="module")
def inputs() -> tuple[Any, Inputs, Plan]:
    config, _ = compose(["experiment=demo", "topology=cpu", "recovery.backoff_seconds=0"])
    found = gather(config)
    return config, found, plan_of(config, found, "run", {})


@pytest.fixture
def life(tmp_path: Path, inputs: tuple[Any, Inputs, Plan]) -> Callable[..., Any]:
    """Run a story, one word for each attempt; returns the summary."""

    def run(*story: str, **recovery: Any) -> dict[str, Any]:
        config, found, plan = inputs
        config = replace(config, recovery=replace(config.recovery, **recovery))
        rank = tmp_path / "rank.py"
        rank.write_text(RANK)
        words = iter(story)

        def make(plan: Plan, topology: Topology, run: RunDir, *, have_met: bool = False) -> Attempt:
            assert have_met == (run.attempt > 1)
            argv = (sys.executable, str(rank), str(run.path), str(run.attempt), str(ROOT), next(words))
            file = FileToWrite(path=str(run.path / f"plan.{run.attempt}.json"), text=plan.plan_hash)
            log = str(run.path / "logs" / f"run-{run.attempt}.log")
            launch = Request(
                argv=argv, env=(), cwd=str(run.path), log_path=log, backend=Backend.torchrun, files=(file,)
            )
            return Attempt(prepare=None, launch=launch, number=run.attempt)

        _, summary = supervise(
            config, plan, found, RunDir(path=tmp_path / "run", resuming=False), lambda _: None, make=make
        )
        return summary

    return run


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]


def named(folder: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event["event"] == name]


def test_a_run_without_a_fault(life: Callable[..., Any], tmp_path: Path) -> None:
    assert life("3:done") == {"status": "done", "steps": 3}
    assert [event["event"] for event in events(tmp_path)] == ["attempt_started", "attempt_ended", "decided"]
    assert named(tmp_path, "decided")[0]["decision"] == "finish"


def test_ranks_that_die_start_again_from_the_checkpoint(life: Callable[..., Any], tmp_path: Path) -> None:
    assert life("2:signal 9", "1:code 7", "2:signal 11", "1:done")["steps"] == 6
    assert [event["outcome"] for event in named(tmp_path, "attempt_ended")] == [
        "launcher_lost",
        "unknown",
        "launcher_lost",
        "done",
    ]
    assert [event["attempt"] for event in named(tmp_path, "attempt_started")] == [1, 2, 3, 4]
    assert [event["step"] for event in named(tmp_path, "fault_detected")] == [2, 3, 5]
    assert sorted(path.name for path in (tmp_path / "run").glob("plan.*.json")) == [
        f"plan.{n}.json" for n in (1, 2, 3, 4)
    ]


def test_what_ranks_tell_decides(life: Callable[..., Any], tmp_path: Path) -> None:
    fault = 'say trainmaster-fault: {"kind": "not_finite", "step": 2}'
    with pytest.raises(RunFailed, match=r"lower optimizer\.lr"):
        life(f"1:{fault}", f"0:{fault}")
    assert [event["decision"] for event in named(tmp_path, "decided")] == ["restart", "stop"]


def test_a_users_error_ends_it_at_once(life: Callable[..., Any], tmp_path: Path) -> None:
    body = {"exit_code": 2, "problems": [{"where": "data", "found": "empty", "remedy": "Give rows."}]}
    with pytest.raises(UserError, match="data: empty"):
        life(f"0:say trainmaster-error: {json.dumps(body)}")
    assert not (tmp_path / "run" / "plan.1.json").exists() or len(named(tmp_path, "attempt_started")) == 1
    assert named(tmp_path, "decided")[0]["decision"] == "stop"


def test_a_disk_that_takes_no_checkpoint_ends_it_resumable(life: Callable[..., Any], tmp_path: Path) -> None:
    body = {"exit_code": 75, "problems": [{"where": "checkpoints", "found": "no space left", "remedy": "Free space."}]}
    with pytest.raises(UserError, match="no space left") as caught:
        life(f"2:say trainmaster-error: {json.dumps(body)}")
    assert caught.value.exit_code == 75
    assert named(tmp_path, "attempt_ended")[0]["outcome"] == "disk"


def test_what_a_rank_calls_a_failed_run_is_looked_at_like_any_other_end(
    life: Callable[..., Any], tmp_path: Path
) -> None:
    """A streamed rank that loses its peer says that the run has failed: it is no error of the user."""
    problems = [{"where": "rank 0", "found": "a gather failed", "remedy": "See the logs."}]
    body = {"exit_code": 4, "problems": problems}
    assert life(f"1:say trainmaster-error: {json.dumps(body)}", "1:done")["steps"] == 2
    assert named(tmp_path, "decided")[0]["decision"] == "restart"


def test_memory_that_ran_out_counts_before_a_users_error(life: Callable[..., Any], tmp_path: Path) -> None:
    fault = {"kind": "out_of_memory", "where": "host", "rank": 0, "phase": "loading"}
    body = {"exit_code": 2, "problems": [{"where": "model", "found": "it cannot be read", "remedy": "Look."}]}
    words = f"say trainmaster-error: {json.dumps(body)}\ntrainmaster-fault: {json.dumps(fault)}"
    with pytest.raises(UserError):
        life(f"1:{words}", *["0:code 3"] * 9)
    assert named(tmp_path, "attempt_ended")[0]["outcome"] == "out_of_memory"


def test_a_request_of_the_supervisor_that_nobody_obeyed_is_taken_back(
    life: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(self: Observer) -> None:
        if not self.asked_softly and self.moment.attempt == 1:
            self._stop()

    monkeypatch.setattr(Observer, "look", look)
    assert life("1:signal 9", "1:done")["steps"] == 2
    assert not (tmp_path / "run" / STOP_FILE).exists()


def test_a_stop_is_resumable(life: Callable[..., Any]) -> None:
    with pytest.raises(RunStopped, match="after step 2 of 99"):
        life("2:stopped")


def test_no_progress_ends_it_with_all_attempts_told(life: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        life("1:code 3", "0:code 3", "0:code 3", "0:code 3", restarts=2)
    assert "3 starts in a row" in str(caught.value)
    assert "attempt 1" in str(caught.value)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_no_restart_at_all(life: Callable[..., Any]) -> None:
    with pytest.raises(RunFailed, match=r"recovery\.restarts is 0"):
        life("1:signal 9", restarts=0)


def test_silence_is_ended_and_goes_on(
    life: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = Patience(first_step=0.5, steps=0.0)
    monkeypatch.setattr("orchestrator.observing.facts_of", lambda *_: Facts(patience=patience))
    monkeypatch.setattr("orchestrator.recovery.watch._is_rank", lambda _: True)
    began = time.monotonic()
    assert life("0:silent", "1:done")["steps"] == 1
    assert time.monotonic() - began < 30
    assert named(tmp_path, "fault_detected")[0]["kind"] == "hang"
    assert "in <module>" in (tmp_path / "run" / "logs" / "stacks-1-0.txt").read_text()


def test_an_exception_is_known_again_though_the_launcher_is_ended_before_it_reports(
    life: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.recovery.watch._GONE_SECONDS", 0.2)
    with pytest.raises(RunFailed, match="ValueError: row 2 is odd") as caught:
        life("1:collected", "0:collected")
    assert "the same error came again" in str(caught.value)
    assert [event["outcome"] for event in named(tmp_path, "attempt_ended")] == ["raised", "raised"]
    assert named(tmp_path, "attempt_ended")[0]["evidence"] == "rank 1 failed with code 1"


def test_a_signal_between_attempts_is_a_stop(life: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Decision:
        os.kill(os.getpid(), signal.SIGTERM)
        return Decision(action=Action.restart, why="again", backoff_seconds=60.0)

    monkeypatch.setattr("orchestrator.supervisor.decide", interrupted)
    began = time.monotonic()
    with pytest.raises(RunStopped, match="between two attempts"):
        life("1:signal 9", "1:done")
    assert time.monotonic() - began < 20


def test_a_plan_that_cannot_be_bettered_stays(
    life: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow rank is no reason to end a run that could go on."""

    def look(self: Observer) -> str | None:
        if self.moment.attempt > 1 or self.asked is not None or not (tmp_path / "run" / "summary.json").exists():
            return None
        self.asked = Ended(kind=Kind.slow_rank, attempt=1, speeds=(1.0, 0.5, 0.25), evidence="rank 1 is slow")
        return None

    monkeypatch.setattr(Observer, "look", look)
    assert life("2:stopped", "1:done")["steps"] == 3
    assert named(tmp_path, "decided")[0]["decision"] == "restart"
    assert "the plan stays" in named(tmp_path, "decided")[0]["why"]


def test_rows_of_unequal_length_have_longer(inputs: tuple[Any, Inputs, Plan]) -> None:
    _, _, plan = inputs
    cut = plan.chosen.strategy.seq_len
    workload = replace(plan.workload, mean_tokens=cut / 4, max_tokens=10 * cut)
    uneven = replace(plan, workload=workload)
    assert longest_over_mean(uneven) == pytest.approx(8.0)
    packed = {**plan.config, "data": {**plan.config["data"], "packing": True}}
    assert longest_over_mean(replace(uneven, config=packed)) == 1.0


def test_a_request_to_stop_between_attempts(life: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    timer = threading.Timer(0.0, (tmp_path / "run" / STOP_FILE).touch)
    timer.start()
    timer.join()
    with pytest.raises(RunStopped, match="between two attempts"):
        life("1:signal 9", "1:done")
