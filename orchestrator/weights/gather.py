"""Brings the ranks' pieces of a layer together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist

from orchestrator.collectives.execute import Executor


class Gather(ABC):
    """One way to do it. All ranks start the same gathers in the same order."""

    @abstractmethod
    def run(self, memory: torch.Tensor, counts: Sequence[int]) -> None:
        """Fill the flat bytes `memory`, in which this rank has filled its own block.

        On CPU they are there when this returns; on a GPU when the current stream comes to it.

        Args:
            memory: consists of a block of each rank, in rank order.
            counts: bytes of each block; zero for some.
        """

    @abstractmethod
    def close(self) -> None:
        """End what was begun for it."""


class Broadcasts(Gather):
    """Every rank sends its block to all others, all at once: no byte more than needed, however uneven the blocks."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Take a process group that is used for nothing else."""
        self._group = group

    def run(self, memory: torch.Tensor, counts: Sequence[int]) -> None:
        """Start all broadcasts, then wait for them."""
        ends = list(accumulate(counts))
        works = [
            dist.broadcast(memory[end - count : end], group=self._group, group_src=rank, async_op=True)
            for rank, (count, end) in enumerate(zip(counts, ends, strict=True))
            if count
        ]
        for work in works:
            if work is not None:
                work.wait()

    def close(self) -> None:
        """Leave the group to its owner."""


class Routed(Gather):
    """By an all-gather schedule of the topology's, run by an executor in a group of its own."""

    def __init__(self, executor: Executor) -> None:
        """Take the executor of an all-gather over the ranks."""
        self._executor = executor

    def run(self, memory: torch.Tensor, counts: Sequence[int]) -> None:
        """Run the schedule with blocks of these sizes."""
        self._executor.run(memory, counts=tuple(counts))

    def close(self) -> None:
        """End the executor."""
        self._executor.close()
