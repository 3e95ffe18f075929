"""Bounds that are linear programs, over classes of nodes and edges.

All-to-all: the largest rate lambda at which every device can send to every other one (maximum concurrent flow).

Trees: each share of a gather uses a tree out of its root, each of a scatter a tree into it, and within a switch every
copy that leaves has entered. So what the trees take of the capacities enters and leaves a switch alike, and within it
a flow of X, the rate of all roots together, must reach every device. On a graph with equal capacities into and out of
every switch the narrowest cut says the same; where a switch is drawn as two halves it may promise too much, since it
takes a switch for one that can copy.

All-reduce: let a chunk be first complete at rank r. The sends that made r's sum never carry r's own contribution, and
those that carry it reach every other rank, so a chunk uses a tree into r and another, disjoint one out of r. With
the share of the chunks that are first complete at r left open, M bytes need M / X seconds. Where all devices are
alike this equals reduce-scatter and all-gather one after the other; with unlike ones it can be up to half of that,
since what limits the one phase may be idle in the other.

Where refinement joins what is not alike (see `refine`), the all-to-all may come out too fast, never too slow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np
import scipy
from numpy.typing import NDArray

from topology.routing.linear import Program, Solution, solve
from topology.routing.refine import Ints, Symmetry, View

_Floats = NDArray[np.float64]
_Matrix = Any  # csr_matrix: naming the class would load scipy, which takes longer than most plans
_NO_LIMIT: Final = -1
_NOTHING: Final = 1e-6  # of the highest price


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The best all-to-all.

    Attributes:
        units_per_pair: lambda in MB/s; 0 where some pair has no path.
        prices: for each class of edges what a unit more on one of its edges would be worth, not scaled.
    """

    units_per_pair: float
    prices: _Floats


@dataclass(slots=True)
class _Rows:
    """Rows of a sparse matrix as they are written down."""

    at: list[_Floats | Ints] = field(default_factory=list)
    columns: list[_Floats | Ints] = field(default_factory=list)
    values: list[_Floats] = field(default_factory=list)
    count: int = 0

    def add(self, rows: Ints, columns: Ints, values: _Floats | float) -> None:
        """Add entries; rows count from the first row of the block begun last."""
        self.at.append(rows + self.count)
        self.columns.append(columns)
        self.values.append(np.broadcast_to(np.asarray(values, dtype=np.float64), rows.shape))

    def end_block(self, rows: int) -> None:
        """Close a block of rows."""
        self.count += rows

    def matrix(self, width: int) -> _Matrix:
        """The matrix of all rows."""
        if not self.at:
            return scipy.sparse.csr_matrix((self.count, width))
        entries = np.concatenate(self.values), (np.concatenate(self.at), np.concatenate(self.columns))
        return scipy.sparse.csr_matrix(entries, shape=(self.count, width))


def exchange(symmetry: Symmetry, *, relay: bool) -> Exchange | None:
    """Find the largest lambda; None where nothing limits it.

    Args:
        symmetry: of the graph.
        relay: whether a device may pass on what is not for it.

    Raises:
        TopologyError: the solver gives up.
    """
    scale = _scale(symmetry)
    kept = [_useful(view, relay=relay) for view in symmetry.views]
    starts = np.cumsum([0, *(len(rows) for rows in kept)])
    rate = int(starts[-1])
    equal, upper = _Rows(), _Rows()
    for view, rows, start in zip(symmetry.views, kept, starts.tolist(), strict=False):
        columns = start + np.arange(len(rows))
        _conserve(equal, view, rows, columns)
        takers = np.nonzero(view.devices)[0]
        takers = takers[takers != view.own]
        equal.add(takers, np.full(len(takers), rate), -view.devices[takers].astype(np.float64))
        # The source itself has no row: it sends what the others take.
        equal.end_block(len(view.members))
        upper.add(rows[:, 2], columns, float(view.alike))
    upper.end_block(len(symmetry.edge_units))
    limited = symmetry.edge_units != _NO_LIMIT
    cost = np.zeros(rate + 1)
    cost[rate] = -1.0
    limits = (symmetry.edge_units * symmetry.edge_counts)[limited] / scale
    found = _solved(cost, upper.matrix(rate + 1)[limited], limits, equal.matrix(rate + 1))
    if found is None:
        return None
    prices = np.zeros(len(limited))
    prices[limited] = found.prices
    return Exchange(units_per_pair=float(found.values[rate]) * scale, prices=prices)


class Way(Enum):
    """Which trees: out of their roots (a gather) or into them (a scatter)."""

    out_of = "out of"
    into = "into"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """The best packing of trees.

    Attributes:
        units: X in MB/s, of all roots together.
        prices: for each class of edges what a unit more on one of its edges would be worth, not scaled.
    """

    units: float
    prices: _Floats


def tree_rate(symmetry: Symmetry, ways: tuple[Way, ...], *, equal_roots: bool) -> Trees | None:
    """The largest rate X at which trees of every way can be packed side by side; None where nothing limits it.

    Args:
        symmetry: of the graph.
        ways: one for a gather or a scatter, both for an all-reduce.
        equal_roots: whether every device is the root of an equal share.

    Raises:
        TopologyError: the solver gives up.
    """
    layout = _Layout(symmetry, ways)
    equal, upper, scale = _Rows(), _Rows(), _scale(symmetry)
    roots = np.nonzero(symmetry.devices)[0]
    shares = layout.shares + layout.root_of[roots]
    if equal_roots:
        each = np.arange(len(roots))
        equal.add(each, shares, 1.0)
        equal.add(each, np.full(len(roots), layout.rate), -symmetry.devices[roots] / symmetry.devices.sum())
        equal.end_block(len(roots))
    else:
        equal.add(np.zeros(len(roots), dtype=np.int64), shares, 1.0)
        equal.add(np.zeros(1, dtype=np.int64), np.array([layout.rate]), -1.0)
        equal.end_block(1)
    limited = np.nonzero(symmetry.edge_units != _NO_LIMIT)[0]
    for first in layout.taken:
        _balance_switches(equal, symmetry, first)
        upper.add(np.arange(len(limited)), first + limited, 1.0)
    upper.end_block(len(limited))
    starts = iter(layout.flows)
    for view in symmetry.views:
        for way, taken in zip(ways, layout.taken, strict=True):
            _spread(upper, symmetry, view, layout, (next(starts), taken, way is Way.into))
    limits = np.zeros(upper.count)
    limits[: len(limited)] = (symmetry.edge_units * symmetry.edge_counts)[limited] / scale
    cost = np.zeros(layout.width)
    cost[layout.rate] = -1.0
    found = _solved(cost, upper.matrix(layout.width), limits, equal.matrix(layout.width))
    if found is None:
        return None
    prices = np.zeros(len(symmetry.edge_units))
    prices[limited] = found.prices[: len(limited)]
    return Trees(units=float(found.values[layout.rate]) * scale, prices=prices)


class _Layout:
    """Columns: X, shares of the roots, what each way takes of each class of edges, flows of each view and way."""

    def __init__(self, symmetry: Symmetry, ways: tuple[Way, ...]) -> None:
        roots = symmetry.devices > 0
        self.root_of = np.cumsum(roots) - 1
        self.rate, self.shares = 0, 1
        edges, first = len(symmetry.edge_units), 1 + int(roots.sum())
        self.taken = [first + at * edges for at in range(len(ways))]
        sizes = [len(view.arcs) for view in symmetry.views for _ in ways]
        ends = (first + len(ways) * edges + np.cumsum([0, *sizes])).tolist()
        self.flows, self.width = ends[:-1], int(ends[-1])


def _spread(upper: _Rows, symmetry: Symmetry, view: View, layout: _Layout, where: tuple[int, int, bool]) -> None:
    """A flow from the roots to the device of a view, within what the way takes; reversed: from it to the roots."""
    first, taken, is_reverse = where
    arcs = view.arcs
    columns = first + np.arange(len(arcs))
    rows = np.arange(len(arcs))
    upper.add(rows, columns, 1.0)
    upper.add(rows, taken + arcs[:, 2], -arcs[:, 3] / symmetry.edge_counts[arcs[:, 2]])
    upper.end_block(len(arcs))
    tails, heads = (arcs[:, 1], arcs[:, 0]) if is_reverse else (arcs[:, 0], arcs[:, 1])
    own = view.own
    # What leaves a class is no more than what enters it and what its roots hold; the device itself passes on nothing.
    out = (tails != heads) & (tails != own)
    upper.add(tails[out], columns[out], 1.0)
    upper.add(heads[out], columns[out], -1.0)
    nodes = np.nonzero(view.devices)[0]
    _, at = np.unique(view.classes, return_index=True)
    base = symmetry.classes[at[nodes]]
    upper.add(nodes, layout.shares + layout.root_of[base], -view.devices[nodes] / symmetry.devices[base])
    upper.add(np.array([own]), np.array([layout.rate]), 1.0)
    upper.end_block(len(view.members))


def _balance_switches(equal: _Rows, symmetry: Symmetry, first: int) -> None:
    """What enters a switch leaves it, copy by copy."""
    edges = np.arange(len(symmetry.edge_units))
    for side, sign in ((0, 1.0), (1, -1.0)):
        ends = symmetry.edge_ends[:, side]
        switch = symmetry.devices[ends] == 0
        equal.add(ends[switch], first + edges[switch], sign)
    equal.end_block(len(symmetry.members))


def _useful(view: View, *, relay: bool) -> Ints:
    """Arcs that what the device of a view sends may take."""
    tails, heads = view.arcs[:, 0], view.arcs[:, 1]
    kept = (heads != view.own) & (tails != heads)
    if not relay:
        kept &= (tails == view.own) | (view.devices[tails] == 0)
    rows: Ints = view.arcs[kept]
    return rows


def _conserve(equal: _Rows, view: View, rows: Ints, columns: Ints) -> None:
    """In minus out of every class but the source."""
    inner = rows[:, 0] != view.own
    equal.add(rows[:, 1], columns, 1.0)
    equal.add(rows[inner, 0], columns[inner], -1.0)


def _scale(symmetry: Symmetry) -> float:
    """A rate that makes the numbers of the program about 1."""
    return float(max(symmetry.edge_units.max(initial=1), 1))


def _solved(cost: _Floats, upper: _Matrix, limits: _Floats, equal: _Matrix) -> Solution | None:
    return solve(Program(cost=cost, upper=upper, limits=limits, equal=equal, amounts=np.zeros(equal.shape[0])))


def priced(prices: _Floats) -> list[int]:
    """Classes of edges whose price is not a rounding error."""
    most = float(prices.max(initial=0.0))
    return [at for at, price in enumerate(prices.tolist()) if price > _NOTHING * most]
