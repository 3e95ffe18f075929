"""Where each chunk of a schedule lies in the memory of a rank, in elements.

Bounds come from cumulative sums of exact shares, rounded: any number of elements works, also fewer than there are
ranks. The length of a chunk is the same on all ranks, so that all of them skip the same empty ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import accumulate, pairwise

from orchestrator.errors import Problem, UserError
from topology.collectives import Chunk, Collective
from topology.schedule import Schedule

_HALF = Fraction(1, 2)

Counts = Sequence[int] | Sequence[Sequence[int]]


class Space(Enum):
    """Memory of a rank: what it gives, what it gets if that lies elsewhere, and what it only passes on."""

    data = "data"
    result = "result"
    relayed = "relayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Elements `begin` to `end` (excluded) of a space."""

    space: Space
    begin: int
    end: int

    def __len__(self) -> int:
        """Number of elements."""
        return self.end - self.begin

    def piece(self, at: int, pieces: int) -> Span:
        """Return one of `pieces` equal parts; the same part has the same length in every span of this length."""
        size = len(self)
        begin, end = self.begin + size * at // pieces, self.begin + size * (at + 1) // pieces
        return Span(space=self.space, begin=begin, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of all chunks.

    Attributes:
        data_elements: of each rank's `data`.
        result_elements: of each rank's `result`; 0 where the result lies in `data`.
        relayed_elements: of each rank's `relayed`.
        homes: for each chunk, rank -> where it lies there.
        own: for each rank, what it copies from `data` to `result` by itself, or None.
    """

    data_elements: tuple[int, ...]
    result_elements: tuple[int, ...]
    relayed_elements: tuple[int, ...]
    homes: tuple[dict[int, Span], ...]
    own: tuple[tuple[Span, Span] | None, ...]


def layout_of(schedule: Schedule, elements: int, counts: Counts | None = None) -> Layout:
    """Place the chunks of a schedule.

    Args:
        schedule: whose chunks.
        elements: of the whole: the buffer of an all-reduce, the gathered result, the input of a reduce-scatter, what
            each rank sends in an all-to-all. Left out of account when `counts` are given.
        counts: elements of each rank's block in an all-gather or reduce-scatter, or, for an all-to-all, of what each
            rank (row) sends to each (column). None: `elements` in blocks as equal as rounding allows.

    Raises:
        UserError: counts that do not fit the schedule.
    """
    size, kind = schedule.size, schedule.collective
    if elements < 0:
        raise _refused(f"{elements} elements", "give zero or more")
    if kind is Collective.all_to_all:
        return _exchange(schedule, _matrix(counts, elements, size))
    if kind is Collective.all_reduce:
        if counts is not None:
            raise _refused("counts for an all-reduce", "leave them out: every rank has the whole")
        blocks: tuple[int, ...] = (elements,)
    else:
        blocks = _blocks(counts, elements, size)
    total = sum(blocks)
    starts = (0, *accumulate(blocks))
    spans = (Span(space=Space.data, begin=begin, end=end) for begin, end in _within(schedule.chunks, blocks, starts))
    homes = tuple(dict.fromkeys(range(size), span) for span in spans)
    return Layout(
        data_elements=(total,) * size,
        result_elements=(0,) * size,
        relayed_elements=(0,) * size,
        homes=homes,
        own=(None,) * size,
    )


def block_of(schedule: Schedule, rank: int, elements: int, counts: Counts | None = None) -> Span:
    """A rank's own block in the `data` of an all-gather or reduce-scatter, or of a reduced buffer cut evenly.

    Raises:
        UserError: counts that do not fit the schedule.
    """
    starts = (0, *accumulate(_blocks(counts, elements, schedule.size)))
    return Span(space=Space.data, begin=starts[rank], end=starts[rank + 1])


def even_blocks(elements: int, blocks: int) -> tuple[int, ...]:
    """Cut `elements` into blocks whose bounds are those of equal shares, rounded."""
    bounds = [_rounded(Fraction(elements * at, blocks)) for at in range(blocks + 1)]
    return tuple(end - begin for begin, end in pairwise(bounds))


def _rounded(value: Fraction) -> int:
    return (value + _HALF).__floor__()  # halves upward: Python's own rounding goes to even, which makes gaps uneven


def _within(chunks: Sequence[Chunk], blocks: Sequence[int], starts: Sequence[int]) -> list[tuple[int, int]]:
    """Begin and end of each chunk in the blocks: one for each rank, or one for all."""
    keys = [(chunk.origin if chunk.origin is not None else chunk.target) or 0 for chunk in chunks]
    totals = [Fraction(0)] * len(blocks)
    for key, chunk in zip(keys, chunks, strict=True):
        totals[key] += chunk.share
    done = [Fraction(0)] * len(blocks)
    spans: list[tuple[int, int]] = []
    for key, chunk in zip(keys, chunks, strict=True):
        begin = _rounded(blocks[key] * done[key] / totals[key])
        done[key] += chunk.share
        spans.append((starts[key] + begin, starts[key] + _rounded(blocks[key] * done[key] / totals[key])))
    return spans


def _exchange(schedule: Schedule, matrix: tuple[tuple[int, ...], ...]) -> Layout:
    """Places of an all-to-all: blocks by target in `data`, by source in `result`, the rest in `relayed`."""
    size = schedule.size
    given = [(0, *accumulate(row)) for row in matrix]
    got = [(0, *accumulate(row[rank] for row in matrix)) for rank in range(size)]
    passes: list[set[int]] = [set() for _ in schedule.chunks]
    for send in schedule.sends:
        passes[send.chunk] |= {send.source, send.target}
    relayed = [0] * size
    done: dict[tuple[int, int], Fraction] = {}
    homes: list[dict[int, Span]] = []
    for at, chunk in enumerate(schedule.chunks):
        source, target = chunk.origin or 0, chunk.target or 0
        block, before = matrix[source][target], done.get((source, target), Fraction(0))
        done[source, target] = before + chunk.share
        begin, end = (_rounded(block * size * share) for share in (before, before + chunk.share))
        home = {
            source: _shifted(Space.data, given[source][target], begin, end),
            target: _shifted(Space.result, got[target][source], begin, end),
        }
        for rank in sorted(passes[at] - {source, target}):
            home[rank] = _shifted(Space.relayed, relayed[rank] - begin, begin, end)
            relayed[rank] += end - begin
        homes.append(home)
    own = tuple(
        (
            _shifted(Space.data, given[rank][rank], 0, matrix[rank][rank]),
            _shifted(Space.result, got[rank][rank], 0, matrix[rank][rank]),
        )
        for rank in range(size)
    )
    return Layout(
        data_elements=tuple(row[-1] for row in given),
        result_elements=tuple(row[-1] for row in got),
        relayed_elements=tuple(relayed),
        homes=tuple(homes),
        own=own,
    )


def _shifted(space: Space, by: int, begin: int, end: int) -> Span:
    return Span(space=space, begin=by + begin, end=by + end)


def _blocks(counts: Counts | None, elements: int, size: int) -> tuple[int, ...]:
    if counts is None:
        return even_blocks(elements, size)
    found = tuple(counts)
    if len(found) != size or any(not isinstance(count, int) or count < 0 for count in found):
        raise _refused(f"counts {list(found)}", f"give {size} numbers of elements, one for each rank")
    return found  # type: ignore[return-value] # just checked


def _matrix(counts: Counts | None, elements: int, size: int) -> tuple[tuple[int, ...], ...]:
    if counts is None:
        return (even_blocks(elements, size),) * size
    rows = tuple(tuple(row) if isinstance(row, Sequence) else () for row in counts)
    if len(rows) != size or any(len(row) != size or min(row) < 0 for row in rows):
        raise _refused("counts of an all-to-all", f"give {size} rows of {size} numbers of elements")
    return rows


def _refused(found: str, remedy: str) -> UserError:
    return UserError(Problem(where="collective", found=found, remedy=remedy))
