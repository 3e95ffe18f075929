"""Statistics that a few wild values cannot move: medians, spreads and slopes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final

__all__ = ["median", "robust_z", "slope_of", "spread_of"]

# The spread of normal values is 1.4826 times their median distance from the median (1 / the 75% quantile).
NORMAL: Final = 1.4826


def spread_of(values: Sequence[float]) -> float:
    """Return the standard deviation as the median distance from the median tells it (MAD); 0 for one value.

    Raises:
        StatisticsError: no values.
    """
    middle = median(values)
    return NORMAL * median(abs(value - middle) for value in values)


def slope_of(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of a line through points (x, y): the median of those of all pairs (Theil-Sen).

    Up to 29% of the points may lie anywhere. Pairs with the same x are left out; 0 where no pair is left.
    """
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] != a[0]]
    return median(slopes) if slopes else 0.0


def robust_z(value: float, values: Sequence[float], floor: float) -> float:
    """Return how many spreads a value lies above the median of others; a spread below `floor` counts as that."""
    spread = max(spread_of(values), floor)
    return (value - median(values)) / spread if spread > 0 else math.inf if value > median(values) else 0.0
