"""What one rank does to carry out a schedule: a pure value, in the order in which it is done.

Each chunk is cut into pieces. Piece p of a send at step s belongs to wave p + s * depth, and all ranks go through
the waves in order: while one piece crosses a slow link, the pieces behind it take the earlier steps. Transfers have
one order over all ranks, in which each comes after all that it depends on. A rank posts its receives and its sends in
this order, and applies what it receives in this order. The first transfer that is not finished can then always
finish, whatever the schedule, so nothing deadlocks; and sums are always taken in the same order.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass

from orchestrator.collectives.layout import Counts, Layout, Span, layout_of
from topology.collectives import Collective
from topology.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOp:
    """A part of a space goes to a peer.

    Attributes:
        peer: the rank that receives it.
        tag: number of this transfer, the same on both sides.
        wave: in which it goes.
        span: what is sent.
        needs: how many of the rank's receives must have been applied before.
        staged: whether it must be copied aside, because a receive of the same step changes the span.
    """

    peer: int
    tag: int
    wave: int
    span: Span
    needs: int
    staged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveOp:
    """A part of a space comes from a peer.

    Attributes:
        peer: the rank that sends it.
        tag: number of this transfer, the same on both sides.
        wave: in which it goes.
        span: where it belongs.
        add: whether it is summed into the span, or replaces it.
        needs: how many receives must have been applied before it may be written in place.
        frees: how many of the rank's sends must have ended before the span may change.
        shared: whether a send of the same step reads the span as it was, so that nothing may arrive in place.
    """

    peer: int
    tag: int
    wave: int
    span: Span
    add: bool
    needs: int
    frees: int
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """All sends and all receives of one rank, each in order, and the elements of its spaces."""

    rank: int
    depth: int
    data_elements: int
    result_elements: int
    relayed_elements: int
    own: tuple[Span, Span] | None
    sends: tuple[SendOp, ...]
    receives: tuple[ReceiveOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    order: tuple[int, int, int]  # wave, step, number of the send
    sends: bool
    peer: int
    tag: int
    span: Span
    add: bool
    part: tuple[int, int]  # chunk and piece


def program_of(
    schedule: Schedule, rank: int, elements: int, *, pieces: int = 1, depth: int = 2, counts: Counts | None = None
) -> Program:
    """Turn a schedule into the operations of one rank.

    Args:
        schedule: what to carry out.
        rank: whose program.
        elements: of the whole collective, as `layout_of` counts them.
        pieces: into how many pieces each chunk is cut.
        depth: how many pieces may be on their way at each step.
        counts: elements of uneven blocks, as `layout_of` takes them.

    Raises:
        UserError: counts that do not fit the schedule.
        ValueError: no piece, no depth, or no such rank.
    """
    if pieces < 1 or depth < 1 or not 0 <= rank < schedule.size:
        raise ValueError(f"{pieces} pieces, depth {depth}, rank {rank} of {schedule.size}")
    layout = layout_of(schedule, elements, counts)
    ordered = sorted(_transfers(schedule, layout, rank, pieces, depth), key=lambda transfer: transfer.order)
    sends, receives = _linked(ordered)
    return Program(
        rank=rank,
        depth=depth,
        data_elements=layout.data_elements[rank],
        result_elements=layout.result_elements[rank],
        relayed_elements=layout.relayed_elements[rank],
        own=layout.own[rank],
        sends=tuple(sends),
        receives=tuple(receives),
    )


def _transfers(schedule: Schedule, layout: Layout, rank: int, pieces: int, depth: int) -> list[_Transfer]:
    found: list[_Transfer] = []
    for number, send in enumerate(schedule.sends):
        if rank not in (send.source, send.target):
            continue
        home, sends = layout.homes[send.chunk][rank], send.source == rank
        for piece in range(pieces):
            span = home.piece(piece, pieces)
            if len(span):
                transfer = _Transfer(
                    order=(piece + send.step * depth, send.step, number),
                    sends=sends,
                    peer=send.target if sends else send.source,
                    tag=piece * len(schedule.sends) + number,
                    span=span,
                    add=send.add,
                    part=(send.chunk, piece),
                )
                found.append(transfer)
    return found


def _linked(ordered: list[_Transfer]) -> tuple[list[SendOp], list[ReceiveOp]]:
    """Find for each transfer what it waits for: the transfers of the same part before it, or in its step."""
    sent: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # part -> (step, position)
    got: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    num_sends = num_receives = 0
    for transfer in ordered:
        if transfer.sends:
            sent[transfer.part].append((transfer.order[1], num_sends))
            num_sends += 1
        else:
            got[transfer.part].append((transfer.order[1], num_receives))
            num_receives += 1
    sends: list[SendOp] = []
    receives: list[ReceiveOp] = []
    for transfer in ordered:
        (wave, step, _), part = transfer.order, transfer.part
        if transfer.sends:
            send = SendOp(
                peer=transfer.peer,
                tag=transfer.tag,
                wave=wave,
                span=transfer.span,
                needs=_before(got[part], step),
                staged=any(at == step for at, _ in got[part]),
            )
            sends.append(send)
            continue
        receive = ReceiveOp(
            peer=transfer.peer,
            tag=transfer.tag,
            wave=wave,
            span=transfer.span,
            add=transfer.add,
            needs=max((position + 1 for _, position in got[part] if position < len(receives)), default=0),
            frees=_before(sent[part], step),
            shared=any(at == step for at, _ in sent[part]),
        )
        receives.append(receive)
    return sends, receives


def _before(positions: list[tuple[int, int]], step: int) -> int:
    """How many operations are over when all those of earlier steps are."""
    return max((position + 1 for at, position in positions if at < step), default=0)


def fingerprint(schedule: Schedule, *settings: object) -> bytes:
    """32 bytes that differ when two ranks would not do the same: the sends and chunks, and the settings of their run.

    Paths are left out: they say where the bytes flow, not what a rank does.
    """
    chunks = [(chunk.origin, chunk.target, str(chunk.share)) for chunk in schedule.chunks]
    sends = [(send.step, send.source, send.target, send.chunk, send.add) for send in schedule.sends]
    text = repr((schedule.collective.value, schedule.size, chunks, sends, settings))
    return hashlib.sha256(text.encode()).digest()


def sums_alike(schedule: Schedule) -> bool:
    """Whether all ranks that need a sum take it in the same order, so that they get the same bits.

    A sum of two is the same both ways round; a longer one depends on its order.
    """
    if schedule.collective is not Collective.all_reduce:
        return True
    known: dict[object, int] = {}
    state = [[known.setdefault(("own", rank), len(known)) for rank in range(schedule.size)] for _ in schedule.chunks]
    for sends in schedule.steps():
        moved = [(send, state[send.chunk][send.source]) for send in sends]
        for send, value in moved:
            held = state[send.chunk]
            both = frozenset((held[send.target], value))
            held[send.target] = known.setdefault(both, len(known)) if send.add else value
    return all(len(set(held)) == 1 for held in state)
