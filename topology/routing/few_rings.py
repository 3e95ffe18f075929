"""Rings over up to eight devices that together carry most, found without loading a solver.

The program has a column for every ring there is; only those are made that are cheap under the prices of the wires.
With so few devices the cheapest ring under any prices is found exactly, so the search ends at the optimum, with the
proof: no packing of rings is larger than limits x prices over the price of the cheapest ring.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from topology.errors import TopologyError
from topology.graph import Graph
from topology.routing.cheapest_ring import Order, Path, Ways
from topology.routing.packing_program import PackingProgram
from topology.routing.shares import passes_of
from topology.routing.trees import twins

MOST_DEVICES: Final = 8
_MOST_TURNS: Final = 60
_FIRST_TURNS: Final = 16  # that look for rings beside each other before prices tell which
_SHARPNESS: Final = 8.0
_GAP: Final = 1e-3  # between what is reached and what can be: the choice of few rings gives away more
_EVEN: Final = 0.1  # of all prices: shared out over the wires, so that idle ones are not all free
_WORTH: Final = 1000.0


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

    First rings that fit beside each other, which fill many machines; where they do not, rings both ways. Where every
    wire carries as much the other way, some largest packing has each ring both ways, half and half: the mean of a
    packing and its mirror image is one. So a ring and its mirror image are one column, and a wire and its twin one row.

    Args:
        graph: of up to MOST_DEVICES devices.
        orders: not needed here, where all orders are looked at.
        known: the paths of each ring at hand.

    Raises:
        TopologyError: some device is reached through others only, where known rings do not carry all that can be, or
            nothing limits a ring.
    """
    del orders
    twin, ways = twins(graph), Ways(graph)
    found = _Search(_Limits(graph), ways, known)
    if twin is None:
        found.complete()
        rings = found.rings
    elif found.fill():
        rings = found.rings
    else:
        both = _Search(_Limits(graph, twin), ways, known)
        both.complete()
        mirrored = (_mirrored(ring, twin) for ring in (*known, *both.rings))
        rings = [*found.rings, *both.rings, *mirrored]
    there = set(known)
    return [(_order_of(graph, paths), paths) for paths in dict.fromkeys(rings) if paths not in there]


class _Search:
    """Rings that are added one by one to the known ones, each cheap by what those before leave of the wires."""

    def __init__(self, limits: _Limits, ways: Ways, known: Sequence[tuple[Path, ...]]) -> None:
        self.rings: list[tuple[Path, ...]] = []
        self._limits, self._ways = limits, ways
        self._most = limits.least_cut
        self._program = PackingProgram(limits.amounts)
        self._columns: set[frozenset[tuple[int, float]]] = set()
        for paths in known:
            self._is_new(limits.loads(passes_of(paths)))
        _solved(self._program)

    def fill(self) -> bool:
        """Add rings that fit beside those before, until one gains nothing; True where no packing is larger."""
        before = -1.0
        while not self._is_done and self._program.total > before:
            before = self._program.total
            self._take(self._limits.spare(self._program))
        return self._is_done

    def complete(self) -> None:
        """Add rings until no other adds anything, or turns run out."""
        for turn in range(_MOST_TURNS):
            if self._is_done:
                return
            lengths = self._limits.lengths(self._program, beside=turn < _FIRST_TURNS)
            if not any(self._take(one) for one in lengths):
                return  # as good as can be, or what is cheapest is there already

    @property
    def _is_done(self) -> bool:
        return 0 < self._most * (1 - _GAP) <= self._program.total

    def _take(self, lengths: dict[int, float]) -> bool:
        """Add the cheapest ring; False where it is there already, or there is no need of one."""
        if self._is_done:
            return False
        paths = self._ways.cheapest_ring(lengths)
        price = sum(lengths[at] for path in paths for at in path if at in lengths)
        if price > 0:
            self._most = min(self._most, self._limits.worth(lengths) / price)
        if self._is_done or not self._is_new(self._limits.loads(passes_of(paths))):
            return False
        self.rings.append(paths)
        _solved(self._program)
        return True

    def _is_new(self, loads: dict[int, float]) -> bool:
        """Add a column, if there is none like it."""
        key = frozenset(loads.items())
        if key in self._columns:
            return False
        self._columns.add(key)
        self._program.add(loads)
        return True


def _mirrored(paths: tuple[Path, ...], twin: Sequence[int]) -> tuple[Path, ...]:
    """The same ring the other way round."""
    return tuple(tuple(twin[at] for at in reversed(path)) for path in reversed(paths))


def _order_of(graph: Graph, paths: tuple[Path, ...]) -> Order:
    return tuple(graph.edges[path[0]].tail for path in paths)


def _solved(program: PackingProgram) -> None:
    try:
        program.solve()
    except ArithmeticError as error:
        remedy = "give the links rates, or measure them"
        raise TopologyError(asked="shares of rings", found=str(error), remedy=remedy) from error


class _Limits:
    """Rows of the programs: the edges that limit something, in parts of the largest; with `twin` twins are one row."""

    def __init__(self, graph: Graph, twin: Sequence[int] | None = None) -> None:
        units = {at: float(edge.units) for at, edge in enumerate(graph.edges) if edge.units is not None}
        self.scale = max(units.values(), default=1.0)
        firsts = {at: at if twin is None else min(at, twin[at]) for at in units}
        rows = {first: row for row, first in enumerate(dict.fromkeys(firsts.values()))}
        self._row = {at: rows[first] for at, first in firsts.items()}
        self.amounts = [0.0] * len(rows)
        for at, row in self._row.items():
            self.amounts[row] += units[at] / self.scale
        self.least_cut = _least_cut(graph) / self.scale

    def loads(self, passes: Counter[int]) -> dict[int, float]:
        found: dict[int, float] = {}
        for at, count in passes.items():
            if at in self._row:
                found[self._row[at]] = found.get(self._row[at], 0.0) + count
        return found

    def spare(self, program: PackingProgram) -> dict[int, float]:
        """Lengths by how full each wire is, which lead to rings that fit beside those there are."""
        full = [math.exp(_SHARPNESS * (u - 1)) for u in program.used]
        return {at: full[row] / self.amounts[row] for at, row in self._row.items()}

    def lengths(self, program: PackingProgram, *, beside: bool) -> Iterator[dict[int, float]]:
        """Lengths to search with, by edge; the last are the prices, which alone prove that nothing is left to find.

        Prices of one optimum among many leave whole wires free. With a little of every wire's time added they lead to
        the optimum in fewer turns; `beside`, the first are those of `spare`.
        """
        prices = program.prices
        if beside:
            yield self.spare(program)
        even = _EVEN * sum(price * amount for price, amount in zip(prices, self.amounts, strict=True))
        yield {at: prices[row] + even / self.amounts[row] / len(self.amounts) for at, row in self._row.items()}
        yield {at: prices[row] for at, row in self._row.items()}

    def worth(self, lengths: dict[int, float]) -> float:
        """The sum of limits times lengths."""
        return sum(length * self.amounts[self._row[at]] for at, length in lengths.items())


def _least_cut(graph: Graph) -> float:
    """MB/s that enter or leave some device at most: every ring does both."""
    into, out = [0.0] * graph.size, [0.0] * graph.size
    for edge in graph.edges:
        units = float("inf") if edge.units is None else float(edge.units)
        if edge.head < graph.size:
            into[edge.head] += units
        if edge.tail < graph.size:
            out[edge.tail] += units
    return min(*into, *out)
