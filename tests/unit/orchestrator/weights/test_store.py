"""The store against the plain truth: whatever is used next, its bytes are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from orchestrator.errors import RunFailed
from orchestrator.weights import cut as cuts
from orchestrator.weights.cut import Cut, Tier
from orchestrator.weights.gather import Gather
from orchestrator.weights.layers import frozen_places
from orchestrator.weights.layout import BaseLayout, FrozenTensor, Role, extent_of
from orchestrator.weights.rules import Move, Phase, Transfer
from orchestrator.weights.shards import Shards
from orchestrator.weights.slots import Pace, counts_between, rules_of, streamed_layers
from orchestrator.weights.store import Store
from orchestrator.weights.stream import StreamedLayers
from orchestrator.weights.views import declare

CPU = torch.device("cpu")
UNIT = 64


def layout_of(units: Sequence[int]) -> BaseLayout:
    tensors = [FrozenTensor(name="w", role=Role.plain, dtype="uint8", shape=(UNIT * one,)) for one in units]
    return BaseLayout(extents=tuple(extent_of([tensor]) for tensor in tensors))


def contents(layer: int, nbytes: int) -> torch.Tensor:
    return torch.arange(nbytes, dtype=torch.int64).mul(7).add(31 * layer + 1).remainder(256).to(torch.uint8)


class Peers(Gather):
    """Stands in for the other ranks: sends what they hold of whatever span is gathered."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.announced: deque[torch.Tensor] = deque()
        self.sent: list[tuple[int, ...]] = []
        self.fails = False

    def run(self, memory: torch.Tensor, counts: Sequence[int]) -> None:
        if self.fails:
            raise RuntimeError("Connection closed by peer\nand more")
        self.sent.append(tuple(counts))
        truth = self.announced.popleft()
        begin = sum(counts[: self.rank])
        end = begin + counts[self.rank]
        assert torch.equal(memory[begin:end], truth[begin:end]), "this rank sends what it has not"
        memory[:begin] = truth[:begin]
        memory[end:] = truth[end:]

    def announce(self, store: Store) -> None:
        """Note which bytes of which layer each gather is for, in the order of their start."""
        start = store._start

        def noted(transfer: Transfer, ready: Any) -> None:
            if transfer.move is Move.gather:
                layer = store._streamed[transfer.layer]
                whole = contents(layer, store.layout.layer_bytes[layer])
                self.announced.append(whole[transfer.begin : transfer.end])
            start(transfer, ready)

        store._start = noted  # type: ignore[method-assign]

    def close(self) -> None:
        pass


def store_of(cut: Cut, layout: BaseLayout, rank: int, window: int, pace: Pace | None = None) -> tuple[Store, Peers]:
    peers = Peers(rank)
    gather = peers if cut.world_size > 1 else None
    store = Store(layout, cut, Shards(cut, rank, CPU), gather, window=window, pace=pace)
    peers.announce(store)
    for layer, nbytes in enumerate(layout.layer_bytes):
        store.write(layer, 0, contents(layer, nbytes))
    return store, peers


def assert_there(store: Store, layer: int) -> None:
    assert torch.equal(store.memory_of(layer), contents(layer, store.layout.layer_bytes[layer]))


memories = st.sampled_from([Tier.device, Tier.host])


@given(
    units=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    window=st.integers(1, 8),
    chunk_units=st.integers(1, 7),
    room=st.integers(0, 12),
    data=st.data(),
)
def test_whatever_is_used_is_there(
    units: list[int], window: int, chunk_units: int, room: int, data: st.DataObject
) -> None:
    layout = layout_of(units)
    weights = st.dictionaries(memories, st.integers(1, 5))
    shares = data.draw(st.lists(weights, min_size=1, max_size=3).filter(any))
    cut = cuts.cut_by_bytes(layout, shares, cuts.resident_layers(layout, room * UNIT))
    rank = data.draw(st.integers(0, len(shares) - 1))
    chunk = chunk_units * UNIT
    budget = data.draw(st.sampled_from([None, chunk, 3 * chunk]))
    pace = Pace(chunk_bytes=chunk, gather_window_bytes=budget, window_bytes=budget)
    store, _ = store_of(cut, layout, rank, window, pace)
    homes = [store.memory_of(layer).data_ptr() for layer in range(len(units))]
    forward = list(range(len(units)))
    for turn in data.draw(st.lists(st.sampled_from(["train", "evaluate", "odd", "defer"]), min_size=1, max_size=4)):
        store.begin_pass(backward=turn != "evaluate")
        store.defer_copies = lambda turn=turn: turn == "defer"  # type: ignore[misc]
        uses = forward if turn == "evaluate" else forward + forward[::-1]
        if turn == "odd":  # not what was announced: slower, and right all the same
            uses = data.draw(st.lists(st.sampled_from(forward), max_size=8))
        for layer in uses:
            store.use(layer)
            assert_there(store, layer)
    assert [store.memory_of(layer).data_ptr() for layer in range(len(units))] == homes
    assert sum(slot.numel() for slot in store.slots) <= window * UNIT * max(units)
    store.close()


def test_the_next_layers_are_on_their_way_and_a_turn_costs_nothing() -> None:
    layout = layout_of([4] * 6)
    store, _ = store_of(cuts.even_cut(layout, 2), layout, 0, 3)
    store.begin_pass(backward=True)
    for layer in range(6):
        store.use(layer)
        ahead = [at for at, one in enumerate(store.state.layers) if one.phase is not Phase.cold]
        assert set(range(layer, min(layer + 3, 6))) <= set(ahead)
    assert store.stats.gathers == 6
    for layer in reversed(range(6)):
        store.use(layer)
    # The last three were still there, and so are the first three for the next pass.
    assert store.stats.gathers == 9
    store.begin_pass(backward=True)
    for layer in range(3):
        store.use(layer)
    assert store.stats.gathers == 9 + 2  # the fourth and the fifth, ahead of time
    assert store.stats.uses == 15
    assert store.stats.gathered_bytes == 11 * 2 * UNIT
    store.close()


def test_all_ranks_gather_alike() -> None:
    layout = layout_of([5, 3, 4, 4])
    cut = cuts.cut_by_bytes(layout, [{Tier.device: 3}, {Tier.host: 1}, {}])
    sent = []
    for rank in range(3):
        store, peers = store_of(cut, layout, rank, 2, Pace(chunk_bytes=2 * UNIT))
        for _ in range(2):
            store.begin_pass(backward=True)
            for layer in (0, 1, 2, 3, 3, 2, 1, 0):
                store.use(layer)
        sent.append(peers.sent)
        store.close()
    assert sent[0] == sent[1] == sent[2]
    assert set(map(sum, sent[0])) == {UNIT, 2 * UNIT}


def test_another_window_between_steps() -> None:
    layout = layout_of([2, 1, 3, 1])
    store, _ = store_of(cuts.even_cut(layout, 1), layout, 0, 1)
    for window, size in ((1, 3), (2, 3 + 1), (9, 7), (1, 3)):
        store.resize(window)
        assert sum(slot.numel() for slot in store.slots) == size * UNIT
        store.begin_pass(backward=True)
        for layer in (0, 1, 2, 3, 3, 2, 1, 0):
            store.use(layer)
            assert_there(store, layer)
    store.close()


def test_slots_that_still_fit_are_used_again() -> None:
    layout = layout_of([2] * 4)
    store, _ = store_of(cuts.even_cut(layout, 1), layout, 0, 2)
    before = {slot.data_ptr() for slot in store.slots}
    store.resize(3)
    assert before < {slot.data_ptr() for slot in store.slots}
    store.resize(1)
    assert {slot.data_ptr() for slot in store.slots} < before
    store.close()


def test_a_gather_that_fails_ends_the_store() -> None:
    layout = layout_of([1, 1, 1])
    store, peers = store_of(cuts.even_cut(layout, 2), layout, 0, 1)
    store.use(0)
    peers.fails = True
    for _ in range(2):
        with pytest.raises(RunFailed, match="Connection closed by peer"):
            store.use(1)
    store.close()


def test_rules_follow_the_cut() -> None:
    layout = layout_of([4, 2, 2, 6, 8])
    cut = cuts.cut_by_bytes(layout, [{Tier.device: 1, Tier.host: 1}, {}, {Tier.device: 2}], residents=[1])
    assert streamed_layers(cut) == (0, 2, 3, 4)
    rules = rules_of(layout, cut, 0, 2)
    assert [layer.slot for layer in rules.layers] == [0, 1, 0, 1]
    assert rules.slot_bytes == (6 * UNIT, 8 * UNIT)
    assert rules.budget_bytes == 14 * UNIT
    assert [layer.own for layer in rules.layers] == [((0, n * UNIT),) for n in (2, 1, 3, 4)]
    assert all(not layer.own for layer in rules_of(layout, cut, 1, 2).layers)
    assert {rules_of(layout, cut, rank, 2).agreement for rank in range(3)} == {rules.agreement}
    assert counts_between((10, 0, 5, 20), 8, 17) == (2, 0, 5, 2)


class Block(nn.Module):
    """A layer with a frozen weight and an adapter; it may fail."""

    def __init__(self, at: int) -> None:
        super().__init__()
        torch.manual_seed(at)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.adapter = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + self.frozen(x).tanh() + self.adapter(x), None


def stack(*, streams: bool, window: int = 1) -> tuple[nn.ModuleList, StreamedLayers | None]:
    layers = nn.ModuleList(Block(at) for at in range(4))
    if not streams:
        return layers, None
    places = frozen_places(layers, layers)
    layout = BaseLayout(extents=tuple(declare(own) for own in places))
    cut = cuts.even_cut(layout, 1)
    store = Store(layout, cut, Shards(cut, 0, CPU), None, window=window)
    for at, layer in enumerate(layers):
        for (_, parameter), item in zip(layer.frozen.named_parameters(), layout.extents[at].items, strict=True):
            store.write(at, item.offset, parameter.data.reshape(-1).view(torch.uint8))
    return layers, StreamedLayers(layers, places, store)


def gradients(layers: nn.ModuleList, *, detaches: bool = False) -> list[torch.Tensor]:
    x = torch.ones(2, 8)
    for at, layer in enumerate(layers):
        x, _ = layer(x.detach() if detaches and at == 2 else x)
    x.square().sum().backward()
    found = [layer.adapter.weight.grad for layer in layers]
    layers.zero_grad()
    return [torch.zeros(0) if one is None else one for one in found]


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("detaches", [False, True])
def test_gradients_are_those_of_plain_layers(window: int, detaches: bool) -> None:
    plain, _ = stack(streams=False)
    layers, streamed = stack(streams=True, window=window)
    assert streamed is not None
    for _ in range(3):
        wanted, found = gradients(plain, detaches=detaches), gradients(layers, detaches=detaches)
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    seen: list[int] = []
    streamed.visit(lambda layer: seen.append(int(layer.frozen.weight.sum() * 1e6)))
    assert seen == [int(layer.frozen.weight.sum() * 1e6) for layer in plain]
    streamed.close()


def test_without_the_fetch_before_a_backward_pass_gradients_are_wrong() -> None:
    plain, _ = stack(streams=False)
    layers, streamed = stack(streams=True)
    assert streamed is not None
    streamed._gradient = lambda *_: None  # type: ignore[method-assign]
    for hook in streamed._hooks:
        hook.remove()
    for at, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda *_, at=at: streamed.store.use(at))  # type: ignore[misc]
    wanted, found = gradients(plain), gradients(layers)
    assert not all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    streamed.close()


def test_layers_that_nobody_calls_are_noticed() -> None:
    layers, streamed = stack(streams=True)
    assert streamed is not None

    def run() -> Any:
        x = layers[0](torch.ones(2, 8))[0]
        x = layers[1].forward(x)[0]
        return layers[3](layers[2](x)[0])[0]

    run()
    with pytest.raises(RunFailed, match=r"layers \[1\] were not seen"):
        run()
    streamed.close()
