"""The course of a run over its steps: loss, throughput, memory, exposed waits, temperatures."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from orchestrator.monitor.readings import RankReading
from orchestrator.report.page.chart import Chart, Look, Mark, Series, Unit
from orchestrator.report.page.record import Body, Record
from orchestrator.report.page.scale import Point
from orchestrator.report.page.steps import mean_of_ranks, typical
from orchestrator.report.page.words import inside, loss, number, size, span

_MOST_LINES: Final = 4  # of ranks or devices that get a line each
WARM_UP_STEPS: Final = 2  # they pay for allocation, tracing and the start of threads


def charts_of(record: Record, marks: tuple[Mark, ...] = (), prefix: str = "") -> tuple[Chart, ...]:
    """All charts of a run, on one axis of steps."""
    steps = [found for found in (number(one.get("step")) for one in record.metrics) if found is not None]
    ends = (min(steps), max(steps)) if steps else None
    made = [
        _loss(record),
        _throughput(record),
        _memory(record),
        _waits(record),
        _temperatures(record),
    ]
    return tuple(
        Chart(
            name=f"{prefix}{name}",
            title=title,
            told=told,
            series=series,
            unit=unit,
            marks=marks,
            from_zero=from_zero,
            steps=ends,
        )
        for name, title, told, series, unit, from_zero in made
    )


_Made = tuple[str, str, str, tuple[Series, ...], Unit, bool]


def points_of(records: Iterable[Body], key: str) -> tuple[Point, ...]:
    """Steps and values of a key; a value that is no number is a gap."""
    found = []
    for record in records:
        step = number(record.get("step"))
        if step is not None and key in record:
            value = number(record.get(key))
            found.append((step, math.nan if value is None else value))
    return tuple(sorted(found, key=lambda point: point[0]))


def _loss(record: Record) -> _Made:
    train, held = points_of(record.losses, "loss"), points_of(record.metrics, "eval_loss")
    gaps = sum(1 for _, value in train if not math.isfinite(value))
    told = f"Training loss of each step and held-out loss where it was evaluated; lower is better. {_fall(train, held)}"
    told += f" In {gaps} steps the loss was not a number: there the line is broken." if gaps else ""
    series = (
        Series(name="training", points=train, colour=0),
        Series(name="held-out", points=held, colour=1, look=Look.dots),
    )
    return "loss", "Loss", told, series, Unit.plain, False


def _fall(train: Sequence[Point], held: Sequence[Point]) -> str:
    for points, what in ((held, "held-out"), (train, "training")):
        finite = [value for _, value in points if math.isfinite(value)]
        if len(finite) > 1:
            return f"The {what} loss went from {loss(finite[0])} to {loss(finite[-1])}."
    return ""


def _throughput(record: Record) -> _Made:
    points = points_of(record.losses, "tokens_per_second")
    planned = number(record.predicted.get("tokens_per_second"))
    finite = [value for _, value in points if math.isfinite(value)]
    told = "Tokens of all ranks per second, step by step; higher is better."
    if finite:
        told += f" The median was {statistics.median(finite):,.0f}."
    series = (Series(name="measured", points=points, colour=0), *_level("predicted", points, planned))
    return "throughput", "Throughput (tokens/s)", told, series, Unit.plain, True


def _level(name: str, points: Sequence[Point], value: float | None) -> tuple[Series, ...]:
    """A dashed line across the chart."""
    if value is None or not points:
        return ()
    return (Series(name=name, points=((points[0][0], value), (points[-1][0], value)), colour=3, look=Look.dashed),)


def _memory(record: Record) -> _Made:
    key = "device" if record.is_gpu else "host"
    by_rank = {rank: _points(own, _bytes_of(record)) for rank, own in _ranks(record).items()}
    lines = _lines({f"rank {rank}": points for rank, points in by_rank.items()}, "rank")
    planned = number(inside(record.predicted, "memory", "train", f"{key}_bytes"))
    first = next((one.points for one in lines if one.points), ())
    what = "Memory that each rank's device holds" if record.is_gpu else "Resident memory of each rank's process"
    told = f"{what} after each step, under the peak that the plan expects."
    most = max((value for one in lines for _, value in one.points if math.isfinite(value)), default=None)
    told += "" if most is None else f" The most was {size(most)}."
    return "memory", "Memory", told, (*lines, *_level("predicted peak", first, planned)), Unit.bytes, True


def _bytes_of(record: Record) -> Callable[[RankReading], float | None]:
    if record.is_gpu:
        return lambda one: one.reserved_bytes or one.device_peak_bytes or one.device_bytes
    return lambda one: one.host_bytes


def _waits(record: Record) -> _Made:
    """Of a step, what ranks waited for others: the mean over ranks of each step."""
    kinds: tuple[tuple[str, int, Callable[[RankReading], float | None]], ...] = (
        ("for gradients", 2, lambda one: one.communication_seconds),
        ("for layers", 4, lambda one: one.prefetch_seconds),
        ("whole step", 0, lambda one: one.step_seconds),
    )
    found = ((name, colour, mean_of_ranks(record.ranks, value)) for name, colour, value in kinds)
    series = tuple(
        Series(name=name, points=points, colour=colour)
        for name, colour, points in found
        if any(value > 0 for _, value in points)
    )
    told = "Seconds of a step in which ranks waited for others with nothing to hide it (mean of the ranks)."
    medians = {one.name: typical(one.points, WARM_UP_STEPS) for one in series}
    waits = ", ".join(f"{span(value)} {name}" for name, value in medians.items() if name != "whole step")
    told += f" Typically {waits} of {span(medians.get('whole step'))}." if waits else ""
    return "waits", "Exposed waits", told, series, Unit.seconds, True


def _temperatures(record: Record) -> _Made:
    step_at = _steps(record.losses)
    found = defaultdict[str, list[Point]](list)
    for one in record.devices:
        step = step_at(one.time)
        if one.temperature_celsius is not None and step is not None:
            found[one.device].append((step, float(one.temperature_celsius)))
    lines = _lines({name: tuple(points) for name, points in found.items()}, "device")
    most = max((value for one in lines for _, value in one.points), default=None)
    told = "Temperature of each GPU."
    told += f" The hottest reading was {most:.0f} \u00b0C." if most is not None else ""
    told += "" if lines else " There is nothing to show: the run has no GPU readings."
    return "temperatures", "Temperatures", told, lines, Unit.celsius, False


def _steps(losses: Sequence[Body]) -> Callable[[float], float | None]:
    """The step, with its fraction, that was under way at a time."""
    known = [(number(one.get("time")), number(one.get("step"))) for one in losses]
    pairs = sorted((time, step) for time, step in known if time is not None and step is not None)
    times = [time for time, _ in pairs]

    def at_time(time: float) -> float | None:
        at = bisect_right(times, time)
        if not at or at == len(pairs):
            return None  # before the first step was done, or after the last
        (begin, first), (end, last) = pairs[at - 1], pairs[at]
        return first + (last - first) * (time - begin) / (end - begin) if end > begin else first

    return at_time


def _ranks(record: Record) -> dict[int, list[RankReading]]:
    found = defaultdict[int, list[RankReading]](list)
    for one in record.ranks:
        found[one.rank].append(one)
    return dict(sorted(found.items()))


def _points(own: Sequence[RankReading], value: Callable[[RankReading], float | None]) -> tuple[Point, ...]:
    found = ((float(one.step), value(one)) for one in own)
    return tuple(sorted((step, float(known)) for step, known in found if known is not None))


def _lines(named: dict[str, tuple[Point, ...]], noun: str) -> tuple[Series, ...]:
    """A line each, or the highest and the middle one of many."""
    named = {name: points for name, points in named.items() if points}
    if len(named) <= _MOST_LINES:
        return tuple(Series(name=name, points=points, colour=at) for at, (name, points) in enumerate(named.items()))
    by_step = defaultdict[float, list[float]](list)
    for points in named.values():
        for step, value in points:
            by_step[round(step)].append(value)
    kinds = ((f"highest of {len(named)} {noun}s", max, 1), (f"median of the {noun}s", statistics.median, 0))
    return tuple(
        Series(name=name, points=tuple((step, pick(values)) for step, values in sorted(by_step.items())), colour=colour)
        for name, pick, colour in kinds
    )
