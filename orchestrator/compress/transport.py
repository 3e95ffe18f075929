"""Moves bytes between the ranks of a group: by the library's collectives, or along schedules of the topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from orchestrator.collectives.execute import Executor, Pieces
from topology.collectives import Collective
from topology.graph import Graph
from topology.routing.software import Runner, Software
from topology.schedule import Schedule


class Transport(Protocol):
    """Two collectives on flat tensors, with blocks of any size; all ranks call them in the same order.

    Attributes:
        rank: of this process in the group.
        size: ranks of the group.
        sent_bytes: that this rank gave to others so far.
    """

    rank: int
    size: int
    sent_bytes: int

    def all_to_all(self, data: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Send block b of `data` to rank b; `counts[b]` elements, the same list on all ranks.

        Returns:
            What came from each rank, in rank order: [size, counts[rank]].
        """
        ...

    def all_gather(self, block: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Give `block`, of `counts[rank]` elements, to all ranks.

        Returns:
            The blocks of all ranks, one after the other: [sum of counts].
        """
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...


class Library:
    """The collectives of a process group's own library: gloo or NCCL."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Take a group that is used for nothing else meanwhile."""
        self._group = group
        self.rank, self.size, self.sent_bytes = dist.get_rank(group), dist.get_world_size(group), 0
        self._kept: dict[int, torch.Tensor] = {}  # memory for what comes from each peer, used again

    def swap(self, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Send piece b to rank b, without a copy; the same shapes on all ranks.

        Returns:
            The pieces for this rank, by sender: its own itself, the others in memory that the next call uses again.
        """
        own = pieces[self.rank]
        came = [own if peer == self.rank else self._memory(peer, own) for peer in range(self.size)]
        others = [peer for peer in range(self.size) if peer != self.rank]
        ops = [self._op(dist.isend, pieces[peer], peer) for peer in others if pieces[peer].numel()]
        ops += [self._op(dist.irecv, came[peer], peer) for peer in others if own.numel()]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        self.sent_bytes += sum(pieces[peer].nbytes for peer in others)
        return came

    def _op(self, kind: object, tensor: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(kind, tensor.view(torch.uint8), group=self._group, group_peer=peer)  # type: ignore[arg-type]

    def _memory(self, peer: int, like: torch.Tensor) -> torch.Tensor:
        kept = self._kept.get(peer)
        if kept is None or kept.numel() < like.nbytes:
            kept = self._kept[peer] = torch.empty(like.nbytes, dtype=torch.uint8, device=like.device)
        return kept[: like.nbytes].view(like.dtype).view(like.shape)

    def all_to_all(self, data: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Send block b of `data` to rank b."""
        own = counts[self.rank]
        result = data.new_empty(self.size * own)
        self._exchange(result, [own] * self.size, data, list(counts))
        return result.view(self.size, own)

    def exchange(self, data: torch.Tensor, gives: Sequence[int], gets: Sequence[int]) -> torch.Tensor:
        """Send block b of `data`, of `gives[b]` elements, to rank b, and get `gets[b]` from it."""
        result = data.new_empty(sum(gets))
        self._exchange(result, list(gets), data, list(gives))
        return result

    def all_gather(self, block: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Give `block` to all ranks."""
        result = block.new_empty(sum(counts))
        if len(set(counts)) == 1:
            dist.all_gather_into_tensor(result, block, group=self._group)
            self.sent_bytes += (self.size - 1) * block.nbytes
        else:  # the library's all-gather wants blocks of one size
            sizes = [counts[self.rank]] * self.size
            self._exchange(result, list(counts), block.repeat(self.size), sizes)
        return result

    def close(self) -> None:
        """Nothing runs in the background."""

    def _exchange(self, result: torch.Tensor, gets: list[int], data: torch.Tensor, gives: list[int]) -> None:
        # As bytes: the libraries differ in the types they take.
        width = data.element_size()
        self.sent_bytes += width * (sum(gives) - gives[self.rank])
        dist.all_to_all_single(
            result.view(torch.uint8),
            data.view(torch.uint8),
            [width * count for count in gets],
            [width * count for count in gives],
            group=self._group,
        )


class Scheduled:
    """Schedules of the topology, run by executors; where none is given for a collective, the library's own."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        all_to_all: Schedule | None = None,
        all_gather: Schedule | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        """Compare the schedules over the ranks; all ranks of the group must call this.

        Args:
            group: of the schedules' ranks, used for nothing else.
            all_to_all: schedule for it.
            all_gather: schedule for it.
            pieces: how blocks are cut for the way.

        Raises:
            UserError: on all ranks, if they hold different schedules or the group does not fit.
        """
        self._library = Library(group)
        self.rank, self.size, self.sent_bytes = self._library.rank, self._library.size, 0
        self._exchange = None if all_to_all is None else Executor(all_to_all, group, pieces)
        self._gather = None if all_gather is None else Executor(all_gather, group, pieces)

    def all_to_all(self, data: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Send block b of `data` to rank b."""
        own = counts[self.rank]
        self.sent_bytes += (sum(counts) - own) * data.element_size()
        if self._exchange is None:
            return self._library.all_to_all(data, counts)
        result = data.new_empty(self.size * own)
        self._exchange.run(data, result, (tuple(counts),) * self.size)
        return result.view(self.size, own)

    def all_gather(self, block: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Give `block` to all ranks."""
        self.sent_bytes += (self.size - 1) * block.nbytes
        if self._gather is None:
            return self._library.all_gather(block, counts)
        result = block.new_empty(sum(counts))
        self._gather.block(result, tuple(counts)).copy_(block)
        self._gather.run(result, counts=tuple(counts))
        return result

    def close(self) -> None:
        """End the executors' threads."""
        for executor in (self._exchange, self._gather):
            if executor is not None:
                executor.close()


def routed(
    graph: Graph, nbytes: int, *, software: Software | None = None, pieces: Pieces | None = None
) -> Callable[[dist.ProcessGroup], Scheduled]:
    """What makes a transport along the routes that the topology chooses; the library where it is as good.

    Args:
        graph: of the ranks that exchange packets, in their order.
        nbytes: that all of them have for each other, about.
        software: of the group, with what was measured of it; None: priors.
        pieces: how blocks are cut for the way.

    Raises:
        TopologyError: fewer than two devices.
    """
    # Loads scipy, which runs by the library do without.
    from topology.routing.choose import choose

    found: dict[Collective, Schedule | None] = {}
    for kind in (Collective.all_to_all, Collective.all_gather):
        offer = choose(graph, kind, max(1, nbytes), software=software).chosen
        found[kind] = offer.entry.schedule if offer.runner is Runner.executor else None
    exchange, gather = found[Collective.all_to_all], found[Collective.all_gather]
    return lambda group: Scheduled(group, all_to_all=exchange, all_gather=gather, pieces=pieces)
