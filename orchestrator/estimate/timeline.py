"""One micro-step on four streams: the host's launches, compute, collectives, and copies from the offload target.

Layers are visited forward, then backward. A visit's weights may be copied and gathered as soon as the layer that many
visits before it is done (its window); a window of 0 gathers a layer only when it is needed. Gradients are reduced in
groups of layers behind the backward pass. Each stream does its work in the order in which it was issued.
"""

# ruff: noqa: FURB136 - where a search spends its time, `max` would take most of it
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Stream(StrEnum):
    """Where work runs; one piece at a time each."""

    host = "host"
    compute = "compute"
    comm = "comm"
    copy = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What one layer takes on each stream, in seconds; `window` layers are gathered ahead of it."""

    host: float = 0.0
    compute: float = 0.0
    gather: float = 0.0
    copy: float = 0.0
    window: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One micro-step.

    Attributes:
        layers: of the model.
        forward, backward: of each layer; the backward visit holds the recomputation.
        head_seconds: loss and head, between the passes.
        reduce_seconds: of one group's gradients; 0 where nothing is reduced.
        group_layers: layers of a group.
        tail_seconds: the optimizer, once everything is reduced.
        start_seconds: of the host before the first layer.
    """

    layers: int
    forward: Visit
    backward: Visit
    head_seconds: float = 0.0
    reduce_seconds: float = 0.0
    group_layers: int = 1
    tail_seconds: float = 0.0
    start_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Reject what no step can be."""
        one, two = self.forward, self.backward
        least = min(
            *(one.host, one.compute, one.gather, one.copy, one.window),
            *(two.host, two.compute, two.gather, two.copy, two.window),
            *(self.head_seconds, self.reduce_seconds, self.tail_seconds, self.start_seconds),
        )
        if self.layers < 1 or self.group_layers < 1 or least < 0:
            msg = f"a schedule needs layers and groups of at least 1 and nothing below 0: {self}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work: it starts when its stream is free and all of `after` (earlier tasks) are done."""

    name: str
    stream: Stream
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A task in time, in seconds from the start of the micro-step."""

    name: str
    stream: Stream
    start_seconds: float
    end_seconds: float


def simulate(tasks: Sequence[Task]) -> tuple[Segment, ...]:
    """Start and end of every task; streams work in the order of `tasks`. O(tasks + dependencies)."""
    free = dict.fromkeys(Stream, 0.0)
    ends: list[float] = []
    segments = []
    for task in tasks:
        start = max([free[task.stream], *(ends[index] for index in task.after)])
        end = start + task.seconds
        free[task.stream] = end
        ends.append(end)
        segments.append(Segment(name=task.name, stream=task.stream, start_seconds=start, end_seconds=end))
    return tuple(segments)


def tasks_of(schedule: Schedule) -> tuple[Task, ...]:
    """The pieces of a micro-step in the order in which they are issued."""
    tasks: list[Task] = [Task(name="start", stream=Stream.host, seconds=schedule.start_seconds)]
    computed: list[int] = []
    ready: list[tuple[int, ...]] = []

    def add(name: str, stream: Stream, seconds: float, *after: int) -> int:
        tasks.append(Task(name=name, stream=stream, seconds=seconds, after=after))
        return len(tasks) - 1

    visits = 2 * schedule.layers
    for index in range(visits):
        while len(ready) < visits and len(ready) - _visit(schedule, len(ready)).window <= index:
            ahead, freed = len(ready), tuple(computed[-1:])
            visit = _visit(schedule, ahead)
            waits: tuple[int, ...] = ()
            # Nothing stands in the queue for weights that are there already.
            if visit.copy:
                waits = (add(_name(schedule, "copy", ahead), Stream.copy, visit.copy, *freed),)
            if visit.gather:
                waits = (add(_name(schedule, "gather", ahead), Stream.comm, visit.gather, *waits, *freed),)
            ready.append(waits)
        visit = _visit(schedule, index)
        launched = add(_name(schedule, "launch", index), Stream.host, visit.host)
        if index == schedule.layers:
            add("head", Stream.compute, schedule.head_seconds)
        computed.append(add(_name(schedule, "layer", index), Stream.compute, visit.compute, launched, *ready[index]))
        if _closes_group(schedule, index):
            add(_name(schedule, "reduce", index), Stream.comm, schedule.reduce_seconds, computed[index])
    add("optimizer", Stream.compute, schedule.tail_seconds, *range(len(tasks)))
    return tuple(tasks)


def segments_of(schedule: Schedule) -> tuple[Segment, ...]:
    """The micro-step in time, for a picture; what takes no time is left out."""
    return tuple(part for part in simulate(tasks_of(schedule)) if part.end_seconds > part.start_seconds)


def end_seconds(schedule: Schedule) -> float:
    """When the micro-step is done: the end of `segments_of`, without making the segments.

    O(layers); O(groups) where nothing is gathered or copied.
    """
    forward, backward, layers = schedule.forward, schedule.backward, schedule.layers
    if not (forward.gather or forward.copy or backward.gather or backward.copy):
        return _resident_end(schedule)
    host, copy, comm, compute = schedule.start_seconds, 0.0, 0.0, 0.0
    reduce, group = schedule.reduce_seconds, schedule.group_layers
    gathered: list[float] = []
    issued, visits = 0, 2 * layers
    visit = ahead = forward
    window = ahead.window
    for index in range(visits):
        while issued < visits and issued - window <= index:
            arrived = 0.0
            if ahead.copy:
                arrived = copy = (copy if copy > compute else compute) + ahead.copy
            if ahead.gather:
                free = comm if comm > compute else compute
                arrived = comm = (arrived if arrived > free else free) + ahead.gather
            gathered.append(arrived)
            issued += 1
            if issued == layers:
                ahead, window = backward, backward.window
        if index == layers:
            visit = backward
            compute += schedule.head_seconds
        host += visit.host
        compute = compute if compute > host else host
        compute = (compute if compute > gathered[index] else gathered[index]) + visit.compute
        if reduce and index >= layers and ((index - layers + 1) % group == 0 or index + 1 == visits):
            comm = (comm if comm > compute else compute) + reduce
    return max(host, copy, comm, compute) + schedule.tail_seconds


def _resident_end(schedule: Schedule) -> float:
    """The end where only launches hold compute up.

    Visit j of n alike ones ends at the latest of j c after the last pass, and i h + (j - i + 1) c for every i up to j:
    a linear function of i, so i = 1 and i = j suffice.
    """
    layers, start, way = schedule.layers, schedule.start_seconds, schedule.forward
    done = start + max(way.host + layers * way.compute, layers * way.host + way.compute) + schedule.head_seconds
    launched, way = start + layers * way.host, schedule.backward

    def computed(visits: int) -> float:
        first, last = way.host + visits * way.compute, visits * way.host + way.compute
        return max(done + visits * way.compute, launched + first, launched + last)

    end = computed(layers)
    if schedule.reduce_seconds:
        comm = 0.0
        for closed in range(schedule.group_layers, layers + schedule.group_layers, schedule.group_layers):
            comm = max(comm, computed(min(closed, layers))) + schedule.reduce_seconds
        end = max(end, comm)
    return max(end, launched + layers * way.host) + schedule.tail_seconds


def serial_seconds(schedule: Schedule) -> float:
    """When nothing runs beside anything else."""
    visits = (schedule.forward, schedule.backward)
    layers = schedule.layers * sum(x.host + x.compute + x.gather + x.copy for x in visits)
    groups = -(-schedule.layers // schedule.group_layers)
    ends = schedule.start_seconds + schedule.head_seconds + schedule.tail_seconds
    return layers + ends + groups * schedule.reduce_seconds


def busiest_seconds(schedule: Schedule) -> float:
    """Work of the busiest stream: no order of the pieces is faster."""
    visits, layers = (schedule.forward, schedule.backward), schedule.layers
    groups = -(-layers // schedule.group_layers)
    return max(
        schedule.start_seconds + layers * sum(x.host for x in visits),
        schedule.head_seconds + schedule.tail_seconds + layers * sum(x.compute for x in visits),
        groups * schedule.reduce_seconds + layers * sum(x.gather for x in visits),
        layers * sum(x.copy for x in visits),
    )


def _visit(schedule: Schedule, index: int) -> Visit:
    return schedule.forward if index < schedule.layers else schedule.backward


def _closes_group(schedule: Schedule, index: int) -> bool:
    done = index - schedule.layers + 1
    return done >= 1 and (done % schedule.group_layers == 0 or done == schedule.layers)


def _name(schedule: Schedule, what: str, index: int) -> str:
    layers = schedule.layers
    return f"{what} {index} forward" if index < layers else f"{what} {2 * layers - 1 - index} backward"
