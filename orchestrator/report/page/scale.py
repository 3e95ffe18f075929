"""From numbers to places on a chart: round ticks, and fewer points where there are more than can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MOST_POINTS: Final = 800  # of a line: more than a page is wide
_ROUND: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_SAME: Final = 1e-9
_NOTHING: Final = 1e-12
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range with round ticks.

    Attributes:
        low, high: the ends of the axis.
        ticks: within them.
    """

    low: float
    high: float
    ticks: tuple[float, ...]

    def share(self, value: float) -> float:
        """Place of a value, from 0 at the low end to 1 at the high one."""
        return 0.5 if self.high == self.low else (value - self.low) / (self.high - self.low)


def axis_of(values: Sequence[float], *, from_zero: bool, wanted: int = 4, whole: bool = False) -> Axis:
    """Choose an axis for finite values; the ends are ticks, but on an axis of whole numbers the values' own.

    Args:
        values: at least one.
        from_zero: whether zero must be on it.
        wanted: about so many ticks.
        whole: for steps: ticks are whole numbers, and the ends are those of the values.
    """
    low, high = min(values), max(values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    most = max(abs(low), abs(high))
    if high - low <= _SAME * max(most, _NOTHING):
        pad = 0.1 * most if most > _NOTHING else 1.0
        low, high = (low, low + pad) if from_zero else (low - pad, high + pad)
    unit = _unit((high - low) / wanted)
    if whole:
        unit = max(1.0, round(unit))
        first = math.ceil(low / unit)
        return Axis(low=low, high=high, ticks=tuple(at * unit for at in range(first, math.floor(high / unit) + 1)))
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    ticks = tuple(float(f"{at * unit:.12g}") for at in range(first, last + 1))
    return Axis(low=ticks[0], high=ticks[-1], ticks=ticks)


def _unit(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(step for step in (factor * power for factor in _ROUND) if step >= least * (1 - 1e-9))


def bytes_axis(values: Sequence[float], *, from_zero: bool = True) -> Axis:
    """An axis whose ticks are round in the unit that `words.size` writes."""
    unit = 2.0 ** (10 * max(0, math.floor(math.log2(max(*values, 1.0)) / 10)))
    found = axis_of([value / unit for value in values], from_zero=from_zero)
    return Axis(low=found.low * unit, high=found.high * unit, ticks=tuple(tick * unit for tick in found.ticks))


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """Leave the lowest and the highest of each run of neighbours: peaks stay to be seen.

    Points whose value is not finite stay as gaps (NaN), one for each run that has some.
    """
    if len(points) <= most:
        return tuple(points)
    each = math.ceil(2 * len(points) / most)
    kept: list[Point] = []
    for start in range(0, len(points), each):
        group = points[start : start + each]
        finite = [point for point in group if math.isfinite(point[1])]
        if finite:
            ends = {min(finite, key=_value), max(finite, key=_value)}
            kept += sorted(ends)
        if len(finite) < len(group):
            kept.append((group[-1][0], math.nan))
    return tuple(kept)


def _value(point: Point) -> float:
    return point[1]


def runs_of(points: Sequence[Point]) -> tuple[tuple[Point, ...], ...]:
    """Cut a line where its value is not finite."""
    found: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            found[-1].append(point)
        elif found[-1]:
            found.append([])
    return tuple(tuple(run) for run in found if run)
