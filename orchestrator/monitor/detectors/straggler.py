"""A rank that the others wait for, step after step.

All ranks of a synchronous step take equally long, so only the time in which a rank worked itself can tell. A rank is
slow when it is busy for longer than the others and takes longer for the same work as well: a greater share of a batch
or longer rows are no fault, nor is a card that is planned to be slower and gets less.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from orchestrator.monitor.detectors.latch import Latch
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import RankReading
from orchestrator.monitor.robust import NORMAL, median
from orchestrator.monitor.steps import busy_of

__all__ = ["IN_A_ROW", "State", "relative_speeds", "update"]

IN_A_ROW: Final = 5
_WINDOW: Final = 8
_SLOWER: Final = 0.2  # less is within what data and clocks of healthy cards do
_SPREADS: Final = 3.0
_OVER: Final = 0.6  # of the threshold: below it the rank is well again


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The newest steps, and which ranks were told.

    Attributes:
        ratios: of the newest steps, for each rank how many times as long as the others it takes.
        paces: of the newest steps, for each rank its seconds per work.
        latches: one per rank.
        step: the newest.
        taken: steps since the start.
    """

    ratios: tuple[tuple[float, ...], ...] = ()
    paces: tuple[tuple[float, ...], ...] = ()
    latches: tuple[Latch, ...] = ()
    step: int = -1
    taken: int = 0


def update(state: State, group: tuple[RankReading, ...], facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge a step of all ranks, given by rank. Nothing is said of steps in which a rank's time is not known."""
    busy = [busy_of(reading) for reading in group]
    known = [seconds for seconds in busy if seconds is not None and seconds > 0]
    if len(group) < 2 or len(known) < len(group):  # noqa: PLR2004 - one alone has nobody to wait for
        return state, ()
    if group[0].step <= state.step or len(state.latches) not in {0, len(group)}:
        state = State()  # the run went back, or has other ranks
    if state.taken < facts.warmup_steps:
        return State(step=group[0].step, taken=state.taken + 1), ()
    work = _works(group)
    speeds = facts.speeds if len(facts.speeds) == len(group) else (1.0,) * len(group)
    paces = tuple(seconds / amount for seconds, amount in zip(known, work, strict=True))
    own = _over_others([pace * speed for pace, speed in zip(paces, speeds, strict=True)])
    row = tuple(min(pair) for pair in zip(_over_others(known), own, strict=True))
    ratios = (*state.ratios, row)[-_WINDOW:]
    threshold = max(_SLOWER, _SPREADS * _noise(ratios))
    latches = state.latches or (Latch(),) * len(group)
    turned = tuple(_turn(latch, ratio, threshold) for latch, ratio in zip(latches, row, strict=True))
    found = tuple(
        _finding(reading, ratios, index, seconds, median(known))
        for index, (reading, seconds) in enumerate(zip(group, known, strict=True))
        if turned[index].says(latches[index])
    )
    after = State(
        ratios=ratios,
        paces=(*state.paces, paces)[-_WINDOW:],
        latches=turned,
        step=group[0].step,
        taken=state.taken + 1,
    )
    return after, found


def relative_speeds(state: State) -> tuple[float, ...]:
    """Return the work per second of each rank, 1 for the middle one; empty before a step was judged."""
    usual = [median(pace[rank] for pace in state.paces) for rank in range(len(state.latches))]
    return tuple(median(usual) / pace for pace in usual)


def _turn(latch: Latch, ratio: float, threshold: float) -> Latch:
    bad, good = ratio > 1 + threshold, ratio < 1 + _OVER * threshold
    return latch.turn(bad=bad, good=good, raise_after=IN_A_ROW, clear_after=IN_A_ROW)


def _works(group: tuple[RankReading, ...]) -> list[float]:
    """Return tokens per rank, else rows, else equal work; all ranks by the same measure."""
    for counts in ([one.tokens for one in group], [one.rows for one in group]):
        known = [float(count) for count in counts if count]
        if len(known) == len(group):
            return known
    return [1.0] * len(group)


def _over_others(values: list[float]) -> list[float]:
    """Divide each value by the median of the others: with two ranks, one would else be half of its own measure."""
    order = sorted(values)
    return [value / _median_without(order, bisect_left(order, value)) for value in values]


def _median_without(order: list[float], left_out: int) -> float:
    """Return the median of sorted values but one."""
    low, high = (len(order) - 2) // 2, (len(order) - 1) // 2
    return (order[low + (low >= left_out)] + order[high + (high >= left_out)]) / 2


def _noise(ratios: tuple[tuple[float, ...], ...]) -> float:
    """Return the usual change of a rank from step to step, as a spread; a lasting change counts once."""
    changes = [abs(after - before) for one, other in pairwise(ratios) for before, after in zip(one, other, strict=True)]
    # The difference of two values spreads wider than each by the root of two.
    return NORMAL * median(changes) / 2**0.5 if changes else 0.0


def _finding(
    reading: RankReading, ratios: tuple[tuple[float, ...], ...], index: int, seconds: float, usual: float
) -> Finding:
    slower = median(row[index] for row in ratios[-IN_A_ROW:])
    return Finding(
        kind=Kind.straggler,
        severity=Severity.warning,
        time=reading.time,
        step=reading.step,
        rank=reading.rank,
        host=reading.host,
        evidence=(
            f"rank {reading.rank} takes {slower:.2f} times as long as the others, {IN_A_ROW} steps in a row "
            f"({seconds:.3f} s busy, {usual:.3f} s is usual)"
        ),
        numbers=(("slower_factor", slower), ("busy_seconds", seconds), ("median_busy_seconds", usual)),
        advice=(
            "Give it a smaller share of the batch, or leave it out; look at its clocks, its temperature and at other "
            "work on its device and cores."
        ),
    )
