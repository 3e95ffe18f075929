"""Which rows each rank trains on at each step: one global, seeded, resumable order.

The unit of the order is the optimizer step, a global batch of G row indices that depends on the
seed alone. How a batch is spread over ranks is a second, pure step. So a position in the data is a
sample count, and a run resumes at any world size with the same rows in the same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_OF_A_SOURCE = 0x6D6978  # keeps its shuffles apart from those of the epochs
MASKED = -1  # a row without loss, standing in where there is none
# Rows are sorted by length within this many global batches: enough to make lengths in a batch
# alike, few enough that an epoch keeps its random order.
MEGA_BATCH_STEPS = 50

MicroBatches = tuple[tuple[int, ...], ...]


class GlobalSampler:
    """The global batch of every optimizer step.

    Each epoch is a seeded permutation of all rows (of a mixture, of those whose turn it is), cut
    into ceil(N / G) batches of G; the last one is filled up with `MASKED`. One epoch is held in
    memory at a time.
    """

    def __init__(
        self,
        *,
        num_rows: int,
        global_batch: int,
        seed: int,
        epochs: float = 1.0,
        max_steps: int | None = None,
        lengths: Sequence[int] | None = None,
        parts: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take what the order depends on.

        Args:
            num_rows: of the data.
            global_batch: rows of a step.
            seed: of the order.
            epochs: how often the data is gone through.
            max_steps: wins over `epochs`.
            lengths: tokens of each row; turns length grouping on.
            parts: of a mixture, (rows, rows of an epoch) of each source, whose rows stand one after the other.
        """
        if num_rows < 1 or global_batch < 1 or epochs <= 0 or (max_steps or 1) < 1:
            msg = f"positive sizes needed: {num_rows=} {global_batch=} {epochs=} {max_steps=}"
            raise ValueError(msg)
        if lengths is not None and len(lengths) != num_rows:
            msg = f"{len(lengths)} lengths for {num_rows} rows"
            raise ValueError(msg)
        if parts and sum(rows for rows, _ in parts) != num_rows:
            msg = f"parts of {[rows for rows, _ in parts]} rows for {num_rows} rows"
            raise ValueError(msg)
        # Seen once each, sources are one: the order is that of a single file.
        self._parts = tuple(parts) if any(rows != seen for rows, seen in parts) else ()
        self.num_rows = sum(seen for _, seen in self._parts) if self._parts else num_rows
        self.global_batch = global_batch
        self.seed = seed
        self.steps_per_epoch = -(-self.num_rows // global_batch)
        # Half an epoch of 3 steps is 2 steps; 1e-9 keeps 0.1 * 30 = 3.0000000000000004 at 3.
        self.num_steps = max_steps or max(1, math.ceil(epochs * self.steps_per_epoch - 1e-9))
        self._lengths = None if lengths is None else np.asarray(lengths, dtype=np.int64)
        self._epoch = -1
        self._batches = np.empty((0, global_batch), dtype=np.int64)

    def step_rows(self, step: int) -> tuple[int, ...]:
        """The G rows of a step, padding as `MASKED`.

        Raises:
            IndexError: no such step.
        """
        if not 0 <= step < self.num_steps:
            msg = f"step {step} of {self.num_steps}"
            raise IndexError(msg)
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._batches, self._epoch = self._epoch_batches(epoch), epoch
        return tuple(self._batches[index].tolist())

    def position(self, step: int) -> int:
        """Samples drawn before a step, padding included: what a checkpoint stores."""
        return step * self.global_batch

    def step_at(self, position: int) -> int:
        """The step that starts at a position.

        Raises:
            ValueError: the position was made with another global batch.
        """
        step, rest = divmod(position, self.global_batch)
        if rest or position < 0:
            msg = f"position {position} is no multiple of the global batch {self.global_batch}"
            raise ValueError(msg)
        return step

    def _epoch_batches(self, epoch: int) -> NDArray[np.int64]:
        """[steps, G] row indices of one epoch."""
        bits = np.random.PCG64(np.random.SeedSequence((self.seed, epoch)))
        order = _permutation(bits, self.num_rows)
        if self._parts:
            order = mixed_rows(self._parts, self.seed, epoch)[order]
        if self._lengths is not None:
            order = _sorted_in_mega_batches(order, self._lengths, self.global_batch)
        padded = np.full(self.steps_per_epoch * self.global_batch, MASKED, dtype=np.int64)
        padded[: self.num_rows] = order
        batches = padded.reshape(self.steps_per_epoch, self.global_batch)
        if self._lengths is not None:
            # Sorted neighbours would make the step length a saw-tooth. The padded batch stays last.
            num_full = self.num_rows // self.global_batch
            batches[:num_full] = batches[:num_full][_permutation(bits, num_full)]
        return batches


def mixed_rows(parts: Sequence[tuple[int, int]], seed: int, epoch: int) -> NDArray[np.int64]:
    """Rows of an epoch of a mixture, source by source.

    A source is gone through in one shuffle after the other, and each epoch goes on where the one before has ended: how
    often two rows of a source were seen never differs by more than one, whatever part of it an epoch takes.

    Args:
        parts: (rows, rows of an epoch) of each source.
        seed: of the run.
        epoch: from 0.
    """
    chosen: list[NDArray[np.int64]] = []
    start = 0
    for number, (rows, seen) in enumerate(parts):
        at, left = epoch * seen, seen
        while left:
            turn, skipped = divmod(at, rows)
            bits = np.random.PCG64(np.random.SeedSequence((seed, turn, number, _OF_A_SOURCE)))
            taken = _permutation(bits, rows)[skipped : skipped + left]
            chosen.append(start + taken)
            at, left = at + len(taken), left - len(taken)
        start += rows
    return np.concatenate(chosen)


def _permutation(bits: np.random.PCG64, num: int) -> NDArray[np.int64]:
    """A permutation that every numpy version agrees on: only raw bits are promised to be stable."""
    if num == 0:
        return np.empty(0, dtype=np.int64)
    return np.argsort(bits.random_raw(num), kind="stable").astype(np.int64)


def _sorted_in_mega_batches(
    order: NDArray[np.int64], lengths: NDArray[np.int64], global_batch: int
) -> NDArray[np.int64]:
    """Longest first within each run of `MEGA_BATCH_STEPS` global batches."""
    size = MEGA_BATCH_STEPS * global_batch
    runs = (order[start : start + size] for start in range(0, len(order), size))
    return np.concatenate([run[np.argsort(-lengths[run], kind="stable")] for run in runs])


def even_shares(global_batch: int, world_size: int) -> tuple[int, ...]:
    """Rows of a global batch for each rank, differing by one at most, the larger first."""
    base, rest = divmod(global_batch, world_size)
    return tuple(base + (rank < rest) for rank in range(world_size))


def num_micro_steps(shares: tuple[int, ...], micro: tuple[int, ...]) -> int:
    """Micro-steps of a step, the same on every rank: the slowest rank's ceil(share / micro)."""
    pairs = zip(shares, micro, strict=True)
    return max(1, *(-(-share // rows) for share, rows in pairs))


def split(rows: tuple[int, ...], shares: tuple[int, ...], micro: tuple[int, ...]) -> tuple[MicroBatches, ...]:
    """Micro-batches of each rank for one global batch.

    Every rank gets as many micro-batches, of balanced sizes and none empty: where a rank has fewer
    rows than there are micro-steps it gets one `MASKED` row, so that collectives stay in step.

    Args:
        rows: the G rows of a step.
        shares: how many of them each rank takes; the sum is G.
        micro: the most rows a rank can take at once.

    Raises:
        ValueError: the shares do not add up, or a size is not positive.
    """
    if sum(shares) != len(rows) or min(shares) < 0 or min(micro) < 1:
        msg = f"shares {shares} of {len(rows)} rows with micro-batches {micro}"
        raise ValueError(msg)
    num_steps = num_micro_steps(shares, micro)
    return tuple(_micro_batches(tuple(rows[i] for i in places), num_steps) for places in _deal(shares))


@lru_cache(maxsize=16)
def _deal(shares: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Places in the global batch for each rank, spread evenly.

    Rows of a length-grouped batch are sorted, so contiguous slices would give one rank all the
    long ones; dealt like cards, ranks have like lengths at each micro-step.
    """
    order = sorted(((card + 0.5) / share, rank) for rank, share in enumerate(shares) for card in range(share))
    places: tuple[list[int], ...] = tuple([] for _ in shares)
    for place, (_, rank) in enumerate(order):
        places[rank].append(place)
    return tuple(tuple(each) for each in places)


def _micro_batches(rows: tuple[int, ...], num_steps: int) -> MicroBatches:
    batches = []
    start = 0
    for size in even_shares(len(rows), num_steps):
        batches.append(rows[start : start + size] or (MASKED,))
        start += size
    return tuple(batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatches:
    """The micro-batches of one rank, from a step to the end of the run.

    Attributes:
        sampler: the global order.
        rank: whose rows.
        shares: rows of each rank per step.
        micro: the most rows of each rank per micro-step.
        start_step: the first step; `sampler.step_at(position)` after a resume.
    """

    sampler: GlobalSampler
    rank: int
    shares: tuple[int, ...]
    micro: tuple[int, ...]
    start_step: int = 0

    def __post_init__(self) -> None:
        """Reject shares that are not a split of the global batch."""
        if not 0 <= self.rank < len(self.shares) == len(self.micro):
            msg = f"rank {self.rank} with {len(self.shares)} shares, {len(self.micro)} micro sizes"
            raise ValueError(msg)
        if sum(self.shares) != self.sampler.global_batch:
            msg = f"shares {self.shares} of a global batch of {self.sampler.global_batch}"
            raise ValueError(msg)

    @property
    def micro_steps(self) -> int:
        """Micro-batches per optimizer step: the accumulation, the same on every rank."""
        return num_micro_steps(self.shares, self.micro)

    def __len__(self) -> int:
        """Micro-batches left, on every rank the same."""
        return max(0, self.sampler.num_steps - self.start_step) * self.micro_steps

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Micro-batches of row indices, `MASKED` for a row without loss."""
        for micro_batches in self.steps():
            yield from micro_batches

    def steps(self) -> Iterator[MicroBatches]:
        """The micro-batches of each optimizer step together."""
        for step in range(self.start_step, self.sampler.num_steps):
            yield split(self.sampler.step_rows(step), self.shares, self.micro)[self.rank]
