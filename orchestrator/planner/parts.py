"""Recomputing some layers: where recomputing all of them fits and keeping all activations does not.

Memory falls and time grows with the number of layers that are recomputed. So the fewest that fit are the fastest, and
of a few more, within what memory may cost in time (`ranking`), the most leave the most memory free. What memory falls
by with a second layer tells how many it takes at least, and so the least time: what could not come first even so is not
looked at further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.config import Checkpointing, RunConfig
from orchestrator.planner.evaluate import Point
from orchestrator.planner.explore import ALL_TIMED, Explorer, Line, Timed, pace_of
from orchestrator.planner.ranking import WORTH_MEMORY
from orchestrator.planner.ways import ENGINES, Way, nearer_residencies, tells_layers

# Recomputing everything takes less than twice as long as recomputing nothing: a third pass beside two.
_MOST_SAVED: Final = 0.5
_SECANTS: Final = 3
_SOME_TRIED: Final = 6  # micro-batches of a way, where not all of them are timed
# The last recomputed layers hardly save anything: a layer's activations are there while it runs backwards anyway.
_LEVEL_LAYERS: Final = 3


_ROUNDING_BYTES: Final = 3  # one of each tier

_Key = tuple[object, int, tuple[int, ...], Way, tuple[int, ...]]  # packing, world, rows, way and micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A micro-batch that fits with all layers recomputed alone, and seconds per token of that."""

    explorer: Explorer
    point: Point
    pace: float


def is_open(config: RunConfig, layers: int) -> bool:
    """Whether the planner may choose a part of so many layers."""
    chosen = config.checkpointing is not Checkpointing.auto or config.checkpointing_layers is not None
    return not chosen and layers > 1 and tells_layers(config)


def add_parts(explorers: Sequence[Explorer]) -> None:
    """Add points that recompute some layers to what the explorers have found, as far as they can come first."""
    paces = [pace_of(item) for explorer in explorers for item in explorer.timed]
    if not paces:
        return
    limit = min(paces) * (1 + WORTH_MEMORY)
    known = {_key(explorer, x.point): pace_of(x) for explorer in reversed(explorers) for x in explorer.timed}
    found: list[tuple[Explorer, Timed]] = []
    for entry in sorted(_open(explorers, known, limit), key=lambda entry: entry.pace):
        item = _fewest(entry.explorer, entry.explorer.ready(entry.point), limit)
        if item is not None:
            found.append((entry.explorer, item))
            limit = min(limit, pace_of(item) * (1 + WORTH_MEMORY))
    for explorer, item in found:
        explorer.timed.append(item)
        if pace_of(item) <= limit:
            explorer.timed += _safer(explorer, item, limit)


def _open(explorers: Sequence[Explorer], known: Mapping[_Key, float], limit: float) -> Iterator[_Open]:
    """Yield the micro-batches that fit with all layers recomputed alone."""
    for explorer in explorers:
        if not is_open(explorer.job.config, explorer.job.model.layers):
            continue
        none = {(id(x.place), x.way.engine, x.way.residency): x for x in explorer.lines if not _recomputes(x)}
        for line in filter(_recomputes, explorer.lines):
            kept = none.get((id(line.place), line.way.engine, line.way.residency))
            left = [] if kept is None else [at for at in line.fitting if at not in kept.fitting]
            whole = {at: _known_pace(explorer, line.points[at], known) for at in left}
            paces = {at: pace for at, pace in whole.items() if pace is not None and pace * _MOST_SAVED <= limit}
            tried = sorted(paces, key=paces.__getitem__)
            for at in tried if len(line.points) <= ALL_TIMED else tried[:_SOME_TRIED]:
                yield _Open(explorer=explorer, point=line.points[at], pace=paces[at])


def _known_pace(explorer: Explorer, point: Point, known: Mapping[_Key, float]) -> float | None:
    """Seconds per token of a point, or of the same with more of it on the device, which is timed in its place."""
    nearer = (replace(point.way, residency=residency) for residency in nearer_residencies(point.way.residency))
    ways = (point.way, *nearer)
    return next(
        (pace for way in ways if (pace := known.get(_key(explorer, replace(point, way=way)))) is not None), None
    )


def _key(explorer: Explorer, point: Point) -> _Key:
    """Jobs that differ in the optimizer alone share times (`Explorer.taken`)."""
    return explorer.job.config.data.packing, id(point.place.world), point.place.rows, point.way, point.micro


def _recomputes(line: Line) -> bool:
    return line.way.checkpointing is not Checkpointing.none


def _part(explorer: Explorer, point: Point, layers: int) -> Point:
    part = replace(point, way=replace(point.way, recomputed=layers))
    # The room for layers that stream is another one then.
    return part if part.streaming is None else explorer.ready(part)


def _timed(explorer: Explorer, point: Point, layers: int) -> Timed:
    return explorer.time(_part(explorer, point, layers))


def _fewest(explorer: Explorer, point: Point, limit: float) -> Timed | None:
    """The smallest number of layers that fits; None where it takes all of them, which do fit, or too long.

    Each layer saves at most what the second one does, so a line through the first two tells the least number.
    """
    layers = explorer.job.model.layers
    margins: dict[int, float] = {}

    def margin(count: int) -> float:
        if count not in margins:
            margins[count] = explorer.fit(_part(explorer, point, count) if count < layers else point).margin
        return margins[count]

    if point.streaming is not None:
        return _fewest_streamed(explorer, point, margin, limit)
    least = 1
    if margin(1) < 0:
        rise = margin(2) - margin(1)
        least = layers if rise <= 0 else 1 + math.ceil(-margin(1) / rise)
    if least >= layers:
        return None
    item = _timed(explorer, point, least)
    if pace_of(item) > limit:
        return None
    if margin(least) >= 0:
        return item
    fewest = least + _crossing(lambda step: margin(least + step), layers - least)
    return _timed(explorer, point, fewest) if fewest < layers else None


def _fewest_streamed(explorer: Explorer, point: Point, margin: Callable[[int], float], limit: float) -> Timed | None:
    """The smallest number of layers that fits, or that leaves room for equal parts of the layers, which arrive sooner.

    Ranks share what each layer saves, so neither the first layers tell how many it takes, nor the time of one.
    """
    layers = explorer.job.model.layers
    whole = replace(point.way, engine=next(iter(ENGINES)), residency=None, recomputed=1)
    if pace_of(explorer.time(replace(point, way=whole, streaming=None))) > limit:
        return None  # even with nothing to fetch
    fewest = 1 if margin(1) >= 0 else 1 + _crossing(lambda step: margin(1 + step), layers - 1)
    if fewest >= layers:
        return None
    found = _timed(explorer, point, fewest)
    if _is_equal(found.point) or not _is_equal(_part(explorer, point, layers - 1)):
        return found
    step = _crossing(lambda more: float(_is_equal(_part(explorer, point, fewest + more))) - 1, layers - 1 - fewest)
    return min(found, _timed(explorer, point, fewest + step), key=pace_of)


def _is_equal(point: Point) -> bool:
    """Whether the ranks of an island hold parts that are equal but for their rounding."""
    islands = () if point.streaming is None else point.streaming.islands.values()
    totals = [[share.total for share in island] for island in islands]
    return all(max(parts) - min(parts) <= _ROUNDING_BYTES for parts in totals)


def _safer(explorer: Explorer, item: Timed, limit: float) -> Iterator[Timed]:
    """Yield points with more layers, still within the limit, that may leave more memory free."""
    fewest, most = item.point.way.recomputed or 0, explorer.job.model.layers - 1
    tried = {fewest: item}

    def over(layers: int) -> float:
        if layers not in tried:
            tried[layers] = _timed(explorer, item.point, layers)
        return pace_of(tried[layers]) - limit

    within = fewest
    if most > fewest:
        beyond = _crossing(lambda step: over(fewest + step), most - fewest) if over(most) > 0 else most + 1 - fewest
        within = fewest + beyond - 1
    for layers in {within, *range(max(fewest, most - _LEVEL_LAYERS), within)} - {fewest}:
        over(layers)
        yield tried[layers]


def _crossing(value: Callable[[int], float], end: int) -> int:
    """The first whole number whose value is not below 0, of 1 to `end`; values grow, below 0 at 0 and not at `end`."""
    low, high = 0, end
    below, above = value(low), value(high)
    turn = 0
    while high - low > 1:
        middle = (low + high) // 2
        if turn < _SECANTS and above > below:
            guess = low + math.ceil(below / (below - above) * (high - low))
            middle = min(high - 1, max(low + 1, guess))
        now = value(middle)
        if now < 0:
            low, below = middle, now
        else:
            high, above = middle, now
        turn += 1
    return high
