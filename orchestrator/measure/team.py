"""Ranks that measure together: what all of them do at once is timed until the slowest is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from orchestrator.measure.flows import Timed, Trial

TIMEOUT: Final = timedelta(seconds=120)
_PAUSE_SECONDS: Final = 0.02  # in which a shaped network's bucket fills again, as between the steps of a training


class Team:
    """The ranks of the default process group."""

    def __init__(self, device: torch.device) -> None:
        """Make the groups; all ranks call this."""
        self.device = device
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_cuda = device.type == "cuda"
        self.clock = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._data = dist.new_group(timeout=TIMEOUT)

    def seconds(self, prepare: Callable[[], object], action: Callable[[], object], runs: int) -> tuple[float, ...]:
        """Seconds of each run, the slowest rank's; a first one is left out."""
        return tuple(self._once(prepare, action) for _ in range(runs + 1))[1:]

    def _once(self, prepare: Callable[[], object], action: Callable[[], object]) -> float:
        prepare()
        self._wait()
        time.sleep(_PAUSE_SECONDS)
        dist.barrier(group=self.clock)
        begin = time.perf_counter()
        action()
        self._wait()
        taken = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=self.clock)
        return float(taken)

    def _wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def copies(self, test: Trial, size_bytes: int, runs: int, *, pieces: int = 1) -> Timed:
        """Time copies that start at once, each in so many messages; all ranks call this."""
        part = max(1, size_bytes // pieces)
        sends = [target for source, target in test.flows if source == self.rank]
        receives = [source for source, target in test.flows if target == self.rank]
        given = torch.zeros(part, dtype=torch.uint8, device=self.device)
        taken = [torch.empty(part, dtype=torch.uint8, device=self.device) for _ in receives]

        def action() -> None:
            ops = []
            for piece in range(pieces):
                ops += [self._op(dist.isend, given, target, piece) for target in sends]
                ops += [self._op(dist.irecv, into, source, piece) for into, source in zip(taken, receives, strict=True)]
            works = dist.batch_isend_irecv(ops) if self.is_cuda and ops else [_start(op) for op in ops]
            for work in works:
                work.wait()

        return Timed(test=test, size_bytes=part * pieces, seconds=self.seconds(_nothing, action, runs))

    def _op(self, kind: object, data: torch.Tensor, peer: int, tag: int) -> dist.P2POp:
        return dist.P2POp(kind, data, group=self._data, group_peer=peer, tag=tag)  # type: ignore[arg-type]


def _start(op: dist.P2POp) -> dist.Work:
    work: dist.Work = op.op(op.tensor, group=op.group, tag=op.tag, **{_PEER[op.op]: op.group_peer})
    return work


_PEER: Final = {dist.isend: "group_dst", dist.irecv: "group_src"}


def _nothing() -> None:
    return None
