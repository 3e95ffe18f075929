"""Ranks as threads of one process, that exchange tensors in memory: for exchanges without process groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch


class Meeting:
    """Where the ranks put what the others take."""

    def __init__(self, size: int) -> None:
        self.size, self.held, self.barrier = size, [None] * size, Barrier(size, timeout=20)

    def swap(self, rank: int, value: Any) -> list[Any]:
        self.held[rank] = value
        self.barrier.wait()
        found = list(self.held)
        self.barrier.wait()
        return found


class InMemory:
    """A transport of one rank of a meeting."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size, self.sent_bytes = meeting, rank, meeting.size, 0

    def all_to_all(self, data: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        gets = [counts[self.rank]] * self.size
        return self.exchange(data, counts, gets).view(self.size, counts[self.rank])

    def exchange(self, data: torch.Tensor, gives: Sequence[int], gets: Sequence[int]) -> torch.Tensor:
        assert data.numel() == sum(gives)
        self.sent_bytes += (sum(gives) - gives[self.rank]) * data.element_size()
        came = [blocks[self.rank] for blocks in self.meeting.swap(self.rank, data.clone().split(list(gives)))]
        assert [block.numel() for block in came] == list(gets)
        return torch.cat(came)

    def all_gather(self, block: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        assert block.numel() == counts[self.rank]
        self.sent_bytes += (self.size - 1) * block.nbytes
        return torch.cat(self.meeting.swap(self.rank, block.clone()))

    def swap(self, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.sent_bytes += sum(piece.nbytes for at, piece in enumerate(pieces) if at != self.rank)
        return [theirs[self.rank] for theirs in self.meeting.swap(self.rank, [piece.clone() for piece in pieces])]

    def close(self) -> None:
        pass


def together(size: int, action: Callable[[int, InMemory], Any]) -> list[Any]:
    """What `action(rank, transport)` gives on each rank."""
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(action, rank, InMemory(meeting, rank)) for rank in range(size)]
        return [future.result() for future in futures]
