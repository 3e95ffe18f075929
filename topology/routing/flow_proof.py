"""A proof of the all-to-all bound that needs no trust in the solver: prices of wires, and shortest ways by price.

Whoever sends a byte from s to t uses wires that cost at least the cheapest way from s to t. All wires together are
worth the sum of capacity times price. So lambda is at most that sum over the sum of the cheapest ways: for any prices
(the dual of the concurrent flow). The solver only proposes good ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from topology.graph import Graph, NodeKind

_STEPS: Final = 10**9  # prices are rounded to whole parts of the dearest


def most_units(graph: Graph, prices: Mapping[int, float], *, relay: bool) -> Fraction | None:
    """An exact upper limit of lambda in MB/s for each ordered pair; None if these prices limit nothing.

    Args:
        graph: where.
        prices: of edges by index, not negative; only limited edges count, others are free.
        relay: whether ways may lead through devices.
    """
    dearest = max(prices.values(), default=0.0)
    if dearest <= 0:
        return None
    whole = {at: round(price / dearest * _STEPS) for at, price in prices.items() if graph.edges[at].units is not None}
    worth = sum((graph.edges[at].units or 0) * price for at, price in whole.items())
    ways = 0
    for source in range(graph.size):
        cheapest = _cheapest(graph, whole, source, relay=relay)
        if any(cheapest[target] is None for target in range(graph.size)):
            return Fraction(0)
        ways += sum(cheapest[target] or 0 for target in range(graph.size))
    return Fraction(worth, ways) if ways else None


def _cheapest(graph: Graph, prices: Mapping[int, int], source: int, *, relay: bool) -> list[int | None]:
    """Price of the cheapest way to every node."""
    best: list[int | None] = [None] * len(graph.nodes)
    queue = [(0, source)]
    while queue:
        cost, node = heapq.heappop(queue)
        if best[node] is not None:
            continue
        best[node] = cost
        if node != source and not relay and graph.nodes[node].kind is NodeKind.device:
            continue
        for at in graph.leaving[node]:
            head = graph.edges[at].head
            if best[head] is None:
                heapq.heappush(queue, (cost + prices.get(at, 0), head))
    return best
