"""Shares of a collective's data, and what paths pass: counts that need no arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def apportioned(weights: Sequence[float], parts: int) -> list[int]:
    """Whole numbers that sum to `parts`, close to proportional to the weights (largest remainders)."""
    total = sum(weights)
    exact = [weight / total * parts if total > 0 else parts / len(weights) for weight in weights]
    whole = [int(value + 1e-9) for value in exact]
    order = sorted(range(len(weights)), key=lambda at: whole[at] - exact[at])
    for at in order[: parts - sum(whole)]:
        whole[at] += 1
    return whole


def passes_of(paths: Iterable[tuple[int, ...]]) -> Counter[int]:
    """How often each edge is passed."""
    return Counter(at for path in paths for at in path)
