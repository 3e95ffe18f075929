"""The rate of the links at which sparse and dense gradients add as much to a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from orchestrator.estimate.setting import Machine
from orchestrator.planner.compress_costs import Offer, Wire
from orchestrator.planner.evaluate import Job, Point, time_of

_SLOWEST: Final = 1e3  # bytes per second, slower than any link
_FASTEST: Final = 1e14
_STRIDE: Final = 8.0
_CLOSE: Final = 1e-4  # of the rate: far nearer than predictions are
_MOST_STEPS: Final = 40


def break_even(job: Job, point: Point, offer: Offer, wire: Wire, machine: Machine) -> float | None:
    """Bus rate of all-gathers in bytes per second, below which sparse gradients are the sooner ones in this step.

    Found by putting rates into the estimate of the step, so that all it knows counts: what the backward pass hides, who
    passes a host's port how often, latencies. Rates inside islands, and all that is no link, stay; the rate of
    all-reduces keeps its proportion to that of all-gathers.

    Args:
        job: of the point.
        point: whose step it is.
        offer: the sparse exchange.
        wire: that the offer was made for.
        machine: the slowest device, likewise.

    Returns:
        None if sparse gradients are sooner at every rate, 0 if dense ones are at every rate.
    """

    def surplus(rate: float) -> float:
        """Seconds that a step takes longer with sparse gradients."""
        factor = rate / wire.bytes_per_second
        classes = tuple(
            replace(ranks, machine=_at(ranks.machine, factor * ranks.machine.gather_bytes_per_second))
            for ranks in point.place.classes
        )
        other = replace(point, place=replace(point.place, classes=classes))
        there = offer.at(replace(wire, bytes_per_second=rate), _at(machine, rate))
        dense, sparse = (time_of(job, replace(other, sparse=each), terms=False).step_seconds for each in (None, there))
        return sparse - dense

    return _root(surplus, wire.bytes_per_second)


def _at(machine: Machine, gather_rate: float) -> Machine:
    factor = gather_rate / machine.gather_bytes_per_second
    return replace(
        machine,
        gather_bytes_per_second=gather_rate,
        link_bytes_per_second=machine.link_bytes_per_second * factor,
    )


def _root(surplus: Callable[[float], float], begin: float) -> float | None:
    """Rate at which the surplus turns from below 0 to above it.

    In seconds per byte it is made of straight pieces, so the line through both ends soon ends on the root (regula falsi
    in the Illinois form, Dowell and Jarratt 1971, which halves the weight of an end that stays twice).
    """
    ends = _ends(surplus, begin)
    if not isinstance(ends, tuple):
        return ends
    (fast, above), (slow, below) = ends  # seconds per byte, and the surplus there
    found, moved = fast, 0
    for _ in range(_MOST_STEPS):
        before, found = found, (fast * below - slow * above) / (below - above)
        value = surplus(1 / found)
        if value > 0:
            fast, above, below = found, value, below / 2 if moved > 0 else below
        else:
            slow, below, above = found, value, above / 2 if moved < 0 else above
        moved = 1 if value > 0 else -1
        if abs(found - before) <= _CLOSE * found:
            break
    return 1 / found


def _ends(
    surplus: Callable[[float], float], begin: float
) -> tuple[tuple[float, float], tuple[float, float]] | float | None:
    """A rate where dense gradients are sooner, and one where sparse ones are; what `break_even` says without one."""
    rate, value = begin, surplus(begin)
    is_dense = value > 0
    while _SLOWEST < rate < _FASTEST:
        before, rate = (1 / rate, value), rate / _STRIDE if is_dense else rate * _STRIDE
        value = surplus(rate)
        if (value > 0) is not is_dense:
            now = (1 / rate, value)
            return (before, now) if is_dense else (now, before)
    return 0.0 if is_dense else None
