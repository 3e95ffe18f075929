"""The line of a fault, from made-up files: whole, cut, and of runs that ended in every way."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Fault
from orchestrator.fault_runs.row import Left, Outcome, row, steps_to_loss, throughput

NUM_STEPS, STEP_SECONDS, TOKENS = 12, 2.0, 600.0


def metrics(*, began: float = 0.0, changed: float = 0.0) -> list[dict[str, Any]]:
    """Steps of two seconds, loss falling by 0.1 a step."""
    return [
        {
            "step": step,
            "loss": 3.0 - 0.1 * step + changed,
            "time": began + STEP_SECONDS * step,
            "tokens_per_second": TOKENS / STEP_SECONDS,
            "step_seconds": STEP_SECONDS,
        }
        for step in range(1, NUM_STEPS + 1)
    ]


def event(time: float, name: str, **details: Any) -> dict[str, Any]:
    return {"time": time, "event": name, **details}


DONE = {"status": "done", "steps": NUM_STEPS, "eval_loss_after": 2.0, "train_loss_last": 1.8}
BASELINE = Left(
    events=[event(0.0, "attempt_started", attempt=1), event(2.0, "first_step", attempt=1, step=1)],
    metrics=metrics(),
    summary=DONE,
    seconds=40.0,
)
KILLED = [
    event(0.0, "attempt_started", attempt=1),
    event(2.0, "first_step", attempt=1, step=1),
    event(14.5, "fault_injected", fault="kill_rank", attempt=1, step=8, rank=1, steps_done=7),
    event(15.0, "fault_detected", kind="died", attempt=1, step=7, evidence="rank 1 was killed by SIGKILL"),
    event(15.1, "attempt_ended", attempt=1, outcome="died", step=7, checkpoint_step=6),
    event(15.2, "decided", decision="restart", why="going on from step 6"),
    event(15.3, "attempt_started", attempt=2),
    event(30.0, "resumed", attempt=2, step=6),
    event(32.5, "first_step", attempt=2, step=7),
]
RECOVERED = Left(
    events=KILLED,
    metrics=[record if record["step"] < 7 else {**record, "time": record["time"] + 18.5} for record in metrics()],
    summary=DONE,
    seconds=60.0,
)


def test_a_run_that_recovered() -> None:
    found = row(Fault.kill_rank, RECOVERED, BASELINE)
    assert found.outcome is Outcome.recovered
    assert found.as_expected
    assert found.detected_seconds == pytest.approx(0.5)
    assert found.recovered_seconds == pytest.approx(18.0)
    assert found.steps_lost == 1
    assert found.restarts == 1
    # 11 steps in 22 s without a fault, in 40.5 s with it.
    assert found.throughput == pytest.approx(22.0 / 40.5)
    assert found.steps_to_same_loss == NUM_STEPS + 1
    assert (found.eval_loss_deviation, found.train_loss_deviation, found.is_bitwise) == (0.0, 0.0, True)
    assert found.message == "rank 1 was killed by SIGKILL"


def test_the_run_without_a_fault_against_itself() -> None:
    assert throughput(BASELINE) == pytest.approx(TOKENS / STEP_SECONDS)
    assert steps_to_loss(BASELINE.metrics, [1.9 + 1e-9]) == NUM_STEPS


def test_other_losses_are_no_same_bits() -> None:
    left = replace(RECOVERED, metrics=metrics(changed=1e-9), summary={**DONE, "eval_loss_after": 2.02})
    found = row(Fault.kill_rank, left, BASELINE)
    assert not found.is_bitwise
    assert found.eval_loss_deviation == pytest.approx(0.01)
    assert found.steps_to_same_loss is None  # never reached


def test_a_run_that_stopped_with_a_message() -> None:
    events = [*KILLED[:5], event(15.2, "decided", decision="stop", why="the GPU must be reset by a person")]
    left = Left(events=events, metrics=metrics()[:7], summary={"status": "failed"}, code=4, seconds=20.0)
    found = row(Fault.xid_79, left, BASELINE)
    assert (found.outcome, found.message) == (Outcome.stopped, "the GPU must be reset by a person")
    assert found.as_expected
    assert found.steps_lost == 1  # of 7 that were done, 6 are in the checkpoint
    assert found.recovered_seconds is None
    # The same end is wrong for what must be survived.
    assert not row(Fault.kill_rank, left, BASELINE).as_expected


@pytest.mark.parametrize(
    ("code", "words", "outcome", "told"),
    [
        (None, "", Outcome.hung, "killed after 900 s; rank 1 was killed by SIGKILL"),
        (4, "the disk is full. Free space.", Outcome.stopped, "the disk is full. Free space."),
        (75, "stopped: after step 7", Outcome.stopped, "stopped: after step 7"),
        (4, "", Outcome.failed, "exit code 4; it said nothing"),
        (1, "trainmaster itself failed", Outcome.failed, "exit code 1; trainmaster itself failed"),
        (-9, "", Outcome.failed, "exit code -9; it said nothing"),
    ],
)
def test_other_ends(code: int | None, words: str, outcome: Outcome, told: str) -> None:
    left = Left(events=KILLED[:5], metrics=metrics()[:7], code=code, words=words, seconds=900.0)
    found = row(Fault.disk_full, left, BASELINE)
    assert (found.outcome, found.message) == (outcome, told)
    assert found.as_expected == (outcome is Outcome.stopped)


def test_a_fault_that_never_came_is_no_recovery() -> None:
    refused = event(3.0, "fault_refused", why="this is the machine's own network")
    found = row(Fault.cut_link, replace(BASELINE, events=[*BASELINE.events, refused]), BASELINE)
    assert (found.outcome, found.as_expected) == (Outcome.failed, False)
    assert found.message == "the fault never came; this is the machine's own network"
    assert found.steps_lost is None


def test_a_start_from_the_beginning_loses_all_steps() -> None:
    events = [*KILLED[:7], event(40.0, "first_step", attempt=2, step=1)]
    assert row(Fault.corrupt_checkpoint, replace(RECOVERED, events=events), BASELINE).steps_lost == 7


def test_losses_of_several_faults_add_up() -> None:
    again = [
        event(50.0, "fault_injected", fault="kill_rank", attempt=2, step=11, steps_done=10),
        event(51.0, "attempt_ended", attempt=2, step=10, checkpoint_step=9),
        event(51.3, "attempt_started", attempt=3),
        event(65.0, "first_step", attempt=3, step=10),
    ]
    found = row(Fault.kill_rank, replace(RECOVERED, events=[*KILLED, *again]), BASELINE)
    assert (found.steps_lost, found.restarts) == (2, 2)
    assert found.recovered_seconds == pytest.approx(18.0)  # after the first


def test_a_fault_that_needs_no_restart() -> None:
    injected = event(9.0, "fault_injected", fault="slow_rank", attempt=1, step=5, steps_done=4)
    found = row(Fault.slow_rank, replace(BASELINE, events=[*BASELINE.events, injected]), BASELINE)
    assert found.outcome is Outcome.recovered
    assert (found.recovered_seconds, found.steps_lost, found.restarts) == (None, 0, 0)


@given(kept=st.integers(0, len(KILLED)), steps=st.integers(0, NUM_STEPS), code=st.sampled_from([0, 2, 4, 75, -9, None]))
def test_files_that_are_cut_anywhere_give_a_row(kept: int, steps: int, code: int | None) -> None:
    left = Left(events=KILLED[:kept], metrics=metrics()[:steps], code=code, words="it ended")
    found = row(Fault.kill_rank, left, BASELINE)
    assert found.outcome is not Outcome.recovered  # there is no summary
    assert (found.outcome is Outcome.hung) == (code is None)
    assert found.steps_lost is None or found.steps_lost >= 0
    assert not found.is_bitwise
    json.dumps(found.message)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"event": st.sampled_from(["fault_injected", "first_step", "attempt_ended", "resumed", "decided", "odd"])},
            optional={
                "time": st.one_of(st.floats(allow_nan=True), st.text(max_size=2), st.none()),
                "step": st.one_of(st.integers(-1, 20), st.none(), st.text(max_size=2), st.booleans()),
                "attempt": st.one_of(st.integers(0, 3), st.none()),
                "checkpoint_step": st.integers(-1, 20),
                "decision": st.just("stop"),
            },
        )
    )
)
def test_any_events_give_a_row(events: list[dict[str, Any]]) -> None:
    found = row(Fault.hang, Left(events=events, metrics=[{"step": 1}, {"loss": None}, {}], code=4), BASELINE)
    assert found.outcome in {Outcome.failed, Outcome.stopped}
