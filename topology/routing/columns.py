"""Shares of a fractional packing: how much of each tree or ring to use so that no edge is overloaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from topology.errors import TopologyError
from topology.graph import Graph

# Paths are searched by lengths that never are zero: of equally cheap ones the shortest wins.
_LEAST_LENGTH = 1e-7
# Of the largest capacity; what nothing limits still has a rate then.
_MOST = 1e6


Sparse = Any  # scipy's sparse arrays, and its solutions, have no types here
Column = tuple[int, Counter[int]]  # the group it serves, and how often it passes each edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """What a packing of columns reaches.

    Attributes:
        rate: MB/s of all parts together.
        weights: MB/s of each column.
        lengths: the price of each edge for a MB/s (duals), by edge index; zero where there is room left.
    """

    rate: float
    weights: NDArray[np.float64]
    lengths: NDArray[np.float64]


def capacities(graph: Graph) -> NDArray[np.float64]:
    """MB/s of each edge; infinite where nothing limits it."""
    return np.array([np.inf if edge.units is None else float(edge.units) for edge in graph.edges])


def pack(graph: Graph, columns: Sequence[Column], parts: Sequence[int]) -> Packing:
    """Weigh columns so that every group reaches the rate of its part, and the parts as much as can be together.

    Args:
        graph: whose capacities hold.
        columns: every group needs one.
        parts: for each group the part it serves. Parts number from 0; groups of one part move at its rate, and where
            all have one part that is the same for all. The rate that is made largest is the mean over groups.

    Raises:
        TopologyError: the solver gives up.
    """
    limits = capacities(graph)
    used, loads = _loads(columns, limits)
    scale = float(limits[used].max(initial=1.0))
    num_parts = max(parts) + 1
    solved = _solved(
        cost=np.concatenate([np.zeros(len(columns)), -np.bincount(parts) / len(parts)]),
        loads=scipy.sparse.hstack([loads, scipy.sparse.coo_array((len(used), num_parts))]),
        limits=limits[used] / scale,
        sums=scipy.sparse.hstack([_sums(columns, len(parts)), -_membership(parts)]),
        amounts=np.zeros(len(parts)),
    )
    lengths = np.zeros(len(graph.edges))
    lengths[used] = np.maximum(0.0, -solved.ineqlin.marginals)
    weights = np.maximum(0.0, solved.x[: len(columns)]) * scale
    return Packing(rate=-float(solved.fun) * scale, weights=weights, lengths=lengths)


def settle(
    columns: Sequence[Column], parts: Sequence[int], limits: NDArray[np.float64], costs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weights of columns with a mean rate of 1 over the groups, of least total cost under limits of the edges.

    Raises:
        TopologyError: the limits are too tight, or the solver gives up.
    """
    used, loads = _loads(columns, limits)
    num_parts = max(parts) + 1
    mean = scipy.sparse.hstack(
        [scipy.sparse.coo_array((1, len(columns))), scipy.sparse.coo_array((np.bincount(parts) / len(parts))[None])]
    )
    solved = _solved(
        cost=np.concatenate([costs, np.zeros(num_parts)]),
        loads=scipy.sparse.hstack([loads, scipy.sparse.coo_array((len(used), num_parts))]),
        limits=limits[used],
        sums=scipy.sparse.vstack([scipy.sparse.hstack([_sums(columns, len(parts)), -_membership(parts)]), mean]),
        amounts=np.append(np.zeros(len(parts)), 1.0),
    )
    weights: NDArray[np.float64] = np.maximum(0.0, solved.x[: len(columns)])
    return weights


def _loads(columns: Sequence[Column], limits: NDArray[np.float64]) -> tuple[list[int], Sparse]:
    """Limited edges that some column passes, and how often each column passes each of them."""
    used = sorted({at for _, passes in columns for at in passes if np.isfinite(limits[at])})
    row = {at: number for number, at in enumerate(used)}
    entries = [
        (row[at], number, float(count))
        for number, (_, passes) in enumerate(columns)
        for at, count in passes.items()
        if at in row
    ]
    rows, places, values = zip(*entries, strict=True) if entries else ((), (), ())
    return used, scipy.sparse.coo_array((values, (rows, places)), shape=(len(used), len(columns)))


def _sums(columns: Sequence[Column], groups: int) -> Sparse:
    count = len(columns)
    return scipy.sparse.coo_array(
        (np.ones(count), ([group for group, _ in columns], range(count))), shape=(groups, count)
    )


def _membership(parts: Sequence[int]) -> Sparse:
    return scipy.sparse.coo_array((np.ones(len(parts)), (range(len(parts)), parts)), shape=(len(parts), max(parts) + 1))


def _solved(
    *, cost: NDArray[np.float64], loads: Sparse, limits: NDArray[np.float64], sums: Sparse, amounts: NDArray[np.float64]
) -> Sparse:
    given = {} if loads.shape[0] == 0 else {"A_ub": loads.tocsr(), "b_ub": limits}
    solved = scipy.optimize.linprog(
        cost, **given, A_eq=sums.tocsr(), b_eq=amounts, bounds=(0, _MOST), method="highs-ds"
    )
    if solved.x is None:
        found, remedy = f"the linear program was not solved: {solved.message}", "choose another algorithm"
        raise TopologyError(asked=f"shares of {sums.shape[1]} trees or rings", found=found, remedy=remedy)
    return solved


class Shortest:
    """Shortest paths between devices under changing lengths; no path leads through another device."""

    def __init__(self, graph: Graph) -> None:
        """Give each device a second node, by which it is only entered."""
        self.size, self._first = graph.size, len(graph.nodes)
        tails = np.array([edge.tail for edge in graph.edges])
        heads = np.array([edge.head for edge in graph.edges])
        heads = np.where(heads < graph.size, heads + self._first, heads)
        count = self._first + graph.size
        keys = tails * count + heads
        # Edges that join the same two nodes lie side by side; the shortest of them is taken.
        self._order = np.argsort(keys, kind="stable")
        self._keys, self._starts = np.unique(keys[self._order], return_index=True)
        self._matrix = scipy.sparse.coo_array(
            (np.arange(1.0, len(self._keys) + 1), (self._keys // count, self._keys % count)), shape=(count, count)
        ).tocsr()
        self._place = self._matrix.data.astype(int) - 1
        self._pair = {(int(key // count), int(key % count)): at for at, key in enumerate(self._keys)}

    def search(self, lengths: NDArray[np.float64]) -> Routes:
        """Shortest paths from every device, by lengths per edge (not negative)."""
        least = _LEAST_LENGTH * max(float(lengths.max(initial=0.0)), 1e-12)
        sorted_lengths = (lengths + least)[self._order]
        shortest = np.minimum.reduceat(sorted_lengths, self._starts)
        self._matrix.data[:] = shortest[self._place]
        distance, before = scipy.sparse.csgraph.dijkstra(
            self._matrix, indices=range(self.size), return_predecessors=True
        )
        ends = np.append(self._starts[1:], len(self._order))
        chosen = [
            int(self._order[low + (int(sorted_lengths[low:high].argmin()) if high - low > 1 else 0)])
            for low, high in zip(self._starts.tolist(), ends.tolist(), strict=True)
        ]
        return Routes(self, distance[:, self._first :], before, chosen)

    def back(self, before: NDArray[np.int32], chosen: Sequence[int], source: int, target: int) -> tuple[int, ...]:
        """Edges of the path found from source to target.

        Raises:
            TopologyError: there is none that passes no other device.
        """
        row, node, path = before[source], self._first + target, []
        if row[node] < 0 and source != target:
            raise TopologyError(
                asked="a route between neighbours",
                found=f"device {source} reaches device {target} through other devices only",
                remedy="use trees, which pass data on from device to device",
            )
        while node != source:
            tail = int(row[node])
            path.append(chosen[self._pair[tail, node]])
            node = tail
        return tuple(reversed(path))


class Routes:
    """What one search found: `costs[u, v]` between devices, and the paths."""

    def __init__(
        self, graph: Shortest, costs: NDArray[np.float64], before: NDArray[np.int32], chosen: Sequence[int]
    ) -> None:
        """Keep the search."""
        self.costs, self._graph, self._before, self._chosen = costs, graph, before, chosen
        self._paths: dict[tuple[int, int], tuple[int, ...]] = {}

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Edge indices from source to target."""
        key = (source, target)
        if key not in self._paths:
            self._paths[key] = self._graph.back(self._before, self._chosen, source, target)
        return self._paths[key]
