"""The widest path between two devices: by which wires a copy goes when nothing else runs."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import lru_cache
from itertools import count

from topology.graph import Edge, Graph, LinkClass, NodeKind

_WIDE = 1 << 62  # what an unlimited edge counts for


@lru_cache(maxsize=256)
def paths_from(graph: Graph, source: int, *, relay: bool = False) -> tuple[tuple[int, ...] | None, ...]:
    """The widest path (edge indices) from a device to every other one; of equally wide ones the shortest.

    A path does not enter a network that it could do without. Only with `relay` may it lead through other devices.
    None where there is none; the path of a device to itself is empty.
    """

    def narrow(cost: tuple[int, int], edge: Edge) -> tuple[int, int]:
        return cost[0] + _enters(graph, edge), -min(-cost[1], _WIDE if edge.units is None else edge.units)

    widest = _search(graph, source, relay=relay, step=narrow, start=(0, -_WIDE))[0]
    widths = [-cost[1] if (cost := widest.get(rank)) is not None else None for rank in range(graph.size)]
    found: list[tuple[int, ...] | None] = [None] * graph.size
    for least in {width for width in widths if width is not None}:

        def step(cost: tuple[int, int], edge: Edge, least: int = least) -> tuple[int, int] | None:
            if edge.units is not None and edge.units < least:
                return None
            return cost[0] + _enters(graph, edge), cost[1] + 1

        came = _search(graph, source, relay=relay, step=step, start=(0, 0))[1]
        for rank in range(graph.size):
            if widths[rank] == least:
                found[rank] = _back(graph, came, source, rank)
    return tuple(found)


def path(graph: Graph, source: int, target: int, *, relay: bool = False) -> tuple[int, ...] | None:
    """The widest path from one device to another, as edge indices; None where there is none."""
    return paths_from(graph, source, relay=relay)[target]


def width(graph: Graph, edges: tuple[int, ...]) -> int | None:
    """MB/s of the narrowest edge of a path; None if none of them limits anything."""
    return min((units for at in edges if (units := graph.edges[at].units) is not None), default=None)


def _enters(graph: Graph, edge: Edge) -> bool:
    """Whether an edge enters a network; how far a path goes inside one is the network's affair."""
    return edge.link is LinkClass.network and graph.nodes[edge.tail].kind is not NodeKind.network


def _search(
    graph: Graph,
    source: int,
    *,
    relay: bool,
    step: Callable[[tuple[int, int], Edge], tuple[int, int] | None],
    start: tuple[int, int],
) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    """Dijkstra's search over costs that never fall along a path: they, and the edge each node was entered by."""
    nodes, edges = graph.nodes, graph.edges
    best, came = {source: start}, dict[int, int]()
    order = count()
    queue = [(start, next(order), source)]
    while queue:
        cost, _, node = heapq.heappop(queue)
        passes = node == source or relay or nodes[node].kind is not NodeKind.device
        if cost > best[node] or not passes:
            continue
        for at in graph.leaving[node]:
            head, found = edges[at].head, step(cost, edges[at])
            if found is not None and (head not in best or found < best[head]):
                best[head], came[head] = found, at
                heapq.heappush(queue, (found, next(order), head))
    return best, came


def _back(graph: Graph, came: dict[int, int], source: int, target: int) -> tuple[int, ...]:
    steps: list[int] = []
    node = target
    while node != source:
        steps.append(came[node])
        node = graph.edges[came[node]].tail
    return tuple(reversed(steps))
