"""No progress: ranks whose beats stand still for longer than their phase allows.

Time is the reader's own, and only time in which it looked counts: clocks of hosts differ, wall clocks are set, and a
machine that slept has not waited. Ranks of a step wait for each other, so all of them fall silent with the first: the
one that is behind the others is to blame, and where none is, the whole group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.monitor.facts import Facts, Patience
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import BeatReading
from orchestrator.monitor.robust import median

__all__ = ["Seen", "State", "update"]

_KEPT: Final = 16
_KNOWN: Final = 2  # measured times before they are believed
_TRAINING: Final = "training"
_ENDED: Final = "ended"
_MISSING: Final = BeatReading(rank=-1, phase="starting", count=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One rank.

    Attributes:
        beat: the newest.
        silent_seconds: that were waited since it changed.
        gaps_seconds: between beats while training, without the first step.
        step_seconds: since the step began, while it was trained without a break; None where it was not.
        steps_seconds: of the newest steps.
        trained: beats of training since it began.
    """

    beat: BeatReading
    silent_seconds: float = 0.0
    gaps_seconds: tuple[float, ...] = ()
    step_seconds: float | None = None
    steps_seconds: tuple[float, ...] = ()
    trained: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All ranks, when the reader looked last, and whether a hang was told that is not over."""

    ranks: tuple[tuple[int, Seen], ...] = ()
    looked: float | None = None
    is_raised: bool = False


def update(
    state: State, beats: Sequence[BeatReading], now_seconds: float, facts: Facts
) -> tuple[State, tuple[Finding, ...]]:
    """Judge all beats as they are now, on the reader's clock; ranks that have not beaten yet count as starting."""
    passed = 0.0 if state.looked is None else min(max(0.0, now_seconds - state.looked), facts.patience.look)
    known, newest = dict(state.ranks), {beat.rank: beat for beat in beats}
    ranks = {}
    for rank in sorted({*range(facts.world_size), *known, *newest}):
        last = known.get(rank)
        beat = newest.get(rank) or (last.beat if last else replace(_MISSING, rank=rank))
        ranks[rank] = Seen(beat=beat) if last is None else _next(last, beat, passed)
    limits = {rank: _limit(ranks, seen, facts) for rank, seen in ranks.items()}
    late = [rank for rank, seen in ranks.items() if seen.silent_seconds > limits[rank]]
    at_work = {rank: seen for rank, seen in ranks.items() if seen.beat.phase != _ENDED}  # nobody waits for the others
    late = [rank for rank in late if not _is_excused(rank, late, at_work, limits)]
    after = State(ranks=tuple(ranks.items()), looked=now_seconds, is_raised=bool(late))
    if not late or state.is_raised:
        return after, ()
    return after, (_finding(late, at_work, limits, now_seconds),)


def _next(last: Seen, beat: BeatReading, passed: float) -> Seen:
    waited = last.silent_seconds + passed
    trains = last.beat.phase == beat.phase == _TRAINING
    in_step = None if last.step_seconds is None else last.step_seconds + passed
    if beat.count == last.beat.count:
        return replace(last, beat=beat, silent_seconds=waited, step_seconds=in_step)
    begun = replace(last, beat=beat, silent_seconds=0.0)
    if not trains:
        return replace(begun, step_seconds=None)
    gaps = (*last.gaps_seconds, waited)[-_KEPT:] if last.trained > 0 else ()
    begun = replace(begun, gaps_seconds=gaps, trained=last.trained + 1)
    if beat.step == last.beat.step:
        return replace(begun, step_seconds=in_step)
    whole = beat.step == last.beat.step + 1 and in_step is not None
    steps = (*last.steps_seconds, in_step or 0.0)[-_KEPT:] if whole else last.steps_seconds
    return replace(begun, step_seconds=0.0, steps_seconds=steps)


def _limit(ranks: dict[int, Seen], seen: Seen, facts: Facts) -> float:
    patience: Patience = facts.patience
    fixed = {
        "starting": patience.starting,
        "loading": patience.loading,
        "evaluating": patience.evaluating,
        "saving": patience.saving,
        "finishing": patience.finishing,
        _ENDED: math.inf,
    }
    if seen.beat.phase in fixed:
        return fixed[seen.beat.phase]
    gaps = [max(one.gaps_seconds) for one in ranks.values() if len(one.gaps_seconds) >= _KNOWN]
    steps = [gap for one in ranks.values() for gap in one.steps_seconds]
    if not gaps:
        return max(patience.first_step, patience.steps * patience.longest * (facts.step_seconds or 0.0))
    # The longest gap that was seen is no typical one: rows longer than in it are not to be expected on top.
    typical = median(steps) if steps else median(gaps)
    return max(patience.least, patience.steps * max(patience.longest * typical, median(gaps)))


def _is_excused(rank: int, late: Sequence[int], ranks: dict[int, Seen], limits: dict[int, float]) -> bool:
    """Whether it waits for another that is within its own limit: one behind it, or one that saves or evaluates."""
    place, stage = _place(ranks[rank]), _stage(ranks[rank])
    others = [other for other in ranks if other not in late and _stage(ranks[other]) <= stage]
    return any(limits[other] > limits[rank] or _place(ranks[other]) <= place for other in others)


def _stage(seen: Seen) -> int:
    """Nobody waits for a rank that has come further than it."""
    return {"starting": 0, "loading": 1}.get(seen.beat.phase, 2)


def _place(seen: Seen) -> tuple[int, int]:
    return seen.beat.step, seen.beat.micro


def _blamed(late: Sequence[int], ranks: dict[int, Seen]) -> int | None:
    stopped = [rank for rank in ranks if ranks[rank].beat.is_stopped]
    if len(stopped) == 1 or len(ranks) == 1:
        return stopped[0] if stopped else late[0]
    places = {rank: (_stage(seen), *_place(seen)) for rank, seen in ranks.items()}
    behind = min(late, key=lambda rank: places[rank])
    is_alone = sum(place <= places[behind] for place in places.values()) == 1
    return behind if is_alone else None


def _finding(late: Sequence[int], ranks: dict[int, Seen], limits: dict[int, float], now_seconds: float) -> Finding:
    rank = _blamed(late, ranks)
    first = late[0] if rank is None else rank
    seen = ranks[first]
    where = f"after step {seen.beat.step}" if seen.beat.phase == _TRAINING else f"while {seen.beat.phase}"
    who = f"rank {rank} hangs" if rank is not None else f"all {len(ranks)} ranks hang"
    what = "its process is stopped" if seen.beat.is_stopped else f"no progress for {seen.silent_seconds:.0f} s"
    return Finding(
        kind=Kind.hang,
        severity=Severity.error,
        time=now_seconds,
        step=seen.beat.step,
        rank=rank,
        evidence=f"{who} {where}: {what} ({limits[first]:.0f} s allowed)",
        numbers=(
            ("silent_seconds", seen.silent_seconds),
            ("limit_seconds", limits[first]),
        ),
        advice="Dump the stacks of all ranks, then end the attempt and go on from the newest checkpoint.",
    )
