"""Rings over more than a few devices that together carry most, by scipy's solver and a search that may miss some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from topology.graph import Graph
from topology.routing import columns as programs
from topology.routing.columns import Column, Shortest, capacities
from topology.routing.shares import passes_of
from topology.routing.tours import Tours

_MOST_SEARCHED: Final = 32
_MOST_TURNS: Final = 72
_FIRST_TURNS: Final = 16  # before the linear program prices
_LEAST_GAIN: Final = 0.002  # over as many turns; less ends the search
_SHARPNESS: Final = 8.0

Order = tuple[int, ...]
Path = tuple[int, ...]


def pack(graph: Graph, columns: Sequence[Counter[int]]) -> tuple[float, Sequence[float]]:
    """MB/s of all rings together, and of each.

    Raises:
        TopologyError: the solver gives up.
    """
    packed = programs.pack(graph, [(0, passes) for passes in columns], (0,))
    return packed.rate, packed.weights.tolist()


def settle(graph: Graph, columns: Sequence[Counter[int]], rate: float, costs: Sequence[float]) -> Sequence[float]:
    """Shares of rings that carry `rate` MB/s together, of least total cost.

    Raises:
        TopologyError: that is too much, or the solver gives up.
    """
    own = [(0, passes) for passes in columns]
    shares: list[float] = programs.settle(own, (0,), capacities(graph) / rate, np.array(costs)).tolist()
    return shares


def search(
    graph: Graph, orders: Sequence[Order], known: Sequence[tuple[Path, ...]]
) -> Sequence[tuple[Order, tuple[Path, ...]]]:
    """Rings that are cheap by prices of the edges: first by the loads of those before, then by the duals."""
    if graph.size > _MOST_SEARCHED:
        return ()
    limits = capacities(graph)
    seconds = np.where(np.isfinite(limits), 1.0 / np.where(np.isfinite(limits), limits, 1.0), 0.0)
    loads = np.zeros(len(graph.edges))
    shortest, tours = Shortest(graph), Tours(graph.size, orders)
    columns: list[Column] = []
    found: dict[tuple[Path, ...], Order] = {}
    best = 0.0
    for turn in range(_MOST_TURNS if graph.size <= _MOST_SEARCHED // 2 else _MOST_TURNS // 2):
        if turn < _FIRST_TURNS or turn % 2:
            lengths = seconds * np.exp(_SHARPNESS * (loads / max(float(loads.max()), 1e-30) - 1))
        else:
            packed = programs.pack(graph, columns, (0,))
            if turn > 2 * _FIRST_TURNS and packed.rate < best * (1 + _LEAST_GAIN):
                break
            lengths, best = packed.lengths, packed.rate if turn % _FIRST_TURNS == 0 else best
        routes = shortest.search(lengths)
        order = tours.cheapest(routes.costs)
        paths = tuple(routes.path(rank, order[(at + 1) % len(order)]) for at, rank in enumerate(order))
        if paths not in known:
            found.setdefault(paths, order)
        passes = passes_of(paths)
        columns.append((0, passes))
        for edge, count in passes.items():
            loads[edge] += count * seconds[edge]
    return [(order, paths) for paths, order in found.items()]
