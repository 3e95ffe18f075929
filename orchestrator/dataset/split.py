"""Which rows are held out for evaluation: seeded, stable, never empty on either side."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from heapq import nsmallest
from typing import TYPE_CHECKING

from orchestrator.dataset.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Row indices, ascending; together they are all rows, each once."""

    train: tuple[int, ...]
    eval: tuple[int, ...]


def split_rows(
    num_rows: int,
    *,
    path: Path,
    seed: int,
    fraction: float | None = None,
    count: int | None = None,
) -> Split:
    """Hold out `count` rows, or `fraction` of them, at least one.

    Rows are ranked by a hash of seed and index and the lowest are held out, so that rows added at
    the end of a file move few others from one side to the other.

    Raises:
        DataError: neither or both are given, or one side would be empty.
    """
    chosen = held_out(num_rows, path=path, seed=seed, fraction=fraction, count=count)
    out = frozenset(chosen)
    return Split(train=tuple(i for i in range(num_rows) if i not in out), eval=chosen)


def held_out(
    num_rows: int,
    *,
    path: Path,
    seed: int,
    fraction: float | None = None,
    count: int | None = None,
) -> tuple[int, ...]:
    """The eval side of `split_rows`, in memory that grows with it alone; raises likewise."""
    num_eval = _num_eval(num_rows, path, fraction, count)
    return tuple(sorted(nsmallest(num_eval, range(num_rows), key=lambda index: _rank(seed, index))))


def _num_eval(num_rows: int, path: Path, fraction: float | None, count: int | None) -> int:
    if (fraction is None) == (count is None):
        problem = "the eval split needs either a fraction or a count"
        raise _split_error(path, problem, "Set data.eval_fraction, such as 0.05.")
    if fraction is not None and not 0.0 < fraction < 1.0:
        problem = f"data.eval_fraction={fraction} leaves one side of the split empty"
        raise _split_error(path, problem, "Choose a fraction between 0 and 1, such as 0.05.")
    num_eval = count if count is not None else max(1, round((fraction or 0.0) * num_rows))
    if not 0 < num_eval < num_rows:
        problem = f"{num_eval} of {num_rows} rows for evaluation leaves one side empty"
        raise _split_error(path, problem, "Give more rows, a smaller data.eval_fraction, or data.eval_path.")
    return num_eval


def _rank(seed: int, index: int) -> tuple[bytes, int]:
    return blake2b(f"{seed}:{index}".encode(), digest_size=8).digest(), index


def _split_error(path: Path, problem: str, remedy: str) -> DataError:
    return DataError(path=path, line=None, problem=problem, remedy=remedy)
