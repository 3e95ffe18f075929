"""What to do when an attempt has ended: a pure function of how it ended and of the attempts before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.recovery.event import Action, Decision, Ended, History, Kind

_REPLANNED: Final = frozenset(
    {Kind.out_of_memory, Kind.device_lost, Kind.host_lost, Kind.host_back, Kind.slow_rank, Kind.slow_link}
)
_LONGEST_BACKOFF_SECONDS: Final = 300.0
_SAME_FAILURES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a user allows.

    Attributes:
        restarts: in a row that bring the run no step further; 0 never starts again.
        backoff_seconds: before the second start in a row without progress; each further one waits twice as long.
    """

    restarts: int = 5
    backoff_seconds: float = 1.0


def decide(ended: Ended, limits: Limits, history: History) -> Decision:
    """Return what is to be done.

    A user's error ends the run at once, and so does what only a person can mend. The same exception at the same step
    twice is no accident, nor is the same NaN. Everything else starts again from the newest whole checkpoint, at once
    the first time and later and later while there is no progress.
    """
    if ended.kind is Kind.done:
        return Decision(action=Action.finish, why="all steps are done")
    fruitless = (ended.kind is not Kind.out_of_memory) + _fruitless(ended, history)
    final = _final(ended) or _repeated(ended, history) or _given_up(fruitless, limits)
    if final:
        return Decision(action=Action.stop, why=final, resumable=ended.kind is not Kind.user_error)
    action = Action.replan if ended.kind in _REPLANNED else Action.restart
    # Without the host that was waited for already, the next start is another one: it need not wait.
    wait = 0.0 if ended.kind is Kind.host_lost else _backoff(fruitless, limits)
    return Decision(action=action, why=_why(ended), backoff_seconds=wait)


def _final(ended: Ended) -> str:
    """Why no start can follow such an end; empty where one can."""
    if ended.kind is Kind.stopped:
        return ended.evidence or "it was asked to stop"
    if ended.kind is Kind.user_error:
        return "the input must be mended first"
    if ended.person_must:
        return f"{ended.evidence}; {ended.person_must}"
    if ended.kind is Kind.disk:
        return f"the last checkpoint could not be written ({ended.evidence})"
    return ""


def _fruitless(ended: Ended, history: History) -> int:
    """Count the starts right before this one that brought the run no further than it was.

    Those that ran out of memory do not count: each next plan needs less, until none is left.
    """
    count, best = 0, ended.checkpoint_step
    for before in reversed(history.ended):
        if before.checkpoint_step < best:
            break
        count += before.kind is not Kind.out_of_memory
    return count


def _repeated(ended: Ended, history: History) -> str:
    """Say that the very same failure came again; empty where it did not."""
    if ended.kind not in {Kind.raised, Kind.not_finite}:
        return ""
    same = [
        before
        for before in history.ended
        if (before.kind, before.step, before.said) == (ended.kind, ended.step, ended.said)
    ]
    if len(same) + 1 < _SAME_FAILURES:
        return ""
    at = f"after step {ended.step}" if ended.step >= 0 else "before the first step"
    if ended.kind is Kind.not_finite:
        return (
            f"the loss or its gradient is no number again {at}: the cause is in the data or in the settings; lower "
            "optimizer.lr, or look at the rows of that step"
        )
    return f"the same error came again {at}: {ended.said or ended.evidence}"


def _given_up(fruitless: int, limits: Limits) -> str:
    if limits.restarts == 0:
        return "recovery.restarts is 0"
    if fruitless <= limits.restarts:
        return ""
    return f"{fruitless} starts in a row brought the run no further (recovery.restarts={limits.restarts})"


def _backoff(fruitless: int, limits: Limits) -> float:
    if fruitless <= 1:
        return 0.0
    return float(min(_LONGEST_BACKOFF_SECONDS, limits.backoff_seconds * 2.0 ** (fruitless - 2)))


def _why(ended: Ended) -> str:
    at = f"from step {ended.checkpoint_step}" if ended.checkpoint_step > 0 else "from the beginning"
    return f"{ended.evidence or ended.kind.value}; going on {at}"
