"""Rows per rank and per forward pass; the global batch is kept exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence


def share_rows(rows: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Cut `rows` in proportion to `weights`, at least one row each, summing exactly to `rows`.

    Largest remainders win, lower ranks first among equals.
    """
    ranks = len(weights)
    if rows < ranks:
        msg = f"{rows} rows cannot give {ranks} ranks one row each"
        raise ValueError(msg)
    free = rows - ranks
    ideal = [free * weight / sum(weights) for weight in weights]
    shares = [math.floor(part) for part in ideal]
    order = sorted(range(ranks), key=lambda rank: (-(ideal[rank] - shares[rank]), rank))
    for rank in order[: free - sum(shares)]:
        shares[rank] += 1
    return tuple(share + 1 for share in shares)


def micro_options(shares: Sequence[int]) -> tuple[tuple[tuple[int, ...], int], ...]:
    """All balanced (micro per rank, accumulation) pairs, smallest micro-batch first.

    Every number of forward passes that changes the largest micro-batch appears once: with 6 rows,
    micro-batches 1, 2, 3 and 6.
    """
    most = max(shares)
    # ceil(most / micro) is floor((most - 1) / micro) + 1, which takes about 2 sqrt(most) values.
    root = math.isqrt(most - 1)
    passes = {1, *((most - 1) // micro + 1 for micro in range(1, root + 1)), *range(1, root + 2)}
    return tuple(
        (tuple(math.ceil(share / accumulation) for share in shares), accumulation)
        for accumulation in sorted(passes, reverse=True)
    )


def forced_micro(shares: Sequence[int], micro: int) -> tuple[tuple[int, ...], int]:
    """Return the pair for the user's own micro-batch (never above a rank's share)."""
    return tuple(min(micro, share) for share in shares), math.ceil(max(shares) / min(micro, max(shares)))
