"""The order of what fits: time per token, and among near-equals the memory that stays free.

The fastest way sets the pace. Of all ways within 2% of it (each engine and mode with its handicap), the one that
leaves the largest share of memory free comes first, then the one with the fewest devices, then the faster one: no
estimate is so exact that 2% of a step are worth a run that ends out of memory. What comes second is found in the same
manner among the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

WORTH_MEMORY: Final = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What the order looks at.

    Attributes:
        group: only the best of a group is listed.
        seconds_per_token: with handicaps.
        devices: in use.
    """

    group: object
    seconds_per_token: float
    devices: int


def order(items: Sequence[T], rank_of: Callable[[T], Rank], margin_of: Callable[[T], float]) -> list[T]:
    """Sort `items` best first, the best one of each group.

    Args:
        items: what fits.
        rank_of: what is known of each at once.
        margin_of: share of memory that stays free; asked only of those that are near the fastest.
    """
    ranks = [(rank_of(item), item) for item in items]
    left = sorted(ranks, key=lambda entry: entry[0].seconds_per_token)
    found: list[T] = []
    while left:
        limit = left[0][0].seconds_per_token * (1 + WORTH_MEMORY)
        near = [entry for entry in left if entry[0].seconds_per_token <= limit]
        best = min(near, key=lambda entry: (-margin_of(entry[1]), entry[0].devices, entry[0].seconds_per_token))
        found.append(best[1])
        left = [entry for entry in left if entry[0].group != best[0].group]
    return found
