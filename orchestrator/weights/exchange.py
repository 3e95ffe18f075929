"""The ranks that load a base together, and how pieces get from the rank that made them to those that keep them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.errors import Problem, RunFailed
from orchestrator.weights.layout import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """Ranks that read a checkpoint together: those of one host, so that each host reads each byte once.

    Attributes:
        members: ranks of the cut, in the order of the group's ranks.
        me: this process's place among them.
        group: their process group; None for one alone.
    """

    members: tuple[int, ...]
    me: int
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.members)

    @property
    def rank(self) -> int:
        """This process's rank in the cut."""
        return self.members[self.me]

    def agree(self, error: Exception | None, device: torch.device) -> None:
        """Go on together, or end together: nobody waits for a rank that failed.

        Raises:
            Exception: this rank's own.
            RunFailed: another rank's.
        """
        if self.group is None:
            if error is not None:
                raise error
            return
        failed = torch.tensor([0 if error is None else self.size - self.me], dtype=torch.int32, device=device)
        with _talking():
            dist.all_reduce(failed, dist.ReduceOp.MAX, group=self.group)
            worst = int(failed.item())
        if error is not None:
            raise error
        if worst:
            who = self.members[self.size - worst]
            found = f"rank {who} could not load its part of the base"
            raise RunFailed(Problem(where="loading the base", found=found, remedy=f"See the log of rank {who}."))

    def tell(self, value: object) -> object:
        """Return what the first member says."""
        if self.group is None:
            return value
        said = [value]
        with _talking():
            dist.broadcast_object_list(said, group=self.group, group_src=0)
        return said[0]

    def gather(self, value: object) -> list[Any]:
        """Return what each member says."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.size
        with _talking():
            dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast(self, memory: torch.Tensor, source: int) -> None:
        """Fill every member's memory (flat bytes) with that of the `source`-th."""
        if self.group is not None:
            with _talking():
                dist.broadcast(memory, group=self.group, group_src=source)


@contextmanager
def _talking() -> Iterator[None]:
    """Tell a lost peer apart from a fault of the program: process groups raise plain RuntimeErrors.

    Raises:
        RunFailed: a peer is gone or too slow.
    """
    try:
        yield
    except RuntimeError as error:
        found = f"another rank is gone or too slow ({(str(error).splitlines() or ['no reason given'])[0]})"
        remedy = "See the logs of the other ranks: the first to fail says why."
        raise RunFailed(Problem(where="loading the base", found=found, remedy=remedy)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Bytes that one member has for another.

    Attributes:
        source, target: places in the team.
        layer: whose they are.
        begin: first byte in the layer's extent.
        nbytes: how many.
        key: of the tensor they come from, on the source.
        offset: first byte in that tensor.
    """

    source: int
    target: int
    layer: int
    begin: int
    nbytes: int
    key: tuple[str, Role]
    offset: int


def swap(
    team: Team, parcels: Sequence[Parcel], outgoing: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor]
) -> None:
    """Send and receive the parcels of a round.

    Args:
        team: who takes part.
        parcels: of the whole team, in an order that all share.
        outgoing: the bytes of this member's parcels for others, in their order.
        incoming: memory for those of others for this one, in their order.
    """
    sending, receiving = iter(outgoing), iter(incoming)
    ops = []
    for tag, parcel in enumerate(parcels):
        if parcel.source == parcel.target:
            continue
        if parcel.source == team.me:
            ops.append(_op(dist.isend, next(sending), parcel.target, team, tag))
        elif parcel.target == team.me:
            ops.append(_op(dist.irecv, next(receiving), parcel.source, team, tag))
    if ops:
        with _talking():
            for work in dist.batch_isend_irecv(ops):
                work.wait()


def _op(kind: object, memory: torch.Tensor, peer: int, team: Team, tag: int) -> dist.P2POp:
    return dist.P2POp(kind, memory, group=team.group, group_peer=peer, tag=tag)  # type: ignore[arg-type]
