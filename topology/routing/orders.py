"""The order of a ring in which its busiest edge is least busy when all hops run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

from topology.graph import Graph
from topology.routing.islands import Hops, islands_of, near_order

EXACT_DEVICES: Final = 8  # up to so many devices all orders are tried, those that cannot win only in part
_LOCAL_DEVICES: Final = 64  # up to so many devices an order is improved by turning stretches of it
_MOST_TRIALS: Final = 4000
_EPSILON: Final = 1e-9


def order_cost(graph: Graph, order: Sequence[int]) -> Fraction:
    """Seconds per MB that the busiest edge needs when every rank sends one MB to the next at once."""
    counts: dict[int, int] = {}
    hops = Hops(graph)
    for at, rank in enumerate(order):
        for edge in hops.path(rank, order[(at + 1) % len(order)]):
            counts[edge] = counts.get(edge, 0) + 1
    loads = (Fraction(count, units) for at, count in counts.items() if (units := graph.edges[at].units) is not None)
    return max(loads, default=Fraction(0))


def best_order(graph: Graph, hops: Hops | None = None) -> tuple[int, ...]:
    """The order of least `order_cost`, beginning with rank 0; exact up to EXACT_DEVICES devices.

    Above that: the better of the rank order and a walk from neighbour to neighbour, improved by turning stretches.
    """
    hops = hops or Hops(graph)
    search = _Search(hops)
    starts = [tuple(range(graph.size)), near_order(hops)]
    if graph.size <= _LOCAL_DEVICES:
        starts.append(tuple(rank for island in islands_of(graph) for rank in near_order(hops, island)))
    best = min(starts, key=search.cost)
    if search.cost(best) <= search.floor * (1 + _EPSILON):
        return _from_zero(best)
    if graph.size <= EXACT_DEVICES:
        return search.exact(best)
    return _from_zero(search.improved(best)) if graph.size <= _LOCAL_DEVICES else _from_zero(best)


def _from_zero(order: Sequence[int]) -> tuple[int, ...]:
    at = order.index(0)
    return (*order[at:], *order[:at])


@dataclass(frozen=True)
class _Search:
    """Loads in floating point: seconds per MB of each edge on each hop."""

    hops: Hops

    @property
    def graph(self) -> Graph:
        """The graph of the ring."""
        return self.hops.graph

    @cached_property
    def _rows(self) -> dict[tuple[int, int], tuple[tuple[int, float], ...]]:
        return {}

    def hop(self, source: int, target: int) -> tuple[tuple[int, float], ...]:
        """Limited edges of a hop, with the seconds per MB of each."""
        rows, key = self._rows, (source, target)
        if key not in rows:
            path = self.hops.path(source, target)
            rows[key] = tuple((at, 1 / units) for at in path if (units := self.graph.edges[at].units) is not None)
        return rows[key]

    @cached_property
    def floor(self) -> float:
        """What no order can undercut: each rank is entered and left once."""
        if self.graph.size > _LOCAL_DEVICES:
            return 0.0
        ranks = range(self.graph.size)
        slowest = {
            (a, b): max((seconds for _, seconds in self.hop(a, b)), default=0.0) for a in ranks for b in ranks if a != b
        }
        entered = [min(slowest[a, b] for a in ranks if a != b) for b in ranks]
        left = [min(slowest[a, b] for b in ranks if a != b) for a in ranks]
        return max(*entered, *left)

    def loads(self, order: Sequence[int]) -> dict[int, float]:
        """Seconds per MB of each edge."""
        found: dict[int, float] = {}
        for at, rank in enumerate(order):
            for edge, seconds in self.hop(rank, order[(at + 1) % len(order)]):
                found[edge] = found.get(edge, 0.0) + seconds
        return found

    def cost(self, order: Sequence[int]) -> float:
        """The busiest edge."""
        return max(self.loads(order).values(), default=0.0)

    def exact(self, start: Sequence[int]) -> tuple[int, ...]:
        """Branch and bound: an order is dropped as soon as an edge is as busy as in the best one so far."""
        best, least = _from_zero(start), self.cost(start)
        loads: dict[int, float] = {}
        waiting: list[tuple[tuple[int, ...], bool]] = [((0,), True)]
        while waiting:
            order, enters = waiting.pop()
            hop = self.hop(order[-2], order[-1]) if len(order) > 1 else ()
            for edge, seconds in hop:
                loads[edge] = loads.get(edge, 0.0) + (seconds if enters else -seconds)
            if not enters:
                continue
            waiting.append((order, False))
            if any(loads[edge] >= least * (1 - _EPSILON) for edge, _ in hop):
                continue
            if len(order) == self.graph.size:
                cost = self.cost(order)
                best, least = (order, cost) if cost < least * (1 - _EPSILON) else (best, least)
                continue
            waiting += [((*order, rank), True) for rank in reversed(range(1, self.graph.size)) if rank not in order]
        return best

    def improved(self, start: Sequence[int]) -> tuple[int, ...]:
        """Turn stretches that begin or end at a hop over a busiest edge, as long as that helps."""
        best, rank = tuple(start), self._rank(start)
        trials = 0
        found = True
        while found and trials < _MOST_TRIALS:
            found = False
            for changed in self._turned(best):
                trials += 1
                now = self._rank(changed)
                if now < rank:
                    best, rank, found = changed, now, True
                    break
                if trials >= _MOST_TRIALS:
                    break
        return best

    def _rank(self, order: Sequence[int]) -> tuple[float, int]:
        """The busiest edge, and how many are as busy."""
        loads = self.loads(order)
        most = max(loads.values(), default=0.0)
        return round(most, 12), sum(load >= most * (1 - _EPSILON) for load in loads.values())

    def _turned(self, order: tuple[int, ...]) -> list[tuple[int, ...]]:
        size, loads = len(order), self.loads(order)
        most = max(loads.values(), default=0.0) * (1 - _EPSILON)
        busy = [
            at
            for at in range(size)
            if any(loads[edge] >= most for edge, _ in self.hop(order[at], order[(at + 1) % size]))
        ]
        found = []
        for at in busy:
            for other in range(size):
                low, high = sorted((at, other))
                if low < high:
                    found.append((*order[: low + 1], *reversed(order[low + 1 : high + 1]), *order[high + 1 :]))
        return found
