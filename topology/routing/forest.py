"""Trees from every root that together carry most: column generation.

Trees are the columns of a linear program that weighs them under the capacities of the edges; new ones are the cheapest
trees under prices of the edges. Any prices also bound the rate from above (LP duality), so the search knows how far
from the optimum it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topology.graph import Graph
from topology.routing.arborescence import cheapest_tree
from topology.routing.columns import Column, Routes, Shortest, capacities, pack, settle
from topology.routing.shares import apportioned, passes_of
from topology.routing.trees import Hop, Tree

_ENOUGH: Final = 0.998  # of the bound; the rest would be lost in rounding
_MOST_ROUNDS: Final = 60
_FIRST_LOOK: Final = 3  # rounds before the second linear program
_SPREAD_ROUNDS: Final = 9  # after so many, every second round is priced by the linear program alone
_SHARPNESS: Final = 10.0  # how steeply a loaded edge becomes dear
_GIVEN_AWAY: Final = 0.004  # of the rate, for fewer and shallower trees
_LEAST_SHARES: Final = (0.05, 0.02, 0.005, 1e-9)  # of a root's part: smaller trees are left out, if _KEPT allows it
_KEPT: Final = 0.992  # of the rate, with the trees that are left
_PARTS: Final = 5040  # a root's part is cut in so many: halves to tenths come out exactly

Tied = tuple[tuple[int, int, tuple[int, ...]], ...]  # parent, child, and the path of the send between them


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """Trees for every root, and what they reach.

    Attributes:
        out: out-trees; their shares sum to 1.
        into: in-trees, the same.
        rate: MB/s of M, before shares were rounded and small trees left out.
        bound: what no trees exceed, in MB/s of M.
    """

    out: tuple[Tree, ...]
    into: tuple[Tree, ...]
    rate: float
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What trees are searched for.

    Attributes:
        out: whether out-trees are.
        into: whether in-trees are; with both, the two of a root carry the same.
        even: whether all roots carry the same; otherwise as it is best for all together.
        twin: for each edge the one in the other direction, on which the turned copy of every tree runs as well.
    """

    out: bool
    into: bool
    even: bool = True
    twin: tuple[int, ...] | None = None


def forest(graph: Graph, wanted: Wanted) -> Forest:
    """Pack trees: all of M over the roots, at the largest rate."""
    search = _Search(graph, wanted)
    rate = search.run()
    out, into = search.trees(rate)
    return Forest(out=out, into=into, rate=rate, bound=search.bound)


class _Search:
    """The columns found so far, and the loads of the trees that were tried one after the other."""

    def __init__(self, graph: Graph, wanted: Wanted) -> None:
        size = graph.size
        self._graph, self._wanted = graph, wanted
        self._shortest = Shortest(graph)
        self._limits = capacities(graph)
        self._limited = np.isfinite(self._limits)
        self._seconds = np.where(self._limited, 1.0 / np.where(self._limited, self._limits, 1.0), 0.0)
        self._loads = np.zeros(len(graph.edges))
        # A group is a root in one direction; those of in-trees come after those of out-trees.
        self._directions = [is_out for is_out, asked in ((True, wanted.out), (False, wanted.into)) if asked]
        self._roots = [root for _ in self._directions for root in range(size)]
        self._parts = [0 if wanted.even else root for root in self._roots]
        self._columns: dict[tuple[int, Tied], Counter[int]] = {}
        self.bound = float("inf")

    def run(self) -> float:
        """Add trees until they are close enough to the bound; returns the rate of M."""
        rate = 0.0
        self._price(self._seconds)
        for turn in range(_MOST_ROUNDS):
            if 0 < turn < _SPREAD_ROUNDS or turn % 2:
                self._spread(turn)
            if 0 < turn < _FIRST_LOOK:
                continue
            packed = pack(self._graph, self._listed(), self._parts)
            rate = packed.rate * self._graph.size
            for lengths in (packed.lengths, self._lengths(_SHARPNESS), self._lengths(3 * _SHARPNESS)):
                self._price(lengths)
            if rate >= _ENOUGH * self.bound:
                break
        return rate

    def _listed(self) -> list[Column]:
        return [(group, passes) for (group, _), passes in self._columns.items()]

    def _lengths(self, sharpness: float) -> NDArray[np.float64]:
        """Prices that grow with the load of an edge, relative to the busiest."""
        most = float(self._loads.max(initial=0.0))
        if most <= 0:
            return self._seconds.copy()
        priced: NDArray[np.float64] = self._seconds * np.exp(sharpness * (self._loads / most - 1))
        return priced

    def _search(self, lengths: NDArray[np.float64]) -> Routes:
        twin = self._wanted.twin
        return self._shortest.search(lengths if twin is None else lengths + lengths[list(twin)])

    def _spread(self, turn: int) -> None:
        """One tree for each group, each by prices that know the trees before it."""
        count = len(self._roots)
        for at in range(count):
            _, passes = self._tree(self._search(self._lengths(_SHARPNESS)), (at - turn) % count)
            for edge, times in passes.items():
                self._loads[edge] += times * self._seconds[edge]

    def _price(self, lengths: NDArray[np.float64]) -> None:
        """Add the cheapest tree of each group under given prices; they also bound the rate."""
        routes, size = self._search(lengths), self._graph.size
        costs = np.array([self._tree(routes, group)[0] for group in range(len(self._roots))]).reshape(-1, size)
        cost = costs.sum() / size if self._wanted.even else costs.sum(axis=0).min()
        if cost > 0:
            worth = float((lengths[self._limited] * self._limits[self._limited]).sum())
            self.bound = min(self.bound, worth / float(cost))

    def _tree(self, routes: Routes, group: int) -> tuple[float, Counter[int]]:
        """The cheapest tree of a group: its cost, and how often it (and its turned copy) passes each edge."""
        root, is_out = self._roots[group], self._directions[group // self._graph.size]
        costs = routes.costs.copy() if is_out else routes.costs.T.copy()
        cost = 0.0
        costs[root] *= 1 - 1e-6  # of equally cheap trees the shallow one
        tied = []
        for rank, above in enumerate(cheapest_tree(costs, root)):
            if rank == root:
                continue
            source, target = (above, rank) if is_out else (rank, above)
            cost += float(routes.costs[source, target])
            tied.append((above, rank, routes.path(source, target)))
        key = (group, tuple(tied))
        if key not in self._columns:
            passes = passes_of(path for _, _, path in tied)
            if self._wanted.twin is not None:
                passes.update(Counter({self._wanted.twin[at]: times for at, times in passes.items()}))
            self._columns[key] = passes
        return cost, self._columns[key]

    def trees(self, rate: float) -> tuple[tuple[Tree, ...], tuple[Tree, ...]]:
        """Few and shallow trees that keep nearly all of the rate, with exact shares."""
        size, listed = self._graph.size, self._listed()
        hops = [_hops(self._roots[group], tied, is_out=self._is_out(group)) for group, tied in self._columns]
        depth = np.array([1.0 + max(hop.step for hop in tree) for tree in hops])
        allowed = self._limits * (size / (rate * (1 - _GIVEN_AWAY)))
        shares = settle(listed, self._parts, allowed, depth)
        kept, weights = list(range(len(listed))), shares
        for least in _LEAST_SHARES:
            kept = [at for at, share in enumerate(shares) if share >= least]
            served = {listed[at][0] for at in kept}
            kept += [
                next(at for at, (group, _) in enumerate(listed) if group == idle)
                for idle in range(len(self._roots))
                if idle not in served
            ]
            packed = pack(self._graph, [listed[at] for at in kept], self._parts)
            weights = packed.weights
            if packed.rate * size >= _KEPT * rate:
                break
        groups = [listed[at][0] for at in kept]
        parts = _parts_of(groups, weights.tolist(), size)
        found: tuple[list[Tree], list[Tree]] = ([], [])
        for at, group, part in zip(kept, groups, parts, strict=True):
            if part:
                tree = Tree(root=self._roots[group], share=Fraction(part, _PARTS * size), hops=hops[at])
                found[0 if self._is_out(group) else 1].append(tree)
        return tuple(found[0]), tuple(found[1])

    def _is_out(self, group: int) -> bool:
        return self._directions[group // self._graph.size]


def _parts_of(groups: Sequence[int], weights: Sequence[float], size: int) -> list[int]:
    """Whole parts of each tree: those of a direction sum to size * _PARTS, and both directions of a root agree."""
    num_groups = max(groups) + 1
    totals = [0.0] * num_groups
    for group, weight in zip(groups, weights, strict=True):
        totals[group] += weight
    by_root = apportioned(totals[:size], _PARTS * size)
    parts = [0] * len(groups)
    numbered = sorted(range(len(groups)), key=lambda at: groups[at])
    for group, members in groupby(numbered, key=lambda at: groups[at]):
        own = list(members)
        wanted = by_root[group % size]
        for at, part in zip(own, apportioned([weights[at] for at in own], wanted), strict=True):
            parts[at] = part
    return parts


def _hops(root: int, tied: Tied, *, is_out: bool) -> tuple[Hop, ...]:
    """Hops by step: of an out-tree by depth, of an in-tree from the deepest on."""
    above = {rank: parent for parent, rank, _ in tied}

    def depth(rank: int) -> int:
        steps = 0
        while rank != root:
            rank, steps = above[rank], steps + 1
        return steps

    depths = [depth(parent) for parent, _, _ in tied]
    last = max(depths, default=0)
    hops = [
        Hop(step=at, source=parent, target=rank, path=path)
        if is_out
        else Hop(step=last - at, source=rank, target=parent, path=path)
        for at, (parent, rank, path) in zip(depths, tied, strict=True)
    ]
    return tuple(sorted(hops, key=lambda hop: hop.step))
