"""A smaller graph with the same flows between devices: nodes that only pass bytes on are folded into arcs.

Where a PCIe switch, a bridge or a NIC joins just two neighbours, the two wires are one arc of the narrower rate; where
an unlimited wire joins two nodes, they are one; what leads nowhere is dropped. Devices stay as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from topology.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """A chain of edges as one; `units` (MB/s, None: no limit) are those of its narrowest.

    Attributes:
        tail: node of the smaller graph.
        head: the same.
        units: whole MB/s, None limits nothing.
        edges: indices into the graph, in order; unlimited edges within a folded node are left out.
    """

    tail: int
    head: int
    units: int | None
    edges: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """Nodes 0 to `graph.size` - 1 are the devices of `graph`; `num_nodes` counts all that are left."""

    graph: Graph
    num_nodes: int
    arcs: tuple[Arc, ...]

    def path(self, arcs: Iterable[int]) -> tuple[int, ...]:
        """Edges of the graph for arcs that follow each other, with the unlimited ones between them."""
        edges = [edge for at in arcs for edge in self.arcs[at].edges]
        found = edges[:1]
        for before, after in pairwise(edges):
            start, goal = self.graph.edges[before].head, self.graph.edges[after].tail
            found += self._unlimited(start, goal)
            found.append(after)
        return tuple(found)

    def _unlimited(self, start: int, goal: int) -> list[int]:
        """Fewest unlimited edges from one switch to another."""
        came: dict[int, int] = {}
        waiting = deque([start])
        while waiting and goal not in came and start != goal:
            for edge in self._free[waiting[0]]:
                head = self.graph.edges[edge].head
                if head != start and head not in came:
                    came[head] = edge
                    waiting.append(head)
            waiting.popleft()
        steps: list[int] = []
        while goal != start:
            steps.append(came[goal])
            goal = self.graph.edges[came[goal]].tail
        return steps[::-1]

    @cached_property
    def _free(self) -> tuple[tuple[int, ...], ...]:
        edges, size = self.graph.edges, self.graph.size
        return tuple(
            tuple(at for at in leaving if edges[at].units is None and edges[at].head >= size)
            for leaving in self.graph.leaving
        )

    def narrowest(self, arc: int) -> tuple[int, ...]:
        """The edges of an arc that limit it."""
        found = self.arcs[arc]
        return tuple(at for at in found.edges if found.units is not None and self.graph.edges[at].units == found.units)


@lru_cache(maxsize=64)
def contracted(graph: Graph) -> Contraction:
    """Fold every switch that need not be a node of its own; flows between devices are the same as before."""
    work = _Work(graph)
    while sum(work.fold(node) for node in range(graph.size, len(graph.nodes)) if node in work.alive):
        pass  # each pass tries every node: folding one may make another foldable
    names = {node: at for at, node in enumerate(sorted(work.alive))}
    arcs = sorted(work.arcs.values(), key=lambda arc: arc.edges)
    return Contraction(
        graph=graph,
        num_nodes=len(names),
        arcs=tuple(Arc(tail=names[arc.tail], head=names[arc.head], units=arc.units, edges=arc.edges) for arc in arcs),
    )


class _Work:
    """Arcs by number, and which of them leave and enter each node."""

    def __init__(self, graph: Graph) -> None:
        self._size = graph.size
        self.alive = set(range(len(graph.nodes)))
        self.arcs: dict[int, Arc] = {}
        self._next = 0
        self._outs: list[set[int]] = [set() for _ in graph.nodes]
        self._ins: list[set[int]] = [set() for _ in graph.nodes]
        for at, edge in enumerate(graph.edges):
            self._add(edge.tail, edge.head, edge.units, (at,))

    def _add(self, tail: int, head: int, units: int | None, edges: tuple[int, ...]) -> None:
        if tail == head:
            return
        self.arcs[self._next] = Arc(tail=tail, head=head, units=units, edges=edges)
        self._outs[tail].add(self._next)
        self._ins[head].add(self._next)
        self._next += 1

    def _drop(self, number: int) -> Arc:
        arc = self.arcs.pop(number)
        self._outs[arc.tail].discard(number)
        self._ins[arc.head].discard(number)
        return arc

    def fold(self, node: int) -> bool:
        """Remove a switch if that changes nothing; say whether."""
        outs, ins = self._outs[node], self._ins[node]
        heads = [self.arcs[at].head for at in sorted(outs)]
        tails = [self.arcs[at].tail for at in sorted(ins)]
        near = {*heads, *tails}
        if not heads or not tails or len(near) == 1:
            for number in (*outs, *ins):
                self._drop(number)
        elif (other := self._same(node)) is not None:
            for number in sorted((*outs, *ins)):
                arc = self._drop(number)
                tail, head = (other if end == node else end for end in (arc.tail, arc.head))
                self._add(tail, head, arc.units, arc.edges)
        elif len(near) == 2 and len(set(heads)) == len(heads) and len(set(tails)) == len(tails):  # noqa: PLR2004
            into = [self._drop(number) for number in sorted(ins)]
            out = [self._drop(number) for number in sorted(outs)]
            for first in into:
                for second in out:
                    limit = _least((first.units, second.units))
                    self._add(first.tail, second.head, limit, first.edges + second.edges)
        else:
            return False
        self.alive.discard(node)
        return True

    def _same(self, node: int) -> int | None:
        """A switch that is as good as this one: unlimited both ways, or the only way on or the only way in."""
        outs, ins = self._outs[node], self._ins[node]
        free_out = {self.arcs[at].head for at in outs if self._is_free(at)}
        free_in = {self.arcs[at].tail for at in ins if self._is_free(at)}
        both = free_out & free_in
        only_out = free_out if len(outs) == 1 else set[int]()
        only_in = free_in if len(ins) == 1 else set[int]()
        return min(both | only_out | only_in, default=None)

    def _is_free(self, number: int) -> bool:
        arc = self.arcs[number]
        return arc.units is None and arc.tail >= self._size and arc.head >= self._size


def _least(units: Sequence[int | None]) -> int | None:
    return min((unit for unit in units if unit is not None), default=None)
