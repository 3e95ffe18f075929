"""Rings over up to eight devices that together carry most, found without loading a solver.

The program has a column for every ring there is; only those are made that are cheap under the prices of the wires.
With so few devices the cheapest ring under any prices is found exactly, so the search ends at the optimum, with the
proof: no packing of rings is larger than limits x prices over the price of the cheapest ring.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from topology.errors import TopologyError
from topology.graph import Graph
from topology.routing.packing_program import PackingProgram
from topology.routing.shares import passes_of

MOST_DEVICES: Final = 8
_MOST_TURNS: Final = 60
_FIRST_TURNS: Final = 16  # that look for rings beside each other before prices tell which
_SHARPNESS: Final = 8.0
_GAP: Final = 1e-3  # between what is reached and what can be: the choice of few rings gives away more
_LEAST_LENGTH: Final = 1e-7  # of equally cheap paths the shortest wins
_EVEN: Final = 0.1  # of all prices: shared out over the wires, so that idle ones are not all free
_WORTH: Final = 1000.0
_SEVERED: Final = (float("inf"), ())

Order = tuple[int, ...]
Path = tuple[int, ...]


def pack(graph: Graph, columns: Sequence[Counter[int]]) -> tuple[float, Sequence[float]]:
    """MB/s of all rings together, and of each.

    Args:
        graph: whose limits hold.
        columns: how often each ring passes each edge.

    Raises:
        TopologyError: nothing limits a ring.
    """
    limits = _Limits(graph)
    program = PackingProgram(limits.amounts)
    for passes in columns:
        program.add(limits.loads(passes))
    _solved(program)
    weights = [weight * limits.scale for weight in program.weights]
    return sum(weights), weights


def settle(graph: Graph, columns: Sequence[Counter[int]], rate: float, costs: Sequence[float]) -> Sequence[float]:
    """Shares of rings that carry `rate` MB/s together, of least total cost; `rate` must be one they can carry.

    Raises:
        TopologyError: nothing limits a ring.
    """
    limits = _Limits(graph)
    program = PackingProgram([*(amount * limits.scale / rate for amount in limits.amounts), 1.0])
    for passes, cost in zip(columns, costs, strict=True):
        # Every bit of the data is worth more than any ring costs, so all of it is sent.
        program.add({**limits.loads(passes), len(limits.amounts): 1.0}, _WORTH * max(costs) - cost)
    _solved(program)
    return program.weights


def search(
    graph: Graph, orders: Sequence[Order], known: Sequence[tuple[Path, ...]]
) -> Sequence[tuple[Order, tuple[Path, ...]]]:
    """Find the rings that known ones lack for the largest packing, each as its order and paths.

    Args:
        graph: of up to MOST_DEVICES devices.
        orders: not needed here, where all orders are looked at.
        known: the paths of each ring at hand.

    Raises:
        TopologyError: some device is reached through others only, or nothing limits a ring.
    """
    del orders
    limits, ways = _Limits(graph), _Ways(graph)
    program = PackingProgram(limits.amounts)
    columns = {_key(passes_of(paths)) for paths in known}
    for paths in known:
        program.add(limits.loads(passes_of(paths)))
    found: list[tuple[Order, tuple[Path, ...]]] = []
    most = float("inf")
    for turn in range(_MOST_TURNS):
        _solved(program)
        before = len(found)
        for lengths in limits.lengths(program, beside=turn < _FIRST_TURNS):
            order, paths = ways.cheapest_ring(lengths)
            price = sum(lengths[at] for path in paths for at in path if at in lengths)
            if price > 0:
                most = min(most, limits.worth(lengths) / price)
            if program.total >= most * (1 - _GAP):
                return found
            passes = passes_of(paths)
            if _key(passes) not in columns:
                columns.add(_key(passes))
                found.append((order, paths))
                program.add(limits.loads(passes))
                break
        if len(found) == before:
            break  # what is cheapest is there already: no other ring adds anything
    return found


def _key(passes: Counter[int]) -> frozenset[tuple[int, int]]:
    return frozenset(passes.items())


def _solved(program: PackingProgram) -> None:
    try:
        program.solve()
    except ArithmeticError as error:
        remedy = "give the links rates, or measure them"
        raise TopologyError(asked="shares of rings", found=str(error), remedy=remedy) from error


class _Limits:
    """Rows of the programs: the edges that limit something, in parts of the largest."""

    def __init__(self, graph: Graph) -> None:
        units = {at: float(edge.units) for at, edge in enumerate(graph.edges) if edge.units is not None}
        self.scale = max(units.values(), default=1.0)
        self._row = {at: row for row, at in enumerate(units)}
        self.amounts = [value / self.scale for value in units.values()]

    def loads(self, passes: Counter[int]) -> dict[int, float]:
        return {self._row[at]: float(count) for at, count in passes.items() if at in self._row}

    def lengths(self, program: PackingProgram, *, beside: bool) -> Iterator[dict[int, float]]:
        """Lengths to search with, by edge; the last are the prices, which alone prove that nothing is left to find.

        Prices of one optimum among many leave whole wires free. With a little of every wire's time added they lead to
        the optimum in fewer turns; and `beside`, wires count by how full they are, which leads to rings that fit
        beside those there are.
        """
        prices = program.prices
        if beside:
            full = [math.exp(_SHARPNESS * (u - 1)) for u in program.used]
            yield {at: full[row] / self.amounts[row] for at, row in self._row.items()}
        even = _EVEN * sum(price * amount for price, amount in zip(prices, self.amounts, strict=True))
        yield {at: prices[row] + even / self.amounts[row] / len(self.amounts) for at, row in self._row.items()}
        yield {at: prices[row] for at, row in self._row.items()}

    def worth(self, lengths: dict[int, float]) -> float:
        """The sum of limits times lengths."""
        return sum(length * self.amounts[self._row[at]] for at, length in lengths.items())


class _Ways:
    """Cheapest paths between devices that pass no other device, and the cheapest ring over all of them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def cheapest_ring(self, lengths: dict[int, float]) -> tuple[Order, tuple[Path, ...]]:
        """The ring of least total length, with its paths.

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
        return order, tuple(from_each[a][b][1] for a, b in zip(order, (*order[1:], order[0]), strict=True))

    def _paths(self, source: int, lengths: dict[int, float], least: float) -> dict[int, tuple[float, Path]]:
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
