"""Carries out a program piece by piece: for process groups whose sends and receives are waited for on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from orchestrator.collectives.memory import Pool, Spaces, apply
from orchestrator.collectives.program import Program, ReceiveOp


@dataclass(slots=True)
class _Posted:
    """An operation under way, and the buffer it uses aside from the spaces."""

    work: Callable[[], object]
    aside: torch.Tensor | None


class Pump:
    """One run of a program.

    Receives are posted up to `depth` waves ahead of the oldest that is not applied, sends likewise as soon as what they
    need has come. gloo has no way to wait for whichever ends first, nor to ask whether one has ended (`is_completed`
    stays false until `wait`), so both are waited for in order. A rank waits for a send only if it is older than the
    receive it is about to apply: waiting for a younger one could close a circle of ranks that wait for each other.
    """

    def __init__(self, program: Program, spaces: Spaces, group: dist.ProcessGroup, pool: Pool) -> None:
        """Nothing is sent before `run`."""
        self._program, self._spaces, self._group, self._pool = program, spaces, group, pool
        self._sent: list[_Posted] = []
        self._coming: list[_Posted] = []
        self._ended = 0  # sends
        self._applied = 0  # receives

    def run(self) -> None:
        """Do all of it.

        Raises:
            RuntimeError: from the process group, when a peer is gone or slower than the group's timeout.
        """
        receives, depth = self._program.receives, self._program.depth
        while self._applied < len(receives):
            head = receives[self._applied]
            self._post_receives(head.wave + depth)
            self._post_sends(head.wave + depth)
            # Waiting here is safe: whoever takes these sends waits for nothing that comes after them.
            self._end_sends(self._posted_before(head.wave - depth))
            self._take(head)
        sends = self._program.sends
        while len(self._sent) < len(sends):
            wave = sends[len(self._sent)].wave
            self._end_sends(self._posted_before(wave - depth))
            self._post_sends(wave)
        self._end_sends(len(sends))

    def _post_receives(self, last: int) -> None:
        """Post, in order, the receives up to wave `last`."""
        receives, spaces = self._program.receives, self._spaces
        while len(self._coming) < len(receives) and receives[len(self._coming)].wave <= last:
            receive = receives[len(self._coming)]
            place = spaces.at(receive.span)
            settled = receive.needs <= self._applied and receive.frees <= self._ended and not receive.shared
            aside = None if settled and not receive.add else self._pool.take(len(receive.span), place)
            target = place if aside is None else aside
            work = dist.irecv(target, group=self._group, group_src=receive.peer, tag=receive.tag)
            self._coming.append(_Posted(_waiter(work), aside))

    def _post_sends(self, last: int) -> None:
        """Post, in order, the sends up to wave `last` whose data is there. Never waits."""
        sends = self._program.sends
        while len(self._sent) < len(sends):
            at = len(self._sent)
            send = sends[at]
            if send.needs > self._applied or send.wave > last:
                return
            source, aside = self._spaces.at(send.span), None
            if send.staged:
                aside = self._pool.take(len(send.span), source)
                source = aside.copy_(source)
            work = dist.isend(source, group=self._group, group_dst=send.peer, tag=send.tag)
            self._sent.append(_Posted(_waiter(work), aside))

    def _posted_before(self, wave: int) -> int:
        """How many sends that are posted belong to waves before this one."""
        count = self._ended
        while count < len(self._sent) and self._program.sends[count].wave < wave:
            count += 1
        return count

    def _end_sends(self, count: int) -> None:
        """Wait until the first `count` sends have ended."""
        while self._ended < count:
            posted = self._sent[self._ended]
            posted.work()
            if posted.aside is not None:
                self._pool.give_back(posted.aside)
            self._sent[self._ended] = _DONE
            self._ended += 1

    def _take(self, receive: ReceiveOp) -> None:
        """Wait for the oldest receive, and change its span once nothing reads the old state any more.

        All sends of its wave and those before are posted, since they need only receives of earlier waves.
        """
        posted = self._coming[self._applied]
        posted.work()
        if posted.aside is not None:
            self._end_sends(receive.frees)
            apply(self._spaces.at(receive.span), posted.aside, add=receive.add)
            self._pool.give_back(posted.aside)
        self._coming[self._applied] = _DONE
        self._applied += 1


def _nothing() -> None:
    return None


_DONE = _Posted(_nothing, None)


def _waiter(work: dist.Work | None) -> Callable[[], object]:
    if work is None:
        raise RuntimeError("this process is no member of the process group")
    return work.wait
