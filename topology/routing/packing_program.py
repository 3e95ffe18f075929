"""Small packing programs solved here: loading a solver takes longer than a machine of eight devices needs in all.

Maximise values x weights subject to loads of weights <= limits, weights >= 0, with loads and limits that are not
negative, so that no weight at all is a start. The primal simplex method in its revised form: what was found stays when
columns are added, which is what a search that prices columns does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_SMALL: Final = 1e-11  # below it, a number is what rounding left of zero
_GAIN: Final = 1e-10  # relative to the value of a column
_MOST_PIVOTS: Final = 2000
_PATIENCE: Final = 40  # pivots that gain nothing before the rule is one that never cycles


class PackingProgram:
    """A program that grows by columns; `solve` continues from the last optimum."""

    def __init__(self, limits: Sequence[float]) -> None:
        """Begin without columns: the slack of every row is what can be used of it."""
        rows = range(len(limits))
        self._amounts = list(limits)
        self._limits = tuple(limits)
        # Row i of the inverse of the basis, as a sparse row: most of a small machine's wires are far from each other.
        self._inverse: list[dict[int, float]] = [{at: 1.0} for at in rows]
        self._basis = [-1 - at for at in rows]  # columns from 0 on; -1 - i is the slack of row i
        self._columns: list[tuple[tuple[int, float], ...]] = []
        self._values: list[float] = []

    def add(self, loads: Mapping[int, float], value: float = 1.0) -> int:
        """Add a column; returns its number."""
        self._columns.append(tuple(loads.items()))
        self._values.append(value)
        return len(self._columns) - 1

    @property
    def weights(self) -> list[float]:
        """Of each column."""
        found = [0.0] * len(self._columns)
        for name, amount in zip(self._basis, self._amounts, strict=True):
            if name >= 0:
                found[name] = max(0.0, amount)
        return found

    @property
    def total(self) -> float:
        """The sum of values times weights."""
        return sum(value * weight for value, weight in zip(self._values, self.weights, strict=True))

    @property
    def prices(self) -> list[float]:
        """What a looser limit of each row would gain."""
        return [max(0.0, price) for price in self._prices()]

    @property
    def used(self) -> list[float]:
        """Part of the limit of each row that is used."""
        loads = [0.0] * len(self._limits)
        for name, amount in zip(self._basis, self._amounts, strict=True):
            for at, load in self._columns[name] if name >= 0 else ():
                loads[at] += load * amount
        return [load / limit if limit else 1.0 for load, limit in zip(loads, self._limits, strict=True)]

    def _prices(self) -> list[float]:
        prices = [0.0] * len(self._limits)
        for name, row in zip(self._basis, self._inverse, strict=True):
            value = self._values[name] if name >= 0 else 0.0
            for at, factor in row.items() if value else ():
                prices[at] += value * factor
        return prices

    def solve(self) -> None:
        """Improve the weights until they are optimal.

        Raises:
            ArithmeticError: nothing limits some column, or rounding keeps the method from an end.
        """
        idle = 0
        for _ in range(_MOST_PIVOTS):
            entering = self._entering(first=idle > _PATIENCE)
            if entering is None:
                return
            step = self._pivot(entering)
            idle = 0 if step > _SMALL else idle + 1
        raise ArithmeticError(f"a packing of {len(self._columns)} columns found no end")

    def _entering(self, *, first: bool) -> int | None:
        """The column or slack that gains most for a unit, or the first that gains (Bland, 1977); None: optimal."""
        prices, basic = self._prices(), set(self._basis)
        best, most = None, 0.0
        for name, (loads, value) in enumerate(zip(self._columns, self._values, strict=True)):
            if name not in basic:
                gain = value - sum(prices[at] * load for at, load in loads)
                if gain > max(most, _GAIN * value):
                    best, most = name, gain
                    if first:
                        return best
        for at, price in enumerate(prices):
            if -1 - at not in basic and -price > max(most, _GAIN):
                best, most = -1 - at, -price
                if first:
                    return best
        return best

    def _pivot(self, entering: int) -> float:
        """Let a column enter the basis for that which reaches zero first; returns by how much it grows."""
        loads = self._columns[entering] if entering >= 0 else ((-1 - entering, 1.0),)
        direction = [sum(row.get(at, 0.0) * load for at, load in loads) for row in self._inverse]
        out, step = -1, float("inf")
        for at, rate in enumerate(direction):
            if rate > _SMALL:
                ratio = max(0.0, self._amounts[at]) / rate
                # Of equal ratios the first in the order of `_entering`, as the rule against cycles asks.
                if ratio < step - _SMALL or (
                    ratio <= step + _SMALL and _rank(self._basis[at]) < _rank(self._basis[out])
                ):
                    out, step = at, min(step, ratio)
        if out < 0:
            raise ArithmeticError("nothing limits a column")
        pivot = direction[out]
        own = {at: factor / pivot for at, factor in self._inverse[out].items()}
        for at, rate in enumerate(direction):
            if at != out and abs(rate) > _SMALL:
                row = self._inverse[at]
                for place, factor in own.items():
                    row[place] = row.get(place, 0.0) - rate * factor
                self._amounts[at] -= rate * step
        self._inverse[out], self._amounts[out], self._basis[out] = own, step, entering
        return step


def _rank(name: int) -> tuple[bool, int]:
    """Columns by number, then the slacks by their rows."""
    return name < 0, abs(name)
