"""Carries out a program wave by wave, in grouped calls: for NCCL, which orders operations on streams."""

from __future__ import annotations

from itertools import groupby

import torch
import torch.distributed as dist

from orchestrator.collectives.memory import Pool, Spaces, apply
from orchestrator.collectives.program import Program, ReceiveOp, SendOp


def run_waves(program: Program, spaces: Spaces, group: dist.ProcessGroup, pool: Pool) -> None:
    """Issue each wave as one group of sends and receives, then apply what it brought.

    All operations of a wave read what the waves before it left, and what it brings is applied when all of it has come,
    so their order within the group is free. On CUDA, `wait` only orders streams: the host runs ahead.

    Raises:
        RuntimeError: from the process group.
    """
    waves: dict[int, tuple[list[SendOp], list[ReceiveOp]]] = {}
    for wave, sends in groupby(program.sends, key=lambda send: send.wave):
        waves[wave] = (list(sends), [])
    for wave, receives in groupby(program.receives, key=lambda receive: receive.wave):
        waves.setdefault(wave, ([], []))[1].extend(receives)
    for wave in sorted(waves):
        _run_wave(*waves[wave], spaces, group, pool)


def _run_wave(
    sends: list[SendOp], receives: list[ReceiveOp], spaces: Spaces, group: dist.ProcessGroup, pool: Pool
) -> None:
    lent: list[torch.Tensor] = []
    ops = [_op(dist.isend, spaces.at(send.span), group, send) for send in sends]
    came: list[tuple[ReceiveOp, torch.Tensor]] = []
    for receive in receives:
        place = spaces.at(receive.span)
        # A second receive into the same span within a step must not meet the first one under way.
        direct = not receive.add and not receive.shared and all(other.span != receive.span for other, _ in came)
        target = place if direct else pool.take(place.numel(), place)
        if not direct:
            lent.append(target)
        came.append((receive, target))
        ops.append(_op(dist.irecv, target, group, receive))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for receive, target in came:
        place = spaces.at(receive.span)
        if target.data_ptr() != place.data_ptr():
            apply(place, target, add=receive.add)
    for buffer in lent:
        pool.give_back(buffer)


def _op(kind: object, tensor: torch.Tensor, group: dist.ProcessGroup, op: SendOp | ReceiveOp) -> dist.P2POp:
    # As bytes: NCCL has no 16-bit integers, and a transfer does not care.
    return dist.P2POp(kind, tensor.view(torch.uint8), group=group, group_peer=op.peer, tag=op.tag)  # type: ignore[arg-type]
