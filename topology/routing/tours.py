"""Cheap round tours over all ranks by costs between them: exact for few, by turning and moving stretches for more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

EXACT_SIZE: Final = 8
_STARTS: Final = 2
_MOST_MOVES: Final = 50
_GAIN: Final = 1e-9


class Tours:
    """Finds tours of `size` ranks again and again, under changing costs; tours found once are starts of later ones."""

    def __init__(self, size: int, orders: Iterable[tuple[int, ...]]) -> None:
        """Begin with known orders."""
        self._size = size
        if size <= EXACT_SIZE:
            rest = list(permutations(range(1, size)))
            self._all = np.hstack(
                [np.zeros((len(rest), 1), dtype=int), np.array(rest, dtype=int).reshape(len(rest), -1)]
            )
        else:
            self._pool = [np.array(order) for order in orders]
            self._moves = _moves(size)

    def cheapest(self, costs: NDArray[np.float64]) -> tuple[int, ...]:
        """A tour of small total cost, `costs[u, v]` from u to v; the smallest up to EXACT_SIZE ranks."""
        if self._size <= EXACT_SIZE:
            return _told(self._all[_totals(costs, self._all).argmin()])
        greedy = [_greedy(costs, start) for start in range(0, self._size, max(1, self._size // _STARTS))]
        known = np.array(self._pool)
        starts = [*greedy, *known[np.argsort(_totals(costs, known), kind="stable")[:_STARTS]]]
        found = [self._improved(costs, start) for start in starts]
        best = min(found, key=lambda order: float(_totals(costs, order[None])[0]))
        if not any((best == order).all() for order in self._pool):
            self._pool.append(best)
        return _told(best)

    def _improved(self, costs: NDArray[np.float64], order: NDArray[np.int_]) -> NDArray[np.int_]:
        least = float(_totals(costs, order[None])[0])
        for _ in range(_MOST_MOVES):
            changed = order[self._moves]
            totals = _totals(costs, changed)
            at = int(totals.argmin())
            if totals[at] >= least * (1 - _GAIN):
                break
            order, least = changed[at], float(totals[at])
        return order


def _told(order: Sequence[int] | NDArray[np.int_]) -> tuple[int, ...]:
    """Ranks as plain numbers, from rank 0 on."""
    ranks = [int(rank) for rank in order]
    at = ranks.index(0)
    return (*ranks[at:], *ranks[:at])


def _totals(costs: NDArray[np.float64], orders: NDArray[np.int_]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = costs[orders, np.roll(orders, -1, axis=1)].sum(axis=1)
    return found


def _greedy(costs: NDArray[np.float64], start: int) -> NDArray[np.int_]:
    """Always on to the nearest rank that is left."""
    left = costs.copy()
    order = [start]
    while len(order) < len(costs):
        left[:, order[-1]] = np.inf
        order.append(int(left[order[-1]].argmin()))
    return np.array(order)


def _moves(size: int) -> NDArray[np.int_]:
    """Places after each move: a stretch turned, or one rank moved."""
    places = list(range(size))
    turned = [
        [*places[:low], *reversed(places[low:high]), *places[high:]]
        for low in range(1, size)
        for high in range(low + 2, size + 1)
    ]
    moved = [
        [*rest[:to], at, *rest[to:]]
        for at in range(1, size)
        for rest in [[*places[:at], *places[at + 1 :]]]
        for to in range(1, size)
        if to != at
    ]
    return np.array(turned + moved)
