"""The cheapest ring over up to eight devices under given lengths of the wires, exactly."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from topology.errors import TopologyError
from topology.graph import Graph

_LEAST_LENGTH: Final = 1e-7  # of equally cheap paths the shortest wins
_SEVERED: Final = (float("inf"), ())

Order = tuple[int, ...]
Path = tuple[int, ...]


class Ways:
    """Cheapest paths between devices that pass no other device, and the cheapest ring over all of them."""

    def __init__(self, graph: Graph) -> None:
        """Of this graph."""
        self._graph = graph

    def cheapest_ring(self, lengths: Mapping[int, float]) -> tuple[Path, ...]:
        """The paths from each device of the ring of least total length to the next.

        Args:
            lengths: by edge, not negative; edges without one are free.

        Raises:
            TopologyError: every ring has neighbours that reach each other through other devices only.
        """
        size = self._graph.size
        least = _LEAST_LENGTH * max(lengths.values(), default=1e-12)
        from_each = [self._paths(source, lengths, least) for source in range(size)]
        costs = [[from_each[a].get(b, _SEVERED)[0] for b in range(size)] for a in range(size)]
        order = cheapest_tour(costs)
        for a, b in zip(order, (*order[1:], order[0]), strict=True):
            if b not in from_each[a]:
                raise TopologyError(
                    asked="a route between neighbours",
                    found=f"device {a} reaches device {b} through other devices only",
                    remedy="use trees, which pass data on from device to device",
                )
        return tuple(from_each[a][b][1] for a, b in zip(order, (*order[1:], order[0]), strict=True))

    def _paths(self, source: int, lengths: Mapping[int, float], least: float) -> dict[int, tuple[float, Path]]:
        """Dijkstra (1959): length and edges to every other device that is reached through none."""
        graph = self._graph
        queue: list[tuple[float, Path, int]] = [(0.0, (), source)]
        done: set[int] = set()
        found: dict[int, tuple[float, Path]] = {}
        best = {source: 0.0}
        while queue and len(found) < graph.size - 1:
            far, path, node = heapq.heappop(queue)
            if node in done:
                continue
            done.add(node)
            if node < graph.size and node != source:
                found[node] = far, path
                continue
            for at in graph.leaving[node]:
                head = graph.edges[at].head
                length = far + lengths.get(at, 0.0) + least
                if head not in done and length <= best.get(head, float("inf")):
                    best[head] = length
                    heapq.heappush(queue, (length, (*path, at), head))
        return found


def cheapest_tour(costs: Sequence[Sequence[float]]) -> Order:
    """The round tour of least cost from rank 0 on, exactly (Held and Karp, 1962)."""
    size = len(costs)
    others = range(1, size)
    # By the set of ranks passed and the last of them: the least cost, and the rank before.
    table: dict[tuple[int, int], tuple[float, int]] = {(1 << rank, rank): (costs[0][rank], 0) for rank in others}
    for passed in sorted(range(2, 1 << size, 2), key=int.bit_count):
        inside = [rank for rank in others if passed >> rank & 1]
        for last in inside if len(inside) > 1 else ():
            rest = passed & ~(1 << last)
            table[passed, last] = min(
                (table[rest, before][0] + costs[before][last], before) for before in inside if before != last
            )
    whole = (1 << size) - 2
    last = min(others, key=lambda rank: table[whole, rank][0] + costs[rank][0])
    order = [last]
    passed = whole
    while len(order) < size - 1:
        before = table[passed, order[-1]][1]
        passed &= ~(1 << order[-1])
        order.append(before)
    return (0, *reversed(order))
