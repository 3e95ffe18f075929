"""Memory that grows step by step, with the term that grows and the step at which it is used up.

Points are looked at on three scales: each step, and medians of 8 and of 64 steps, so that fast leaks are found soon and
slow ones at all with the same few points. A leak rises all along: a jump (an evaluation that filled a cache) or a curve
that flattens out (caches that fill) is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final

from orchestrator.monitor.detectors.latch import QUIET, Latch
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import RankReading
from orchestrator.monitor.robust import slope_of, spread_of
from topology.units import MIB, format_bytes

__all__ = ["WINDOW", "State", "Use", "device_use", "host_use", "update"]

WINDOW: Final = 24
_MERGED: Final = 8
_SCALES: Final = 3
_QUARTERS: Final = 4
_OF_HEADROOM: Final = 0.05
_OF_LEVEL: Final = 0.1  # where the headroom is not known
_LEAST_BYTES: Final = MIB
_SPREADS: Final = 6.0  # of what is left when the line is taken off: steps and jumps leave much
_LEAST_PART: Final = 0.1  # of the growth in each quarter of the window
_BETTER: Final = 0.8  # of what is left when one jump is taken off instead
_BENT: Final = 0.5  # the second half grows less than this share of the first: it flattens out
_MOST: Final = 0.5  # of the growth is one term's
_CLEAR_AFTER: Final = 2 * WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Memory after a step.

    Attributes:
        used_bytes: of the rank.
        terms: what is known to be in it.
        limit_bytes: that it may reach; None where nothing is known of that.
    """

    step: float
    used_bytes: float
    terms: tuple[tuple[str, int], ...] = ()
    limit_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One kind of memory of one rank.

    Attributes:
        scales: the newest points, of steps and of medians of 8 and 64 steps.
        waiting: points of each scale that are not merged yet.
        taken: steps since the start.
    """

    scales: tuple[tuple[Use, ...], ...] = ((),) * _SCALES
    waiting: tuple[tuple[Use, ...], ...] = ((),) * _SCALES
    latch: Latch = QUIET
    step: int = -1
    taken: int = 0


def device_use(reading: RankReading, limit_bytes: int | None) -> Use | None:
    """Take the device's memory from a reading; None where it is not known."""
    if reading.device_bytes is None:
        return None
    return Use(
        step=reading.step, used_bytes=reading.device_bytes, terms=tuple(reading.live_bytes), limit_bytes=limit_bytes
    )


def host_use(reading: RankReading, limit_bytes: float | None) -> Use | None:
    """Take the memory of the rank's process from a reading; None where it is not known."""
    if reading.host_bytes is None:
        return None
    return Use(step=reading.step, used_bytes=reading.host_bytes, terms=reading.live_bytes, limit_bytes=limit_bytes)


def update(
    state: State, reading: RankReading, use: Use | None, kind: Kind, *, warmup_steps: int, num_steps: int | None
) -> tuple[State, tuple[Finding, ...]]:
    """Judge the memory after one step of one rank; `kind` says which memory it is."""
    if use is None:
        return state, ()
    if reading.step <= state.step:
        state = State()
    state = replace(state, step=reading.step, taken=state.taken + 1)
    if state.taken <= warmup_steps:
        return state, ()
    state, fresh = _put(state, use)
    grown = [_growth(state.scales[scale]) for scale in fresh]
    leak = next((one for one in grown if one is not None), None)
    latch = state.latch.turn(bad=leak is not None, clear_after=_CLEAR_AFTER)
    if leak is None or not latch.says(state.latch):
        return replace(state, latch=latch), ()
    return replace(state, latch=latch), (_finding(reading, leak, use, kind, num_steps),)


def _put(state: State, use: Use) -> tuple[State, tuple[int, ...]]:
    """Add a point; return as well the scales that have a new one."""
    scales, waiting, fresh, point = list(state.scales), list(state.waiting), [], use
    for scale in range(_SCALES):
        scales[scale] = (*scales[scale], point)[-WINDOW:]
        waiting[scale] = (*waiting[scale], point)
        fresh.append(scale)
        if len(waiting[scale]) < _MERGED:
            break
        # The point in the middle stands for all, with its terms.
        point = sorted(waiting[scale], key=lambda one: one.used_bytes)[_MERGED // 2]
        point = replace(point, step=median(one.step for one in waiting[scale]))
        waiting[scale] = ()
    return replace(state, scales=tuple(scales), waiting=tuple(waiting)), tuple(fresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leak:
    bytes_per_step: float
    grown_bytes: float
    steps: float
    term: str


def _growth(points: Sequence[Use]) -> _Leak | None:
    """Return the leak that the points of a full window show, if they show one."""
    if len(points) < WINDOW or points[-1].used_bytes - points[0].used_bytes < _LEAST_BYTES:
        return None
    quarter = WINDOW // _QUARTERS
    levels = [median(one.used_bytes for one in points[at : at + quarter]) for at in range(0, WINDOW, quarter)]
    parts = [after - before for before, after in pairwise(levels)]
    line = [(one.step, one.used_bytes) for one in points]
    slope = slope_of(line)
    grown = slope * (points[-1].step - points[0].step)
    if grown < _significant(points[0]) or min(parts) < _LEAST_PART * sum(parts):
        return None
    left = spread_of([used - slope * step for step, used in line])
    half = WINDOW // 2
    if grown < _SPREADS * left or slope_of(line[half:]) < _BENT * slope_of(line[:half]):
        return None
    if left > _BETTER * _spread_about_a_jump([used for _, used in line]):
        return None
    return _Leak(
        bytes_per_step=slope, grown_bytes=grown, steps=points[-1].step - points[0].step, term=_term(points, slope)
    )


def _spread_about_a_jump(values: Sequence[float]) -> float:
    """Return what is left of the values where they are taken for two levels with one jump, at its best place."""
    quarter = WINDOW // _QUARTERS

    def left(at: int) -> float:
        levels = median(values[:at]), median(values[at:])
        return spread_of([value - levels[place >= at] for place, value in enumerate(values)])

    return min(left(at) for at in range(quarter, len(values) - quarter + 1))


def _significant(first: Use) -> float:
    """Return the least growth over a window that matters."""
    if first.limit_bytes is None:
        return max(_LEAST_BYTES, _OF_LEVEL * first.used_bytes)
    return max(_LEAST_BYTES, _OF_HEADROOM * max(0.0, first.limit_bytes - first.used_bytes))


def _term(points: Sequence[Use], slope: float) -> str:
    """Return the term that grows with it; empty where none of the known ones does."""
    series: dict[str, list[tuple[float, float]]] = {}
    for one in points:
        for name, size in one.terms:
            series.setdefault(name, []).append((one.step, float(size)))
    slopes = {name: slope_of(values) for name, values in series.items() if len(values) == len(points)}
    name = max(slopes, key=lambda each: slopes[each], default="")
    return name if name and slopes[name] >= _MOST * slope else ""


def _finding(reading: RankReading, leak: _Leak, use: Use, kind: Kind, num_steps: int | None) -> Finding:
    where = "device" if kind is Kind.device_memory_leak else "host"
    numbers = [("bytes_per_step", leak.bytes_per_step), ("grown_bytes", leak.grown_bytes), ("steps", leak.steps)]
    end = "what it may reach is not known"
    is_fatal = True
    if use.limit_bytes is not None:
        last = reading.step + math.floor(max(0.0, use.limit_bytes - use.used_bytes) / leak.bytes_per_step)
        numbers.append(("last_step", float(last)))
        is_fatal = num_steps is None or last < num_steps
        end = f"at this rate the memory is used up after step {last}"
        end += "" if num_steps is None or is_fatal else f", the run ends at step {num_steps}"
    term = f"the term {leak.term} grows" if leak.term else "none of the known terms grows with it"
    return Finding(
        kind=kind,
        severity=Severity.error if is_fatal else Severity.warning,
        time=reading.time,
        step=reading.step,
        rank=reading.rank,
        host=reading.host,
        evidence=(
            f"the {where} memory of rank {reading.rank} grew by {format_bytes(leak.grown_bytes)} in {leak.steps:.0f} "
            f"steps; {term}; {end}"
        ),
        numbers=tuple(numbers),
        advice=(
            "Something keeps tensors or objects of each step (losses in a list, hooks, caches): look at the newest "
            "allocations in a memory snapshot; starting again from a checkpoint frees them for a while."
        ),
    )
