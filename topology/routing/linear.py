"""Linear programs made smaller by their own symmetry before they are solved.

Variables that no colouring of the program can tell apart may share one value, rows likewise: the optimum stays the
same (Grohe, Kersting, Mladenov and Selman, "Dimension reduction via colour refinement", 2014). A rack of equal
devices shrinks to the program of one of them; a machine without symmetry is solved as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy
from numpy.typing import NDArray

from topology.errors import TopologyError

_Ints = NDArray[np.uint64]
_Floats = NDArray[np.float64]
_INFEASIBLE: Final = 2
_UNBOUNDED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Minimise `cost` x subject to `upper` x <= `limits`, `equal` x = `amounts`, x >= 0."""

    cost: _Floats
    upper: Any  # csr_matrix, which has no type parameters here
    limits: _Floats
    equal: Any
    amounts: _Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Values of the variables, and the price of each row of `upper` (not negative: what a looser limit would gain)."""

    values: _Floats
    prices: _Floats


def solve(program: Program) -> Solution | None:
    """Solve a program by way of its classes; None: nothing limits it.

    Raises:
        TopologyError: the solver gives up, or no values satisfy the program.
    """
    rows, columns = _classes(program)
    row_of, row_first, row_count = np.unique(rows, return_index=True, return_inverse=False, return_counts=True)
    num_rows, num_columns = len(row_of), int(columns.max()) + 1
    # One row stands for its class; the columns of a class are summed, since they share one value.
    fold = scipy.sparse.csr_matrix(
        (np.ones(len(columns)), (np.arange(len(columns)), columns)), shape=(len(columns), num_columns)
    )
    whole = (scipy.sparse.vstack([program.upper, program.equal], format="csr") @ fold).tocsr()
    num_upper = program.upper.shape[0]
    is_upper = row_first < num_upper
    small = whole[row_first]
    found = scipy.optimize.linprog(
        fold.T @ program.cost,
        A_ub=small[is_upper] if is_upper.any() else None,
        b_ub=program.limits[row_first[is_upper]] if is_upper.any() else None,
        A_eq=small[~is_upper] if num_rows > is_upper.sum() else None,
        b_eq=program.amounts[row_first[~is_upper] - num_upper] if num_rows > is_upper.sum() else None,
        method="highs",
    )
    if found.status == _UNBOUNDED:
        return None
    if found.x is None:
        told = "no flow satisfies the limits" if found.status == _INFEASIBLE else str(found.message)
        raise TopologyError(asked="the best flow", found=told, remedy="report this graph: a flow always exists")
    prices = np.zeros(num_upper)
    if is_upper.any():
        by_class = np.zeros(num_rows)
        by_class[is_upper] = -found.ineqlin.marginals / row_count[is_upper]
        prices = by_class[rows[:num_upper]]
    return Solution(values=np.asarray(found.x)[columns], prices=np.maximum(prices, 0.0))


def _classes(program: Program) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Class of every row and of every column, numbered from 0: equal sums over every class of the other side."""
    whole = scipy.sparse.vstack([program.upper, program.equal], format="coo")
    kinds = np.repeat(np.arange(2, dtype=np.uint64), (program.upper.shape[0], program.equal.shape[0]))
    rows = _numbered(mix(_bits(np.concatenate([program.limits, program.amounts]))) + mix(kinds + np.uint64(7)))
    columns = _numbered(_bits(program.cost))
    values = mix(_bits(whole.data))
    while True:
        seen = rows.max(), columns.max()
        rows = _refined(rows, whole.row, values, columns[whole.col])
        columns = _refined(columns, whole.col, values, rows[whole.row])
        if (rows.max(), columns.max()) == seen:
            return rows, columns


def _refined(own: NDArray[np.intp], at: NDArray[np.int32], values: _Ints, other: NDArray[np.intp]) -> NDArray[np.intp]:
    """Split classes by the sum of hashes of the entries (value and class of the other side)."""
    sums = np.zeros(len(own), dtype=np.uint64)
    np.add.at(sums, at, mix(values ^ mix(other.astype(np.uint64) + np.uint64(1))))
    return _numbered(mix(own.astype(np.uint64) + np.uint64(1)) + sums)


def _numbered(hashes: _Ints) -> NDArray[np.intp]:
    return np.unique(hashes, return_inverse=True)[1]


def _bits(values: _Floats) -> _Ints:
    return np.asarray(values + 0.0, dtype=np.float64).view(np.uint64)


def mix(words: _Ints) -> _Ints:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): close words become unrelated ones."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
