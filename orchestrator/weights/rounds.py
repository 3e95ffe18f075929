"""Who reads what, and when: every stored byte is read by one rank of a host, all ranks reading at the same time. Pure.

In a round every rank reads and packs one batch and holds nothing else, then the ranks pass the pieces to whom they
belong. Batches are sorted by size, so that those of a round are alike and nobody waits long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

BUNDLE_BYTES: Final = 2**20  # small jobs are done together up to this size: norms and biases are many


class Sized(Protocol):
    """A job, as far as sharing out goes."""

    @property
    def first(self) -> str:
        """Its name."""

    @property
    def read_bytes(self) -> int:
        """Bytes that it reads."""


_Job = TypeVar("_Job", bound=Sized)
Batch = tuple[_Job, ...]


def share_out(jobs: Sequence[_Job], ranks: int) -> list[tuple[Batch[_Job], ...]]:
    """Deal jobs to ranks in rounds; the batch of rank r in a round is its r-th, and may be empty.

    Args:
        jobs: all of them.
        ranks: how many read.
    """
    ordered = sorted(jobs, key=lambda job: (-job.read_bytes, job.first))
    batches: list[list[_Job]] = []
    bundle_bytes = min(BUNDLE_BYTES, sum(job.read_bytes for job in jobs) // ranks)
    left = 0
    for job in ordered:
        if job.read_bytes > left or not batches:
            batches.append([])
            left = bundle_bytes
        batches[-1].append(job)
        left = max(0, left - job.read_bytes)
    full = [tuple(batch) for batch in batches]
    full += [()] * (-len(full) % ranks)
    return [tuple(full[at : at + ranks]) for at in range(0, len(full), ranks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Bytes of a tensor that belong to a rank.

    Attributes:
        begin: first byte in the tensor.
        nbytes: how many.
    """

    begin: int
    nbytes: int


def overlap(tensor_begin: int, tensor_bytes: int, span_begin: int, span_end: int) -> Overlap | None:
    """Return what a span of an extent has of a tensor in it; None for nothing."""
    first, last = max(tensor_begin, span_begin), min(tensor_begin + tensor_bytes, span_end)
    return Overlap(begin=first - tensor_begin, nbytes=last - first) if last > first else None
