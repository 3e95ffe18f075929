"""Uneven shards that all lie in device memory, where that is the best there is: without a solver, which loads slowly.

Host memory only adds room. So the least time with the room of both, host copies taken for free, is a lower bound; a cut
in device memory alone that reaches it is optimal, and has the fewest bytes in host memory: none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from orchestrator.planner.shards import Gather, ShardRank, slowest_link

_ROUNDED: Final = 1e-9
_HALVINGS: Final = 60  # of the time: 18 digits


def resident_cut(
    ranks: Sequence[ShardRank], units: int, room: Sequence[tuple[int, int]], gather: Gather
) -> list[int] | None:
    """Granules of each rank's device memory in a cut of least time; None where host memory may make it shorter.

    Args:
        ranks: what each can move.
        units: granules to share.
        room: granules of device and host memory of each rank.
        gather: how the shards are brought together.
    """
    device = [most for most, _ in room]
    if sum(device) < units:
        return None
    if gather is Gather.padded:
        least = _padded(units, device)
        return least if max(least) <= max(_padded(units, [sum(both) for both in room])) else None
    rates = _granules_per_second(ranks)
    seconds = _broadcast_seconds(rates, units, device)
    bound = _broadcast_seconds(rates, units, [sum(both) for both in room])
    if seconds > bound * (1 + _ROUNDED):
        return None
    low, high = _ranges(rates, units, device, seconds)
    return _spread(units, low, high)


def _padded(units: int, most: Sequence[int]) -> list[int]:
    """Shares whose largest one is as small as can be: the shares of a level, that no rank's room cuts off early."""
    low, high = 0, max(most)
    while low < high:
        level = (low + high) // 2
        if sum(min(level, one) for one in most) >= units:
            high = level
        else:
            low = level + 1
    return _spread(units, [min(max(0, low - 1), one) for one in most], [min(low, one) for one in most])


def _granules_per_second(ranks: Sequence[ShardRank]) -> list[tuple[float, float]]:
    """Out of and into each rank, in those of the slowest link, so that the numbers are about 1."""
    slowest = slowest_link(ranks)
    return [(rank.out_bytes_per_second / slowest, rank.in_bytes_per_second / slowest) for rank in ranks]


def _broadcast_seconds(rates: Sequence[tuple[float, float]], units: int, most: Sequence[int]) -> float:
    """Least time by halving: a longer time allows whatever a shorter one does."""
    low, high = 0.0, float(units) + 1.0  # over the slowest link all of it takes so long
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        least, largest = _ranges(rates, units, most, middle)
        fits = sum(least) <= units <= sum(largest) and all(a <= b for a, b in zip(least, largest, strict=True))
        low, high = (low, middle) if fits else (middle, high)
    return high


def _ranges(
    rates: Sequence[tuple[float, float]], units: int, most: Sequence[int], seconds: float
) -> tuple[list[int], list[int]]:
    """Fewest and most granules of each rank: it takes in what it lacks, and sends out what it has, in that time."""
    low = [max(0, math.ceil(units - seconds * into - _ROUNDED)) for _, into in rates]
    high = [min(room, math.floor(seconds * out + _ROUNDED)) for (out, _), room in zip(rates, most, strict=True)]
    return low, high


def _spread(units: int, low: Sequence[int], high: Sequence[int]) -> list[int]:
    """Raise the lower limits to the sum, each by the same share of its range; the first ranks get what is left over."""
    shares, free = list(low), sum(high) - sum(low)
    missing = units - sum(low)
    for at, (least, largest) in enumerate(zip(low, high, strict=True)):
        shares[at] += (largest - least) * missing // free if free else 0
    for at in range(len(shares)):
        more = min(units - sum(shares), high[at] - shares[at], 1)
        shares[at] += more
    return shares
