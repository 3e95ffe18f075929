"""What is done after an attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.recovery.decide import Limits, decide
from orchestrator.recovery.event import Action, Decision, Ended, History, Kind

LIMITS = Limits(restarts=3, backoff_seconds=2.0)
RESTART = Decision(action=Action.restart, why="")


def ended(kind: Kind, attempt: int = 1, **values: object) -> Ended:
    return Ended(kind=kind, attempt=attempt, **values)  # type: ignore[arg-type]


def after(*events: Ended) -> History:
    history = History()
    for event in events:
        history = history.with_next(event, RESTART)
    return history


@pytest.mark.parametrize(
    ("event", "action", "words"),
    [
        (ended(Kind.done), Action.finish, "done"),
        (ended(Kind.stopped), Action.stop, "stop"),
        (ended(Kind.user_error), Action.stop, "input"),
        (ended(Kind.disk, evidence="no space left"), Action.stop, "no space left"),
        (ended(Kind.died, evidence="rank 1 was ended by SIGKILL"), Action.restart, "SIGKILL"),
        (ended(Kind.hang), Action.restart, "hang"),
        (ended(Kind.raised), Action.restart, "raised"),
        (ended(Kind.not_finite), Action.restart, "not_finite"),
        (ended(Kind.launcher_lost), Action.restart, "launcher"),
        (ended(Kind.unknown), Action.restart, "unknown"),
        (ended(Kind.out_of_memory), Action.replan, "memory"),
        (ended(Kind.device_lost), Action.replan, "device"),
        (ended(Kind.host_lost), Action.replan, "host"),
        (ended(Kind.slow_rank), Action.replan, "slow"),
        (ended(Kind.device_lost, evidence="XID 79", person_must="restart the host"), Action.stop, "restart the host"),
    ],
)
def test_the_first_time(event: Ended, action: Action, words: str) -> None:
    decision = decide(event, LIMITS, History())
    assert decision.action is action
    assert words in decision.why
    assert decision.backoff_seconds == 0


def test_only_a_users_error_cannot_be_resumed() -> None:
    for kind in Kind:
        decision = decide(ended(kind), LIMITS, History())
        assert decision.resumable is (kind is not Kind.user_error)


def test_waits_grow_while_there_is_no_progress() -> None:
    events = [ended(Kind.died, number, checkpoint_step=4) for number in (1, 2, 3, 4)]
    waits = [decide(events[at], LIMITS, after(*events[:at])) for at in range(4)]
    assert [found.backoff_seconds for found in waits[:3]] == [0.0, 2.0, 4.0]
    assert waits[3].action is Action.stop
    assert "4 starts in a row" in waits[3].why


def test_the_start_without_a_lost_host_does_not_wait() -> None:
    found = decide(ended(Kind.host_lost, 2), LIMITS, after(ended(Kind.hang, 1)))
    assert (found.action, found.backoff_seconds) == (Action.replan, 0.0)


def test_progress_forgives() -> None:
    events = [ended(Kind.died, number, checkpoint_step=number) for number in range(1, 30)]
    for at in range(29):
        found = decide(events[at], LIMITS, after(*events[:at]))
        assert (found.action, found.backoff_seconds) == (Action.restart, 0.0)


def test_the_same_error_at_the_same_step_is_no_accident() -> None:
    first = ended(Kind.raised, 1, step=7, said="ValueError: bad row #")
    same = ended(Kind.raised, 2, step=7, said="ValueError: bad row #")
    assert decide(same, LIMITS, after(first)).action is Action.stop
    assert "bad row" in decide(same, LIMITS, after(first)).why
    for other in (ended(Kind.raised, 2, step=9, said=first.said), ended(Kind.raised, 2, step=7, said="other")):
        assert decide(other, LIMITS, after(first)).action is Action.restart


def test_the_same_nan_names_what_to_change() -> None:
    found = decide(ended(Kind.not_finite, 2, step=5), LIMITS, after(ended(Kind.not_finite, 1, step=5)))
    assert found.action is Action.stop
    assert "optimizer.lr" in found.why
    assert decide(ended(Kind.not_finite, 2, step=8), LIMITS, after(ended(Kind.not_finite, 1, step=5))).action is (
        Action.restart
    )


def test_running_out_of_memory_is_limited_by_the_plans_that_are_left() -> None:
    events = [ended(Kind.out_of_memory, number) for number in range(1, 20)]
    assert decide(events[-1], LIMITS, after(*events[:-1])).action is Action.replan


def test_no_restart_where_none_is_allowed() -> None:
    for kind in (Kind.died, Kind.out_of_memory, Kind.hang):
        found = decide(ended(kind), Limits(restarts=0), History())
        assert found.action is Action.stop
        assert "recovery.restarts" in found.why


@given(
    st.lists(
        st.tuples(st.sampled_from([Kind.died, Kind.hang, Kind.launcher_lost, Kind.unknown]), st.integers(-1, 6)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 6),
)
def test_whatever_happens_it_ends(story: list[tuple[Kind, int]], restarts: int) -> None:
    """With no more progress than there are steps, so many starts are never exceeded."""
    history, best, starts = History(), -1, 0
    for number, (kind, step) in enumerate(story):
        best = max(best, step)
        event = ended(kind, number, checkpoint_step=best)
        decision = decide(event, Limits(restarts=restarts), history)
        starts += 1
        if decision.action is Action.stop:
            break
        history = history.with_next(event, decision)
    assert starts <= 8 * (restarts + 1)
