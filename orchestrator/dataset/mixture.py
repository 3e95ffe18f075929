"""How often the rows of several sources are seen in an epoch: by weight, or by share.

A **weight** says how many times a row of the source is seen in an epoch: 2 is twice, 0.5 every other row (and the
others in the next epoch). A **share** says which part of the rows of an epoch comes from the source, whatever its
size. Packed, blocks take the place of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One source of a mixture.

    Attributes:
        rows: training rows (blocks, where they are packed).
        weight: times a row is seen in an epoch; without meaning where there is a share.
        share: part of an epoch's rows; 0 where the weight counts.
    """

    rows: int
    weight: float = 1.0
    share: float = 0.0


def epoch_rows(parts: Sequence[Part]) -> tuple[int, ...]:
    """Rows of each source in an epoch, at least one of each.

    Sources with weights make up what the shares leave: with W rows by weight and shares that add up to S, an epoch has
    W / (1 - S) rows. With shares alone an epoch is as long as it can be without seeing a row twice.

    Raises:
        ValueError: shares that leave nothing for the weights, or that do not make a whole without any.
    """
    shares = sum(part.share for part in parts)
    weighted = sum(part.weight * part.rows for part in parts if not part.share)
    is_whole = math.isclose(shares, 1.0, abs_tol=1e-6)
    if all(part.share for part in parts):
        if not is_whole:
            raise ValueError(f"shares add up to {shares:g}, and no source takes the rest")
        total = min(part.rows / part.share for part in parts)
    else:
        if is_whole or shares > 1:
            raise ValueError(f"shares add up to {shares:g} and leave nothing for the other sources")
        total = weighted / (1 - shares)
    wanted = (part.share * total if part.share else part.weight * part.rows for part in parts)
    return tuple(max(1, round(rows)) for rows in wanted)


def allotted(counts: Sequence[int], most: int) -> tuple[int, ...]:
    """Cut `counts` so that they add up to at most `most`, in proportion; one of each is left while there is room.

    The rest after rounding down goes to the largest remainders, earlier ones first.
    """
    total = sum(counts)
    if not most or total <= most:
        return tuple(counts)
    exact = [count * most / total for count in counts]
    found = [
        min(count, max(1 if most >= len(counts) else 0, int(part))) for count, part in zip(counts, exact, strict=True)
    ]
    order = sorted(range(len(counts)), key=lambda i: (int(exact[i]) - exact[i], i))
    for i in [*order, *order]:
        if sum(found) >= most:
            break
        found[i] += found[i] < counts[i]
    for i in sorted(range(len(counts)), key=lambda i: -found[i]):
        found[i] -= min(max(0, sum(found) - most), max(0, found[i] - 1))
    return tuple(found)
