"""Values of ranks brought together by step."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence

from orchestrator.monitor.readings import RankReading
from orchestrator.report.page.scale import Point


def mean_of_ranks(ranks: Sequence[RankReading], value: Callable[[RankReading], float | None]) -> tuple[Point, ...]:
    """The mean over the ranks of each step, as far as they know it: work and waits then add up to the step."""
    by_step = defaultdict[int, list[float]](list)
    for one in ranks:
        found = value(one)
        if found is not None:
            by_step[one.step].append(found)
    return tuple((float(step), statistics.fmean(values)) for step, values in sorted(by_step.items()))


def typical(points: Sequence[Point], skip: int = 0) -> float | None:
    """The median, without the first `skip` points where more are left; None where there is none."""
    values = [value for _, value in points]
    return statistics.median(values[skip:] or values) if values else None
