from __future__ import annotations

import pytest
import torch

from orchestrator.compress import error_feedback
from orchestrator.compress.clock import PHASES, Clock
from orchestrator.compress.error_feedback import Layout
from orchestrator.compress.exchange import Flat, Gather, Hierarchical, Split
from orchestrator.compress.hook import sparse_is_less
from orchestrator.compress.packets import seal, unseal
from orchestrator.planner.compression import CHUNK, Codec, Exchange, Pattern, Values, codec_of
from tests.unit.orchestrator.compress.meeting import InMemory, Meeting, together

CPU = torch.device("cpu")
INT8 = Codec(kept=42, values=Values.int8)
LAYOUT = Layout(names=("a", "b"), numels=(5 * CHUNK + 17, 100))


def hierarchy(rank: int, meetings: dict[str, list[Meeting]], island: int, codec: Codec) -> Hierarchical:
    at, place, clock = rank // island, rank % island, Clock(CPU)
    inside = InMemory(meetings["inside"][at], place)
    outside = InMemory(meetings["across"][place], at)
    across = Gather(outside, codec, clock) if outside.size == 2 else Split(outside, codec, clock)
    return Hierarchical(inside, inside, across, codec, clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ranks", "island"), [(4, 2), (6, 2), (6, 3), (2, 2)])
def test_hierarchy_says_the_same_on_all_ranks_and_loses_nothing(ranks: int, island: int) -> None:
    meetings = {
        "inside": [Meeting(island) for _ in range(ranks // island)],
        "across": [Meeting(ranks // island) for _ in range(island)],
    }

    def run(rank: int, _: InMemory) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        reducer = hierarchy(rank, meetings, island, INT8)
        state = error_feedback.init(LAYOUT, CPU, reducer)
        assert len(state.base) in (LAYOUT.num_chunks // island, LAYOUT.num_chunks // island + 1)
        total, told = torch.zeros(sum(LAYOUT.numels)), torch.zeros(sum(LAYOUT.numels))
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * rank + step)
            made = torch.randn(sum(LAYOUT.numels), generator=generator)
            gradients = dict(zip(LAYOUT.names, made.split(list(LAYOUT.numels)), strict=True))
            decoded, state = error_feedback.update(state, gradients, reducer)
            total += made
            told += torch.cat(list(decoded.values()))
        return total, told, torch.cat(list(error_feedback.state_dict(state, reducer).values()))

    found = together(ranks, run)
    assert all(torch.equal(each[1], found[0][1]) for each in found)
    owed, left = (sum(each[at].double() for each in found) for at in (0, 2))
    assert torch.allclose(owed, ranks * found[0][1].double() + left, atol=1e-4)


def test_owners_keep_what_the_second_selection_drops() -> None:
    """Two ranks, two chunks, of which each rank says two elements: the sum has four, of which two travel on."""
    codec, clock = Codec(kept=2, values=Values.fp32), Clock(CPU)
    layout = Layout(names=("w",), numels=(2 * CHUNK,))

    def run(rank: int, transport: InMemory) -> tuple[torch.Tensor, torch.Tensor]:
        reducer = Flat(Split(transport, codec, clock), codec, clock)
        gradient = torch.zeros(2, CHUNK)
        gradient[:, 10 * rank : 10 * rank + 3] = torch.tensor([8.0, 4.0, 1.0]) * (1 + rank)
        state = error_feedback.init(layout, CPU, reducer)
        decoded, state = error_feedback.update(state, {"w": gradient}, reducer)
        return decoded["w"].view(2, CHUNK), state.base

    (mean, first), (_, second) = together(2, run)
    for chunk, owner, other in ((0, first, second), (1, second, first)):
        assert mean[chunk].nonzero().view(-1).tolist() in ([0, 10], [10, 11])
        assert mean[chunk].sum() == 12
        assert owner[chunk].sum() + other[chunk].sum() == 3 * (8 + 4 + 1) - 2 * mean[chunk].sum()
        assert max(first[chunk].max(), second[chunk].max()) == 8
        assert other[chunk].max() <= 2
        assert owner[chunk].max() == 8


def test_messages_carry_packets_and_the_flag() -> None:
    packets = torch.randint(0, 256, (7, INT8.chunk_bytes), dtype=torch.uint8)
    for bad in (False, True):
        flat = seal(packets, (3, 0, 4), torch.tensor(bad), INT8)
        assert flat.numel() == sum(map(INT8.message_bytes, (3, 0, 4)))
        parts, found = unseal(flat, (3, 0, 4), INT8)
        assert torch.equal(torch.cat(parts), packets)
        assert bool(found) is bad


@pytest.mark.parametrize(("size", "kind"), [(2, Gather), (3, Gather), (2, Split), (5, Split)])
def test_bytes_sent_are_those_of_the_formula(size: int, kind: type) -> None:
    pattern = Pattern(exchange=Exchange.gather if kind is Gather else Exchange.split, ranks=size)

    def run(rank: int, transport: InMemory) -> tuple[int, int]:
        clock = Clock(CPU)
        reducer = Flat(kind(transport, INT8, clock), INT8, clock)
        state = error_feedback.init(LAYOUT, CPU, reducer)
        error_feedback.update(state, {"a": torch.randn(5 * CHUNK + 17), "b": torch.randn(100)}, reducer)
        assert set(clock.seconds()) == set(PHASES)
        assert all(clock.seconds()[name] > 0 for name in ("select", "encode", "wire", "decode"))
        return transport.sent_bytes, pattern.sent(INT8, LAYOUT.num_chunks, rank).total_bytes

    for sent, wanted in together(size, run):
        assert sent == wanted


@pytest.mark.parametrize(("size", "exchange"), [(2, Exchange.gather), (3, Exchange.gather), (3, Exchange.threshold)])
def test_refreshes_send_what_the_formula_says(size: int, exchange: Exchange) -> None:
    """Two ranks swap everything; of more each sums a part, and of what it selects nothing has to be found."""
    pattern = Pattern(exchange=exchange, ranks=size).whole
    kind = Gather if size == 2 else Split
    assert pattern.exchange is (Exchange.gather if size == 2 else Exchange.split)

    def run(rank: int, transport: InMemory) -> tuple[int, int]:
        clock = Clock(CPU)
        reducer = Flat(kind(transport, INT8.whole, clock), INT8.whole, clock)
        state = error_feedback.init(LAYOUT, CPU, reducer)
        made = {"a": torch.randn(5 * CHUNK + 17), "b": torch.randn(100)}
        decoded, state = error_feedback.update(state, made, reducer)
        assert float(decoded["a"].count_nonzero()) > 0.9 * decoded["a"].numel()
        assert state.base.abs().max() < 0.2 * made["a"].abs().max() * size  # half a step of seven, twice
        return transport.sent_bytes, pattern.sent(INT8.whole, LAYOUT.num_chunks, rank).total_bytes

    for sent, wanted in together(size, run):
        assert sent == wanted


def test_sparse_travels_only_where_it_is_less() -> None:
    one_percent = codec_of(0.01, Values.int8)
    assert sparse_is_less(Pattern(exchange=Exchange.split, ranks=4), one_percent, 10, 10 * CHUNK * 2)
    # A chunk for a parameter of ten elements.
    assert not sparse_is_less(Pattern(exchange=Exchange.split, ranks=4), one_percent, 1, 20)
    # Fill-in: what all others say is more than a dense sum.
    half = codec_of(0.5, Values.bf16)
    assert not sparse_is_less(Pattern(exchange=Exchange.gather, ranks=8), half, 10, 10 * CHUNK * 2)
    assert sparse_is_less(Pattern(exchange=Exchange.hierarchical, ranks=8, island=4), one_percent, 10, 10 * CHUNK * 2)
    # Without other islands there is nothing to compress.
    whole = Pattern(exchange=Exchange.hierarchical, ranks=4, island=4)
    assert not sparse_is_less(whole, one_percent, 10, 10 * CHUNK * 2)
