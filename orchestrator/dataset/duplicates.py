"""Rows that are there twice: within the training rows, and between them and the held-out ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from array import array

    import numpy as np
    from numpy.typing import NDArray

MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """What was found; rows are alike when they differ in white space alone.

    Attributes:
        train_rows: rows looked at.
        repeated: training rows that stand further up already.
        leaked: training rows that are held-out rows as well; leaked_eval: how many held-out rows that concerns.
        eval_rows: held-out rows looked at.
        repeated_examples, leaked_examples: a few pairs of places, such as `a.jsonl, line 7`.
        dropped: training rows left out on that account.
    """

    train_rows: int
    eval_rows: int
    repeated: int = 0
    leaked: int = 0
    leaked_eval: int = 0
    repeated_examples: tuple[tuple[str, str], ...] = ()
    leaked_examples: tuple[tuple[str, str], ...] = ()
    dropped: int = 0

    @property
    def any(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.repeated or self.leaked or self.dropped)


def firsts(keys: array[int]) -> NDArray[np.int64]:
    """[rows] number of the first row with the same key; its own where it is the first."""
    import numpy as np

    _, first, inverse = np.unique(_values(keys), return_index=True, return_inverse=True)
    found: NDArray[np.int64] = first.astype(np.int64)[inverse]
    return found


def seen_in(keys: array[int], others: array[int]) -> NDArray[np.int64]:
    """[rows] number of a row of `others` with the same key; -1 where there is none."""
    import numpy as np

    own, other = _values(keys), _values(others)
    if not len(other):
        return np.full(len(own), -1, dtype=np.int64)
    order = np.argsort(other, kind="stable").astype(np.int64)
    at = np.minimum(np.searchsorted(other[order], own), len(other) - 1)
    return np.where(other[order[at]] == own, order[at], -1)


def own_numbers(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """[rows] 0, 1, 2, ..."""
    import numpy as np

    return np.arange(len(rows), dtype=np.int64)


def places_of(mask: NDArray[np.bool_]) -> list[int]:
    """Numbers of the rows where it holds."""
    return [int(at) for at in mask.nonzero()[0]]


def _values(keys: array[int]) -> NDArray[np.uint64]:
    import numpy as np  # late: reading rows does not need it

    return np.frombuffer(keys, dtype=np.uint64) if len(keys) else np.empty(0, dtype=np.uint64)
