"""What the all-to-all schedules have in common: paths between pairs, rounds, and the claim that is proved."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from topology.collectives import Chunk, Collective
from topology.errors import TopologyError
from topology.graph import Graph
from topology.paths import paths_from, width
from topology.routing.contraction import Arc, contracted
from topology.schedule import Phase, Schedule, Send

_MOST_ROUTES: Final = 8


class PairPaths:
    """The widest path of each pair that passes no other device, searched once for each source."""

    def __init__(self, graph: Graph) -> None:
        """Of this graph."""
        self._graph = graph
        self._from: dict[int, tuple[tuple[int, ...] | None, ...]] = {}
        self._small = small = contracted(graph)
        self._arc_of = {edge: at for at, arc in enumerate(small.arcs) for edge in arc.edges}
        self._between: dict[tuple[int, int, int | None], list[int]] = {}
        ends: list[list[tuple[bool, int, int]]] = [[] for _ in range(small.num_nodes)]
        for at, arc in enumerate(small.arcs):
            self._between.setdefault((arc.tail, arc.head, arc.units), []).append(at)
            ends[arc.tail].append((True, arc.head, arc.units or 0))
            ends[arc.head].append((False, arc.tail, arc.units or 0))
        # Ports of one adapter, or adapters on one switch: what has the same neighbours can be exchanged.
        alike: dict[tuple[tuple[bool, int, int], ...], list[int]] = {}
        for node in range(graph.size, small.num_nodes):
            alike.setdefault(tuple(sorted(ends[node])), []).append(node)
        self._twins = {node: nodes for nodes in alike.values() for node in nodes}

    def __call__(self, source: int, target: int) -> tuple[int, ...]:
        """Edge indices of the path.

        Raises:
            TopologyError: there is none.
        """
        if source not in self._from:
            self._from[source] = paths_from(self._graph, source)
        found = self._from[source][target]
        if found is None:
            ids = self._graph.device_ids
            raise TopologyError(
                asked=f"an all-to-all of {self._graph.size} devices",
                found=f"no path from {ids[source]} to {ids[target]} that passes no other device",
                remedy="use a schedule with relay",
            )
        return found

    def routes(self, source: int, target: int) -> tuple[tuple[int, ...], ...]:
        """The widest path, or as many as there are equal wires side by side where it is narrowest.

        A device with several ports to one switch sends through all of them at once, as NCCL's channels do.

        Raises:
            TopologyError: there is no path.
        """
        path = self(source, target)
        least = width(self._graph, path)
        if least is None:
            return (path,)
        arcs = [self._small.arcs[at] for at in dict.fromkeys(self._arc_of[e] for e in path if e in self._arc_of)]
        narrow = (self._alternatives(arc) for arc in arcs if arc.units == least)
        found = (self._exchanged(arcs, turn) for turn in range(1, min(max(narrow), _MOST_ROUTES)))
        return path, *(route for route in found if route)

    def _alternatives(self, arc: Arc) -> int:
        """How many arcs could be in this one's place."""
        ends = (len(self._twins.get(node, ())) for node in (arc.tail, arc.head))
        return max(len(self._between[arc.tail, arc.head, arc.units]), *ends)

    def _exchanged(self, arcs: Sequence[Arc], turn: int) -> tuple[int, ...]:
        """The path `turn` places on among those alike, node by node and arc by arc; () if none leads on."""
        chosen = []
        for arc in arcs:
            tail, head = (_turned(self._twins.get(node, [node]), node, turn) for node in (arc.tail, arc.head))
            between = self._between.get((tail, head, arc.units), [])
            if not between:
                return ()
            own = self._between[arc.tail, arc.head, arc.units]
            place = next(at for at, other in enumerate(own) if self._small.arcs[other] is arc)
            chosen.append(between[(place + turn) % len(between)])
        return self._small.path(chosen)


def _turned(alike: Sequence[int], own: int, turn: int) -> int:
    return alike[(alike.index(own) + turn) % len(alike)]


def partner(rank: int, step: int, size: int) -> int:
    """With whom a rank talks at a step from 1 on: exclusive or pairs both ways; a shift works for any number."""
    return rank ^ step if is_power_of_two(size) else (rank + step) % size


def is_power_of_two(size: int) -> bool:
    """Whether exclusive or makes rounds of a group of this size."""
    return size & (size - 1) == 0


def all_to_all_schedule(
    name: str, graph: Graph, chunks: Sequence[Chunk], sends: Sequence[Send], phases: tuple[Phase, ...]
) -> Schedule:
    """A schedule that claims what its busiest edge needs when all steps overlap."""
    load: dict[int, Fraction] = {}
    for send in sends:
        share = chunks[send.chunk].share
        for at in send.path:
            if graph.edges[at].units is not None:
                load[at] = load.get(at, Fraction(0)) + share
    return Schedule(
        algorithm=name,
        collective=Collective.all_to_all,
        graph=graph,
        chunks=tuple(chunks),
        sends=tuple(sends),
        phases=phases,
        claimed_seconds_per_unit=max(
            (share / (graph.edges[at].units or 1) for at, share in load.items()), default=None
        ),
    )
