"""Every way and micro-batch of one job, world by world: what fits, with its time, and what does not, with the reason.

Memory grows with the micro-batch, so the largest that fits is found by bisection and none above it is timed. Up to 16
micro-batches that fit are all timed; of more, twelve in growing steps, and then those around the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.config import Checkpointing, Compress, Engine, Offload
from orchestrator.estimate.recomputed import mode_text
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.values import StepTime
from orchestrator.planner.compress_choice import conflict_of_sparse, offer_of, sparse_first, sparse_instead
from orchestrator.planner.compress_costs import Offer
from orchestrator.planner.evaluate import Job, Place, Point, fit_of, settings_of, time_of
from orchestrator.planner.fits import Fit, Misfit
from orchestrator.planner.points import bare_layer_seconds, label_of, places_of, points_of, with_knobs
from orchestrator.planner.strategy import options_label
from orchestrator.planner.variants import OPTIMIZER_HANDICAP
from orchestrator.planner.ways import (
    Residency,
    Way,
    adapter_conflict,
    conflict_of,
    handicap_of,
    nearer_residencies,
    ways_for,
)
from orchestrator.planner.world import World

ALL_TIMED = 16
_SOME_TIMED = 12
_NEAR_TIMED = 6
_CUT_GAIN = 1.75  # room for activations instead of the base saves a third pass beside two, and larger products
_NO_GAIN = "a whole copy fits with the same micro-batches and recomputes no more: fetching layers would only take time"
_FITS_NEARER = "the same micro-batches fit with the base nearer to the devices, which is looked at in its place"

Taken = dict[object, set[int]]  # micro-batches of a place and way that fit, by their number


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A point of a job that fits, with its time."""

    job: Job
    point: Point
    time: StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A way at a place, with a point for each micro-batch, without knobs, and the numbers of those that fit."""

    place: Place
    way: Way
    points: tuple[Point, ...]
    fitting: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A way that does not fit, with what the tightest rank lacks, or that cannot be combined (0 bytes)."""

    strategy: str
    reason: str
    missing_bytes: int = 0


def group_of(world: World, way: Way) -> tuple[object, ...]:
    """What is listed once: where the optimizer's state lies is decided by the order, and not shown apart."""
    place = None if way.residency is None else (way.residency.param, way.residency.second_copy, way.residency.island)
    return id(world), way.engine, way.checkpointing, way.recomputed is None, place


def pace_of(item: Timed) -> float:
    """Seconds per token of the data, with the handicaps of its way and optimizer."""
    tokens = sum(item.point.place.rows) * item.job.batch.real_tokens_per_row
    handicap = handicap_of(item.point.way) * OPTIMIZER_HANDICAP[item.job.config.optimizer.name]
    return item.time.step_seconds / tokens * handicap


def _next(low: int, high: int, known: int, count: int) -> int:
    """Which of `count` points to look at, of which `low` fit and at most `high` may: both ends, then the middle."""
    if high == count and low > known:
        return count - 1
    return low if low == known else (low + high) // 2


def _best_pace(items: Sequence[Timed]) -> float:
    return min(map(pace_of, items))


def _spread(count: int) -> list[int]:
    """All of `count` micro-batches, or the first, the last and some between, in growing steps."""
    if count <= ALL_TIMED:
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


class Explorer:
    """What fits and what does not, world by world; the caches keep alive what they are keyed by.

    `taken` is shared by jobs that differ in the optimizer alone: what fits with one of them takes as long with the
    others, which have a larger handicap, and so cannot come first. `parts` names worlds that have a twin in size.
    """

    def __init__(self, job: Job, taken: Taken, parts: Mapping[int, str]) -> None:
        """Begin with nothing explored."""
        self.job = job
        self.taken = taken
        self.parts = parts
        self.timed: list[Timed] = []
        self.lines: list[Line] = []
        self.refused: dict[object, Refused] = {}
        self._fits: dict[int, tuple[Point, Fit]] = {}
        self._settings: dict[int, tuple[Point, tuple[Setting, ...]]] = {}
        self._layers: dict[object, float] = {}
        self._offers: dict[int, Offer | None] = {}
        self._places: list[Place] = []

    def explore(self, world: World) -> None:
        """Try every way in this world."""
        places = tuple(places_of(self.job, world))
        self._places += places
        for way in ways_for(self.job.config, world, self.job.model.layers):
            tried = [x for x in places if way.residency is None or not self._is_behind(x)]
            if not tried:
                break
            conflict = (
                conflict_of(self.job.config, world, way, places[0].precision)
                or adapter_conflict(self.job.model, self.job.adapter, way.engine)
                or self._sparse_conflict(places[0], way)
            )
            if conflict is not None:
                self._conflict(world, way, conflict)
                continue
            found: list[Timed] = []
            misfits = [self._try(place, way, found) for place in tried]
            self.timed += found
            refused = [misfit for misfit in misfits if misfit is not None]
            if not found and refused:
                self._refuse((*self._choice(), *group_of(world, way)), refused)
            elif not found and way.engine is Engine.streamed:
                self._conflict(world, way, _NO_GAIN)
            elif not found and way.residency is not None and self._has_nearer(way.residency):
                self._conflict(world, way, _FITS_NEARER)

    def _has_nearer(self, residency: Residency) -> bool:
        """Whether the base may lie nearer to the device."""
        return residency.param is not Offload.none and self.job.config.engine.offload_param is Offload.auto

    def _is_behind(self, place: Place) -> bool:
        """Whether whole copies fit here, and take so much longer than what another place offers that no cut helps."""
        whole = [x for x in self.timed if x.point.place is place and x.point.way.engine is Engine.ddp]
        return bool(whole) and _best_pace(whole) > _CUT_GAIN * _best_pace(self.timed)

    def farther(self, item: Timed) -> Iterator[Timed]:
        """The point with more of it off the device, which `_outdone` leaves out: slower, but with more room left."""
        point, place = item.point, item.point.place
        ways = ways_for(self.job.config, place.world, self.job.model.layers)
        for residency in dict.fromkeys(way.residency for way in ways if way.engine is point.way.engine):
            way = replace(point.way, residency=residency)
            if point.way.residency not in tuple(nearer_residencies(residency)):
                continue
            if conflict_of(self.job.config, place.world, way, place.precision) is None:
                moved = self.ready(replace(point, way=way))
                if self.fit(moved).misfit is None:
                    yield self.time(moved)

    def fit(self, point: Point) -> Fit:
        """Memory of a point, estimated once."""
        if id(point) not in self._fits:
            self._fits[id(point)] = (point, fit_of(self.job, point, self._settings_of(point)))
        return self._fits[id(point)][1]

    def _try(self, place: Place, way: Way, found: list[Timed]) -> tuple[Point, Misfit] | None:
        """Add the micro-batches that fit; return the smallest, and why it does not, where none does."""
        taken = self.taken.setdefault((id(place.world), place.rows, way), set())
        bare = tuple(points_of(self.job.config, place, way))
        taken |= self._outdone(place, way)
        if len(taken) == len(bare):
            self.lines.append(Line(place=place, way=way, points=bare, fitting=tuple(range(len(bare)))))
            return None
        known: dict[int, Point] = {}

        def point(at: int) -> Point:
            if at not in known:
                known[at] = self.ready(bare[at])
            return known[at]

        # With one forward pass a step no gradient waits for the next: it is not in line with the others.
        single = bare[-1].accumulation == 1
        last = len(bare) - 1
        known_to_fit = next(at for at in range(len(bare)) if at not in taken)
        fitting = list(range(self._fitting(point, known_to_fit, len(bare) - single)))
        if single and (last in taken or self.fit(point(last)).misfit is None):
            fitting.append(last)
        if not fitting:
            self.lines.append(Line(place=place, way=way, points=bare, fitting=()))
            misfits = [(at, self.fit(point(at)).misfit) for at in sorted({0, last})]
            told = [(point(at), misfit) for at, misfit in misfits if misfit is not None]
            return min(told, key=lambda item: item[1].missing_bytes)
        self.lines.append(Line(place=place, way=way, points=bare, fitting=tuple(fitting)))
        fitting = [at for at in fitting if at not in taken]
        if not fitting:
            return None
        taken.update(fitting)
        shown = [fitting[at] for at in _spread(len(fitting))]
        times = {at: self.time(point(at)) for at in shown}
        for at in _around(times, fitting):
            times[at] = self.time(point(at))
        found += times.values()
        return None

    def _outdone(self, place: Place, way: Way) -> set[int]:
        """Micro-batches of a way that fit in a simpler one, where they take less time."""
        if way.engine is Engine.streamed:
            return self._whole(place, way)
        nearer = {replace(way, residency=residency) for residency in nearer_residencies(way.residency)}
        return {at for line in self.lines if line.place is place and line.way in nearer for at in line.fitting}

    def _whole(self, place: Place, way: Way) -> set[int]:
        """Micro-batches of a way that streams that a whole copy fits, too, without recomputing more.

        The same kernels run there, and nothing is fetched: streaming them cannot come first.
        """
        if self.job.config.engine.name is not Engine.auto:
            return set()
        modes = {Checkpointing.none}
        if self.job.config.checkpointing is not Checkpointing.auto or way.recomputed is not None:
            modes.add(way.checkpointing)  # no part of the layers is looked at instead
        return {
            at
            for line in self.lines
            if line.place is place and line.way.engine is Engine.ddp and line.way.checkpointing in modes
            for at in line.fitting
        }

    def time(self, point: Point) -> Timed:
        """A point with its time; with sparse gradients where these are worth it and fit."""
        time = time_of(self.job, point, terms=False, settings=self._settings_of(point))
        instead = sparse_instead(self.job, point, time, self._offer(point.place))
        if instead is not None and self.fit(instead[0]).misfit is None:
            point, time = instead
        return Timed(job=self.job, point=point, time=time)

    def _settings_of(self, point: Point) -> tuple[Setting, ...]:
        if id(point) not in self._settings:
            self._settings[id(point)] = (point, settings_of(self.job, point))
        return self._settings[id(point)][1]

    def _offer(self, place: Place) -> Offer | None:
        if id(place) not in self._offers:
            self._offers[id(place)] = offer_of(self.job, place)
        return self._offers[id(place)]

    def _sparse_conflict(self, place: Place, way: Way) -> str | None:
        """Why the sparse gradients that were asked for cannot go with this way."""
        if self.job.config.compress.name is not Compress.topk:
            return None
        return conflict_of_sparse(self.job, self.ready(next(iter(points_of(self.job.config, place, way)))))

    def _fitting(self, point: Callable[[int], Point], known: int, count: int) -> int:
        """How many of the first `count` points fit, each of which needs more than the one before: at least `known`."""
        low, high = known, count  # the first `low` fit, and no more than `high` do
        # The largest first: mostly all of them fit. Where a simpler way has told some, mostly no more do.
        tried = known or count - 1
        while low < high:
            if self.fit(point(tried)).misfit is None:
                low = tried + 1
            else:
                high = tried
            tried = _next(low, high, known, count)
        return low

    def ready(self, point: Point) -> Point:
        """The point with the knobs of its engine, and with sparse gradients where they are asked for."""
        if point.way.residency is None:
            return sparse_first(self.job, point, self._offer(point.place))
        key = id(point.place), point.way.checkpointing, point.micro
        if key not in self._layers:
            self._layers[key] = bare_layer_seconds(self.job, point)
        known = with_knobs(self.job, point, self._layers[key])
        return sparse_first(self.job, known, self._offer(point.place))

    def _conflict(self, world: World, way: Way, conflict: str) -> None:
        """Tell a conflict once, and of which part it is true where that is not the whole."""
        name = way.engine.value
        if world is not self._places[0].world:
            place = f", offload {way.residency.param.value}" if way.engine is Engine.zero3 and way.residency else ""
            name += f" on {world.size} rank{'s' if world.size > 1 else ''}{place}"
        key = (way.engine, way.checkpointing, conflict)
        name += f", {mode_text(way.checkpointing, way.recomputed, self.job.model.layers)}{self._options()}"
        self.refused.setdefault(key, Refused(strategy=name, reason=conflict))

    def _options(self) -> str:
        config = self.job.config
        return options_label(packing=bool(config.data.packing), optimizer=config.optimizer.name)

    def _choice(self) -> tuple[object, ...]:
        return self.job.config.data.packing, self.job.config.optimizer.name

    def _refuse(self, group: object, misfits: list[tuple[Point, Misfit]]) -> None:
        for point, misfit in misfits:
            before = self.refused.get(group)
            if before is None or misfit.missing_bytes < before.missing_bytes:
                missing, name = misfit.missing_bytes, label_of(self.job, point)
                name += self.parts.get(id(point.place.world), "")
                self.refused[group] = Refused(strategy=name, reason=misfit.reason, missing_bytes=missing)
