"""All ways to run that the configuration leaves open, ranked; the others with their reasons.

Searched: part of the machine x rows per rank x engine x residency x checkpointing x micro-batch; the global batch is
kept. Memory grows with the micro-batch, so the largest that fits is found by bisection and none above it is timed. Up
to 16 micro-batches that fit are all timed; of more, twelve in growing steps, and then those around the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.estimate.values import Estimate, StepTime
from orchestrator.planner.evaluate import Fit, Job, Misfit, Place, Point, fit_of, time_of
from orchestrator.planner.plan import Choice
from orchestrator.planner.points import (
    bare_layer_seconds,
    label_of,
    places_of,
    points_of,
    strategy_of,
    with_knobs,
)
from orchestrator.planner.ranking import Rank, order
from orchestrator.planner.ways import Way, conflict_of, handicap_of, ways_for
from orchestrator.planner.world import World

_SHORT_LIST = 10
_ALL_TIMED = 16
_SOME_TIMED = 12
_NEAR_TIMED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A point that fits, with its time."""

    point: Point
    time: StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A way that does not fit, with what the tightest rank lacks, or that cannot be combined (0 bytes)."""

    strategy: str
    reason: str
    missing_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What fits, best first, and what does not, nearest to fitting first; `num_fit` counts ways that fit.

    `best` is the point of the first choice; None where nothing fits. `even_seconds` are those of a step with equal
    rows in the same way to run; None where the rows are equal, or where that does not fit.
    """

    ranked: tuple[Choice, ...]
    refused: tuple[Refused, ...]
    num_fit: int
    best: Point | None
    even_seconds: float | None = None

    @property
    def num_misfits(self) -> int:
        """How many ways were refused for lack of memory."""
        return sum(refused.missing_bytes > 0 for refused in self.refused)


def search(job: Job, worlds: Sequence[World]) -> Found:
    """Rank one point per way and part of the machine, each with its best rows, micro-batch and place of the moments."""
    explorer = _Explorer(job)
    for world in worlds:
        explorer.explore(world)
    refused = sorted(explorer.refused.values(), key=lambda entry: (not entry.missing_bytes, entry.missing_bytes))
    best = order(explorer.timed, lambda item: rank_of(job, item), lambda item: explorer.fit(item.point).margin)
    kept = _short_list(best)
    return Found(
        ranked=tuple(
            Choice(strategy=strategy_of(job, item.point), estimate=_estimate(job, item, explorer.fit(item.point)))
            for item in kept
        ),
        refused=tuple(refused),
        num_fit=len(best),
        best=best[0].point if best else None,
        even_seconds=_even_seconds(best[0].point, explorer.timed) if best else None,
    )


def _even_seconds(best: Point, timed: Sequence[Timed]) -> float | None:
    if _is_even(best):
        return None
    same = [x for x in timed if x.point.place.world is best.place.world and x.point.way == best.way]
    return min((item.time.step_seconds for item in same if _is_even(item.point)), default=None)


def _is_even(point: Point) -> bool:
    return max(point.place.rows) - min(point.place.rows) <= 1


def rank_of(job: Job, item: Timed) -> Rank:
    """What the order of strategies looks at."""
    point = item.point
    tokens = sum(point.place.rows) * job.batch.real_tokens_per_row
    return Rank(
        group=_group(point.place.world, point.way),
        seconds_per_token=item.time.step_seconds / tokens * handicap_of(point.way),
        devices=point.place.world.size,
    )


def _group(world: World, way: Way) -> object:
    """What is listed once: where the optimizer's state lies is decided by the order, and not shown apart."""
    place = None if way.residency is None else (way.residency.param, way.residency.second_copy)
    return id(world), way.engine, way.checkpointing, place


def _short_list(best: Sequence[Timed]) -> list[Timed]:
    """The first ones, and behind them the first of each engine and number of ranks."""
    kept = list(best[:_SHORT_LIST])
    seen = {_kind(item) for item in kept}
    for item in best[_SHORT_LIST:]:
        if _kind(item) not in seen:
            seen.add(_kind(item))
            kept.append(item)
    return kept


def _kind(item: Timed) -> object:
    return item.point.way.engine, item.point.place.world.size


def _estimate(job: Job, item: Timed, fit: Fit) -> Estimate:
    """Memory of the tightest rank and time of the slowest one."""
    tokens = sum(item.point.place.rows) * job.batch.real_tokens_per_row
    time = item.time
    return Estimate(
        memory=fit.memory,
        step_seconds=time.step_seconds,
        tokens_per_second=tokens / time.step_seconds,
        lower_seconds=time.lower_seconds,
        upper_seconds=time.upper_seconds,
        time_terms=time.terms,
    )


def _spread(count: int) -> list[int]:
    """All of `count` micro-batches, or the first, the last and some between, in growing steps."""
    if count <= _ALL_TIMED:
        return list(range(count))
    growth = (count - 1) ** (1 / (_SOME_TIMED - 2))
    return sorted({0, count - 1, *(round(growth**step) for step in range(_SOME_TIMED - 1))})


def _around(times: Mapping[int, Timed], fitting: Sequence[int]) -> list[int]:
    """What lies between the fastest of those timed and its neighbours: a few of them, where it is much."""
    known = sorted(times)
    best = min(known, key=lambda at: times[at].time.step_seconds)
    place = known.index(best)
    ends = known[max(0, place - 1)], known[min(len(known) - 1, place + 1)]
    between = [at for at in fitting if ends[0] <= at <= ends[1] and at not in times]
    return between[:: max(1, len(between) // _NEAR_TIMED)]


class _Explorer:
    """What fits and what does not, world by world; the caches keep alive what they are keyed by."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.timed: list[Timed] = []
        self.refused: dict[object, Refused] = {}
        self._fits: dict[int, tuple[Point, Fit]] = {}
        self._layers: dict[object, float] = {}
        self._places: list[Place] = []

    def explore(self, world: World) -> None:
        """Try every way in this world."""
        places = tuple(places_of(self.job, world))
        self._places += places
        for way in ways_for(self.job.config, world):
            conflict = conflict_of(self.job.config, world, way, places[0].precision)
            if conflict is not None:
                self._conflict(world, way, conflict)
                continue
            found: list[Timed] = []
            misfits = [self._try(place, way, found) for place in places]
            self.timed += found
            if not found:
                self._refuse(_group(world, way), [misfit for misfit in misfits if misfit is not None])

    def fit(self, point: Point) -> Fit:
        """Memory of a point, estimated once."""
        if id(point) not in self._fits:
            self._fits[id(point)] = (point, fit_of(self.job, point))
        return self._fits[id(point)][1]

    def _try(self, place: Place, way: Way, found: list[Timed]) -> tuple[Point, Misfit] | None:
        """Add the micro-batches that fit; return the smallest, and why it does not, where none does."""
        bare = tuple(points_of(self.job.config, place, way))
        known: dict[int, Point] = {}

        def point(at: int) -> Point:
            if at not in known:
                known[at] = self._with_knobs(bare[at])
            return known[at]

        # With one forward pass a step no gradient waits for the next: it is not in line with the others.
        single = bare[-1].accumulation == 1
        last = len(bare) - 1
        fitting = list(range(self._fitting(point, len(bare) - single)))
        if single and self.fit(point(last)).misfit is None:
            fitting.append(last)
        if not fitting:
            misfits = [(at, self.fit(point(at)).misfit) for at in sorted({0, last})]
            told = [(point(at), misfit) for at, misfit in misfits if misfit is not None]
            return min(told, key=lambda item: item[1].missing_bytes)
        times = {fitting[at]: self._timed(point(fitting[at])) for at in _spread(len(fitting))}
        for at in _around(times, fitting):
            times[at] = self._timed(point(at))
        found += times.values()
        return None

    def _timed(self, point: Point) -> Timed:
        return Timed(point=point, time=time_of(self.job, point))

    def _fitting(self, point: Callable[[int], Point], count: int) -> int:
        """How many of the first `count` points fit, each of which needs more than the one before."""
        if count == 0 or self.fit(point(0)).misfit is not None:
            return 0
        low, high = 0, count - 1  # `low` fits, nothing above `high` does
        while low < high:
            # The largest first: mostly all of them fit.
            middle = high if high == count - 1 and low == 0 else (low + high + 1) // 2
            if self.fit(point(middle)).misfit is None:
                low = middle
            else:
                high = middle - 1
        return low + 1

    def _with_knobs(self, point: Point) -> Point:
        if point.way.residency is None:
            return point
        key = id(point.place), point.way.checkpointing, point.micro
        if key not in self._layers:
            self._layers[key] = bare_layer_seconds(self.job, point)
        return with_knobs(self.job, point, self._layers[key])

    def _conflict(self, world: World, way: Way, conflict: str) -> None:
        """Tell a conflict once, and of which part it is true where that is not the whole."""
        name = way.engine.value
        if world is not self._places[0].world:
            place = "" if way.residency is None else f", offload {way.residency.param.value}"
            name += f" on {world.size} rank{'s' if world.size > 1 else ''}{place}"
        key = (way.engine, way.checkpointing, conflict)
        name += f", checkpointing {way.checkpointing.value}"
        self.refused.setdefault(key, Refused(strategy=name, reason=conflict))

    def _refuse(self, group: object, misfits: list[tuple[Point, Misfit]]) -> None:
        for point, misfit in misfits:
            before = self.refused.get(group)
            if before is None or misfit.missing_bytes < before.missing_bytes:
                missing = misfit.missing_bytes
                self.refused[group] = Refused(strategy=label_of(point), reason=misfit.reason, missing_bytes=missing)
