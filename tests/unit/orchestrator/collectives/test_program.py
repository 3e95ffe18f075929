"""The programs of all ranks, run by the real pump (or in waves) over a network in memory, against plain references."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.collectives import pump, waves
from orchestrator.collectives.layout import Space, Span, block_of, layout_of
from orchestrator.collectives.memory import Pool, Spaces
from orchestrator.collectives.program import Program, ReceiveOp, SendOp, fingerprint, program_of, sums_alike
from topology.collectives import Chunk, Collective
from topology.schedule import Schedule

Drawn = Callable[[int, Collective, int], Schedule]


class _Router:
    """Stands for torch.distributed in all threads: each rank's process group is its endpoint."""

    @staticmethod
    def isend(tensor: torch.Tensor, *, group: Any, group_dst: int, tag: int) -> Any:
        return group.isend(tensor, group=None, group_dst=group_dst, tag=tag)

    @staticmethod
    def irecv(tensor: torch.Tensor, *, group: Any, group_src: int, tag: int) -> Any:
        return group.irecv(tensor, group=None, group_src=group_src, tag=tag)

    @staticmethod
    def P2POp(kind: Any, tensor: torch.Tensor, *, group: Any, group_peer: int, tag: int) -> Any:  # noqa: N802
        side = "group_dst" if kind is _Router.isend else "group_src"
        return lambda: kind(tensor, group=group, tag=tag, **{side: group_peer})

    @staticmethod
    def batch_isend_irecv(ops: list[Any]) -> list[Any]:
        return [post() for post in ops]


def run_all(
    network: Any,
    schedule: Schedule,
    data: list[torch.Tensor],
    results: Sequence[torch.Tensor | None],
    *,
    pieces: int,
    depth: int,
    counts: list[list[int]] | None = None,
) -> None:
    elements = data[0].numel()

    def one(rank: int) -> Pool:
        program = program_of(schedule, rank, elements, pieces=pieces, depth=depth, counts=counts)
        pool = Pool()
        spaces = Spaces(program, data[rank], results[rank], pool)
        if program.own is not None:
            spaces.at(program.own[1]).copy_(spaces.at(program.own[0]))
        if network.in_order:
            waves.run_waves(program, spaces, network.endpoint(rank), pool)
        else:
            pump.Pump(program, spaces, network.endpoint(rank), pool).run()
        spaces.close()
        return pool

    with (
        patch.object(pump, "dist", _Router),
        patch.object(waves, "dist", _Router),
        ThreadPoolExecutor(schedule.size) as threads,
    ):
        pools = list(threads.map(one, range(schedule.size)))
    assert all(not pool._lent for pool in pools), "a buffer was not given back"


def interpreted(schedule: Schedule, data: list[torch.Tensor]) -> list[torch.Tensor]:
    """The schedule step by step on whole chunks of an all-reduce: what each rank holds at the end."""
    homes = layout_of(schedule, data[0].numel()).homes
    state = [[data[rank][h[rank].begin : h[rank].end].clone() for rank in range(schedule.size)] for h in homes]
    for sends in schedule.steps():
        moved = [(send, state[send.chunk][send.source].clone()) for send in sends]
        for send, value in moved:
            held = state[send.chunk]
            held[send.target] = held[send.target] + value if send.add else value
    return [torch.cat([chunk[rank] for chunk in state]) for rank in range(schedule.size)]


_SEEDS = st.integers(0, 2**32)
_DELIVERIES = ({"late": False}, {"late": True}, {"late": False, "in_order": True}, {"late": True, "in_order": True})


class Case:
    """Sizes that follow from a seed, mostly large ones: what goes wrong needs several ranks and pieces."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.size = self.draw.randint(2, 5)
        self.elements = self.draw.choice([0, 1, 3, 17, 40])
        self.how = self.draw.choice(_DELIVERIES)
        self.cut = {"pieces": self.draw.randint(1, 4), "depth": self.draw.randint(1, 4)}


@settings(max_examples=200)
@given(seed=_SEEDS)
def test_all_reduce_sums_in_the_schedules_order_to_the_bit(
    drawn: Drawn, network: Callable[..., Any], seed: int
) -> None:
    case = Case(seed)
    schedule = drawn(seed, Collective.all_reduce, case.size)
    torch.manual_seed(seed % 1000)
    data = [torch.randn(case.elements) for _ in range(case.size)]
    expected = interpreted(schedule, data)
    run_all(network(**case.how), schedule, data, [None] * case.size, **case.cut)
    assert all(torch.equal(a, b) for a, b in zip(data, expected, strict=True))
    if sums_alike(schedule):
        assert all(torch.equal(data[0], other) for other in data)


@pytest.mark.parametrize("apart", [0, 1])
def test_an_early_copy_waits_for_what_reads_the_old_state(
    made: Callable[..., Schedule], network: Callable[..., Any], apart: int
) -> None:
    """Rank 0 sends a part of the sum at step 2; the whole reaches it before that, `apart` steps later by the plan."""
    # Rank 1 has the whole after step 0; ranks 2 to 4 take theirs from the part that rank 0 sends.
    whole_at_1 = [(0, rank, 1, 0, True) for rank in (0, 2, 3, 4)]
    part = [(0, 1, 4, 0, True), (1, 2, 0, 0, True), (2, 0, 2, 0, False), (3, 3, 2, 0, True), (4, 4, 2, 0, True)]
    copies = [(2 + apart, 1, 0, 0, False), (5, 2, 3, 0, False), (5, 2, 4, 0, False)]
    chunk = [Chunk(origin=None, target=None, share=Fraction(1))]
    schedule = made("early", Collective.all_reduce, 5, chunk, [*whole_at_1, *part, *copies])
    tags = {(send.source, send.target): number for number, send in enumerate(schedule.sends)}
    early = (1, 0, tags[1, 0])
    late = (2, 0, tags[2, 0]) if apart == 0 else (0, 2, tags[0, 2])
    data = [torch.full((6,), 10.0**rank) for rank in range(5)]
    run_all(network(late=False, after={late: early}), schedule, data, [None] * 5, pieces=1, depth=1)
    assert all(torch.equal(own, torch.full((6,), 11111.0)) for own in data)


@given(seed=_SEEDS)
def test_all_gather_and_reduce_scatter(drawn: Drawn, network: Callable[..., Any], seed: int) -> None:
    case = Case(seed)
    size, elements = case.size, case.elements
    whole = torch.arange(elements)
    gather = drawn(seed, Collective.all_gather, size)
    blocks = [block_of(gather, rank, elements) for rank in range(size)]
    data = [torch.full((elements,), -1) for _ in range(size)]
    for own, block in zip(data, blocks, strict=True):
        own[block.begin : block.end] = whole[block.begin : block.end]
    run_all(network(**case.how), gather, data, [None] * size, **case.cut)
    assert all(torch.equal(own, whole) for own in data)

    scatter = drawn(seed, Collective.reduce_scatter, size)
    data = [whole * (rank + 1) for rank in range(size)]
    run_all(network(**case.how), scatter, data, [None] * size, **case.cut)
    for own, block in zip(data, blocks, strict=True):
        expected = whole[block.begin : block.end] * (size * (size + 1) // 2)
        assert torch.equal(own[block.begin : block.end], expected)


@given(seed=_SEEDS, even=st.booleans())
def test_all_to_all(drawn: Drawn, network: Callable[..., Any], seed: int, even: bool) -> None:
    case = Case(seed)
    size = case.size
    counts = None if even else [[case.draw.randint(0, 9) for _ in range(size)] for _ in range(size)]
    schedule = drawn(seed, Collective.all_to_all, size)
    layout = layout_of(schedule, case.elements, counts)
    data = [torch.arange(layout.data_elements[rank]) + 1000 * rank for rank in range(size)]
    results = [torch.full((layout.result_elements[rank],), -1) for rank in range(size)]
    sizes = counts or [[len(block_of_even(case.elements, size, to)) for to in range(size)]] * size
    parts = [torch.split(own, row) for own, row in zip(data, sizes, strict=True)]
    expected = [torch.cat([parts[source][rank] for source in range(size)]) for rank in range(size)]
    run_all(network(**case.how), schedule, data, results, counts=counts, **case.cut)
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def block_of_even(elements: int, size: int, rank: int) -> range:
    return range(round_half_up(elements * rank, size), round_half_up(elements * (rank + 1), size))


def round_half_up(number: int, by: int) -> int:
    return (2 * number + by) // (2 * by)


@settings(max_examples=25)
@given(seed=_SEEDS)
def test_what_one_rank_sends_another_receives_in_the_same_order(drawn: Drawn, seed: int) -> None:
    case = Case(seed)
    for kind in Collective:
        schedule = drawn(seed, kind, case.size)
        programs = [program_of(schedule, rank, case.elements, **case.cut) for rank in range(case.size)]
        for a in programs:
            for b in programs:
                sent = [(op.tag, op.wave, len(op.span)) for op in a.sends if op.peer == b.rank]
                got = [(op.tag, op.wave, len(op.span)) for op in b.receives if op.peer == a.rank]
                assert sent == got
                assert all(length > 0 for *_, length in sent)


def test_fewer_elements_than_pieces_or_ranks_leave_out_the_same_transfers(drawn: Drawn) -> None:
    schedule = drawn(5, Collective.all_gather, 5)
    programs = [program_of(schedule, rank, 2, pieces=4) for rank in range(5)]
    assert sum(len(program.sends) for program in programs) == sum(len(program.receives) for program in programs) == 8
    assert not any(program_of(schedule, rank, 0).sends for rank in range(5))


def test_one_exchange_at_once_gives_each_rank_a_sum_of_its_own(made: Callable[..., Schedule]) -> None:
    chunk = [Chunk(origin=None, target=None, share=Fraction(1))]

    def at_once(size: int) -> Schedule:
        sends = [(0, a, b, 0, True) for a in range(size) for b in range(size) if a != b]
        return made("at once", Collective.all_reduce, size, chunk, sends)

    assert sums_alike(at_once(2))  # a + b is b + a, to the bit
    assert not sums_alike(at_once(3))
    butterfly = [(step, rank, rank ^ (1 << step), 0, True) for step in range(2) for rank in range(4)]
    assert sums_alike(made("butterfly", Collective.all_reduce, 4, chunk, butterfly))


def test_the_fingerprint_tells_schedules_and_settings_apart(drawn: Drawn) -> None:
    one, other = drawn(1, Collective.all_reduce, 4), drawn(2, Collective.all_reduce, 4)
    assert fingerprint(one, 3) == fingerprint(drawn(1, Collective.all_reduce, 4), 3)
    assert len({fingerprint(one, 3), fingerprint(other, 3), fingerprint(one, 4)}) == 3


def test_nonsense_is_refused(drawn: Drawn) -> None:
    schedule = drawn(1, Collective.all_reduce, 3)
    for wrong in ({"pieces": 0}, {"depth": 0}):
        with pytest.raises(ValueError, match="rank 0 of 3"):
            program_of(schedule, 0, 5, **wrong)
    with pytest.raises(ValueError, match="rank 3 of 3"):
        program_of(schedule, 3, 5)


class _AtOnce:
    """A peer whose data is there before it is asked for; remembers what it was sent."""

    def __init__(self, values: dict[int, float]) -> None:
        self.values = values
        self.sent: dict[int, torch.Tensor] = {}

    def irecv(self, tensor: torch.Tensor, *, group: Any, group_src: int, tag: int) -> Any:
        tensor.fill_(self.values[tag])
        return SimpleNamespace(wait=lambda: None)

    def isend(self, tensor: torch.Tensor, *, group: Any, group_dst: int, tag: int) -> Any:
        self.sent[tag] = tensor.clone()
        return SimpleNamespace(wait=lambda: None)


def _pumped(peer: _AtOnce, sends: list[SendOp], receives: list[ReceiveOp]) -> torch.Tensor:
    data, pool = torch.ones(4), Pool()
    program = Program(
        rank=0,
        depth=2,
        data_elements=4,
        result_elements=0,
        relayed_elements=0,
        own=None,
        sends=tuple(sends),
        receives=tuple(receives),
    )
    with patch.object(pump, "dist", peer):
        pump.Pump(program, Spaces(program, data, None, pool), peer, pool).run()  # type: ignore[arg-type]
    return data


_SPAN = Span(space=Space.data, begin=0, end=4)


def test_what_arrives_at_once_does_not_reach_a_send_of_the_same_step() -> None:
    peer = _AtOnce({1: 7.0})
    send = SendOp(peer=1, tag=0, wave=0, span=_SPAN, needs=0, staged=True)
    receive = ReceiveOp(peer=1, tag=1, wave=0, span=_SPAN, add=False, needs=0, frees=0, shared=True)
    assert _pumped(peer, [send], [receive]).tolist() == [7.0] * 4
    assert peer.sent[0].tolist() == [1.0] * 4


def test_a_copy_that_arrives_before_a_sum_is_not_summed_into() -> None:
    first = ReceiveOp(peer=1, tag=1, wave=0, span=_SPAN, add=True, needs=0, frees=0, shared=False)
    second = ReceiveOp(peer=1, tag=2, wave=1, span=_SPAN, add=False, needs=1, frees=0, shared=False)
    assert _pumped(_AtOnce({1: 5.0, 2: 7.0}), [], [first, second]).tolist() == [7.0] * 4
