"""What each collective must deliver, in chunks.

Sizes are shares of the collective's own size M in bytes: the gathered result of an all-gather, the input of a
reduce-scatter, the buffer of an all-reduce, and what each rank sends in an all-to-all (as nccl-tests counts).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from topology.errors import TopologyError


class Collective(Enum):
    """The collectives that routes are chosen for."""

    all_gather = "all_gather"
    reduce_scatter = "reduce_scatter"
    all_reduce = "all_reduce"
    all_to_all = "all_to_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of the data: who has it at first, who needs it at last, and its share of M.

    Attributes:
        origin: the rank that has it; None: every rank has a contribution, and the result is their sum.
        target: the rank that needs it; None: every rank does.
        share: of M.
    """

    origin: int | None
    target: int | None
    share: Fraction


def bus_factor(collective: Collective, size: int) -> Fraction:
    """Bus bytes over M, as nccl-tests define it for `size` ranks."""
    once = Fraction(size - 1, size)
    return 2 * once if collective is Collective.all_reduce else once


def problems_of(collective: Collective, chunks: Sequence[Chunk], size: int) -> Iterable[str]:
    """Yield what keeps `chunks` from being the data of a collective over `size` ranks."""
    for at, chunk in enumerate(chunks):
        if chunk.share <= 0:
            yield f"chunk {at} has the share {chunk.share}"
        for rank in (chunk.origin, chunk.target):
            if rank is not None and not 0 <= rank < size:
                yield f"chunk {at} names rank {rank} of {size}"
    expected = _expected(collective, size)
    found: dict[tuple[int | None, int | None], Fraction] = {}
    for chunk in chunks:
        key = (chunk.origin, chunk.target)
        found[key] = found.get(key, Fraction(0)) + chunk.share
    for key in sorted({*expected, *found}, key=str):
        want, got = expected.get(key, Fraction(0)), found.get(key, Fraction(0))
        if want != got:
            yield f"chunks from {_named(key[0])} to {_named(key[1])} make {got} of the data, not {want}"


def _expected(collective: Collective, size: int) -> dict[tuple[int | None, int | None], Fraction]:
    part = Fraction(1, size)
    if collective is Collective.all_gather:
        return {(rank, None): part for rank in range(size)}
    if collective is Collective.reduce_scatter:
        return {(None, rank): part for rank in range(size)}
    if collective is Collective.all_reduce:
        return {(None, None): Fraction(1)}
    return {(source, target): part for source in range(size) for target in range(size) if source != target}


def _named(rank: int | None) -> str:
    return "all ranks" if rank is None else f"rank {rank}"


def check_size(size: int) -> None:
    """Reject a group that has nothing to exchange.

    Raises:
        TopologyError: fewer than two ranks.
    """
    if size < 2:  # noqa: PLR2004 - one rank has no one to talk to
        raise TopologyError(asked="a route", found=f"{size} device", remedy="choose two devices or more")
