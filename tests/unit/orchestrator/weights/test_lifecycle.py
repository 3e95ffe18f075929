"""Lives of layers, one rule at a time."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UserError
from orchestrator.weights.lifecycle import activate, clear, demand, follow, is_whole, landed, missing, release, start
from orchestrator.weights.order import Order, sweeps
from orchestrator.weights.rules import Drain, Evict, Layer, Move, Phase, Rules, State, Transfer

KIB = 1024


def rules_of(
    layers: int,
    window: int | None,
    *,
    nbytes: int = 4,
    budget: int | None = None,
    window_bytes: int = 100,
    own: tuple[tuple[int, int], ...] = ((0, 1),),
    gathered: bool = True,
) -> Rules:
    slots = [None if window is None else i % window for i in range(layers)]
    return Rules(
        layers=tuple(Layer(nbytes=nbytes, own=own, gathered=gathered, slot=slot) for slot in slots),
        budget_bytes=budget if budget is not None else nbytes * (window or layers),
        gather_window_bytes=window_bytes,
        window_bytes=window_bytes,
        chunk_bytes=2,
    )


def land_all(state: State) -> State:
    for transfer in state.flying:
        state = landed(state, transfer)
    return state


def run(rules: Rules, state: State, uses: list[int]) -> tuple[list[int], State]:
    """Use layers one after the other; returns which were admitted, in order."""
    loads = []
    for layer in uses:
        before = state
        state, _ = demand(rules, state, layer)
        loads += [i for i, x in enumerate(state.layers) if _is_new(before, x, i)]
        state = land_all(state)
        before = state
        state, _ = activate(rules, state, layer)
        loads += [i for i, x in enumerate(state.layers) if _is_new(before, x, i)]
        state = release(state, layer)
    return loads, state


def _is_new(before: State, now: object, layer: int) -> bool:
    cold = before.layers[layer].phase is Phase.cold
    return cold and now.phase is not Phase.cold  # type: ignore[attr-defined]


def test_use_of_a_layer_from_cold_to_evictable() -> None:
    rules = rules_of(2, 2)
    state = start(rules, sweeps(2, backward=True), lookahead=1)
    state, actions = demand(rules, state, 0)
    # The own byte is copied before the gather of the chunk that holds it.
    assert [(a.move, a.begin, a.end, a.nbytes) for a in actions if isinstance(a, Transfer)] == [
        (Move.copy, 0, 2, 1),
        (Move.gather, 0, 2, 1),
        (Move.gather, 2, 4, 2),
    ]
    assert state.layers[0].phase is Phase.preloading
    with pytest.raises(UserError, match="before all its bytes"):
        activate(rules, state, 0)
    for transfer in missing(state, 0):
        assert not is_whole(rules, state, 0)
        state = landed(state, transfer)
    state, actions = activate(rules, state, 0)
    assert (state.layers[0].phase, state.layers[0].refcount, actions) == (Phase.active, 1, ())
    state, _ = activate(rules, state, 0)
    state = release(state, 0)
    assert state.layers[0].phase is Phase.active
    state = release(state, 0)
    assert state.layers[0].phase is Phase.evictable
    with pytest.raises(UserError, match="more often"):
        release(state, 0)


def test_a_layer_in_use_is_never_evicted() -> None:
    rules = rules_of(3, 1)
    state = start(rules, sweeps(3, backward=True), lookahead=1)
    state, _ = demand(rules, state, 0)
    state, _ = activate(rules, land_all(state), 0)
    with pytest.raises(UserError, match="in use"):
        demand(rules, state, 1)
    state, actions = demand(rules, release(state, 0), 1)
    assert actions[0] == Evict(layer=0)


def test_what_is_prefetched_for_later_gives_way_to_what_is_needed_now() -> None:
    rules = rules_of(4, 2)
    state = start(rules, sweeps(4, backward=False), lookahead=2)
    state, _ = demand(rules, state, 0)
    state, actions = activate(rules, land_all(state), 0)
    assert {a.layer for a in actions if isinstance(a, Transfer)} == {1}
    # Nobody expects layer 3 now; it shares a slot with layer 1, whose gathers are under way.
    state, actions = demand(rules, release(state, 0), 3)
    drained = actions[0]
    assert isinstance(drained, Drain)
    assert (drained.layer, len(drained.transfers)) == (1, 3)
    assert actions[1] == Evict(layer=1)
    assert {t.layer for t in state.flying} == {3}


def test_training_with_slots_fetches_each_layer_once_a_sweep_but_for_those_still_there() -> None:
    for layers, window in ((6, 1), (6, 2), (6, 3), (7, 3), (3, 3)):
        rules = rules_of(layers, window)
        order = sweeps(layers, backward=True)
        state = start(rules, order, lookahead=window)
        _, state = run(rules, state, list(order.uses))
        loads, _ = run(rules, state, list(order.uses))
        # A prefetch at the end of a step may belong to the next one; over a whole step the number is what counts.
        assert len(loads) == 2 * (layers - window), (layers, window)


def test_evaluation_does_not_fetch_what_is_there() -> None:
    rules = rules_of(4, 4)
    state = start(rules, sweeps(4, backward=False), lookahead=4)
    loads, state = run(rules, state, [0, 1, 2, 3])
    assert sorted(loads) == [0, 1, 2, 3]
    assert run(rules, state, [0, 1, 2, 3])[0] == []


@given(st.data())
def test_eviction_by_next_use_fetches_as_rarely_as_the_best_of_all_ways(data: st.DataObject) -> None:
    layers = data.draw(st.integers(2, 5))
    uses = data.draw(st.lists(st.integers(0, layers - 1), min_size=1, max_size=10))
    room = data.draw(st.integers(1, layers))
    rules = rules_of(layers, None, budget=4 * room)
    loads, _ = run(rules, start(rules, Order(uses=tuple(uses)), lookahead=1), uses)
    assert len(loads) == fewest_loads(tuple(uses), room)


@cache
def fewest_loads(uses: tuple[int, ...], room: int, held: frozenset[int] = frozenset()) -> int:
    """By trying every eviction."""
    if not uses:
        return 0
    first, rest = uses[0], uses[1:]
    if first in held:
        return fewest_loads(rest, room, held)
    if len(held) < room:
        return 1 + fewest_loads(rest, room, held | {first})
    return 1 + min(fewest_loads(rest, room, held - {victim} | {first}) for victim in held)


@given(st.data())
def test_prefetching_never_fetches_more_than_with_that_much_less_room(data: st.DataObject) -> None:
    layers = data.draw(st.integers(2, 5))
    uses = data.draw(st.lists(st.integers(0, layers - 1), min_size=1, max_size=9))
    room = data.draw(st.integers(2, layers))
    ahead = data.draw(st.integers(2, room))
    rules = rules_of(layers, None, budget=4 * room)
    loads, _ = run(rules, start(rules, Order(uses=tuple(uses)), lookahead=ahead), uses * 3)
    assert len(loads) <= fewest_loads(tuple(uses * 3), max(1, room - ahead + 1)) + ahead


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(-1, 7), st.integers(0, 4))
def test_distance_to_the_next_use(uses: list[int], position: int, layer: int) -> None:
    position = min(position, len(uses) - 1)
    order = Order(uses=tuple(uses))
    round_on = itertools.islice(itertools.cycle(uses), position + 1, position + 1 + len(uses))
    expected = next((step for step, used in enumerate(round_on, start=1) if used == layer), None)
    assert order.distance(layer, position) == expected
    ahead = list(order.ahead(position))
    assert sorted(ahead) == sorted(set(uses))
    assert ahead == sorted(ahead, key=lambda x: order.distance(x, position) or 0)


def test_copies_are_put_off_by_measurement_gathers_are_not() -> None:
    rules = rules_of(4, 2, own=((0, 1), (3, 4)))
    begun = demand(rules, start(rules, sweeps(4, backward=True), lookahead=2), 0)[0]
    eager = activate(rules, land_all(begun), 0)[1]
    deferred = activate(rules, land_all(begun), 0, defer_copies=True)[1]
    assert eager == deferred  # the copies that the gathers need are not put off
    local = rules_of(4, 2, own=((0, 4),), gathered=False)
    begun = demand(local, start(local, sweeps(4, backward=True), lookahead=2), 0)[0]
    assert len(activate(local, land_all(begun), 0)[1]) == 2
    assert activate(local, land_all(begun), 0, defer_copies=True)[1] == ()


def test_copies_run_ahead_of_gathers_with_what_the_window_leaves() -> None:
    rules = Rules(
        layers=tuple(Layer(nbytes=8, own=((2, 8),), gathered=True, slot=i) for i in range(2)),
        budget_bytes=16,
        gather_window_bytes=2,
        window_bytes=5,
        chunk_bytes=2,
    )
    state, _ = demand(rules, start(rules, sweeps(2, backward=True), lookahead=2), 0)
    state, actions = activate(rules, land_all(state), 0)
    moves = [(a.move, a.begin, a.end, a.nbytes) for a in actions if isinstance(a, Transfer)]
    assert moves == [(Move.gather, 0, 2, 2), (Move.copy, 2, 4, 2)]
    # The gather of a span that has been copied brings nothing here, but all ranks take part.
    state = release(state, 0)
    state, actions = demand(rules, state, 1)
    moves = [(a.move, a.begin, a.end, a.nbytes) for a in actions if isinstance(a, Transfer)]
    assert moves[0] == (Move.gather, 2, 4, 0)
    assert sum(nbytes for *_, nbytes in moves) == 4


def test_a_small_layer_does_not_take_the_room_of_one_that_is_needed_first() -> None:
    rules = Rules(
        layers=tuple(Layer(nbytes=nbytes, own=(), gathered=True) for nbytes in (4, 6, 1)),
        budget_bytes=8,
        gather_window_bytes=100,
        window_bytes=100,
        chunk_bytes=2,
    )
    state, _ = demand(rules, start(rules, sweeps(3, backward=False), lookahead=3), 0)
    state, actions = activate(rules, land_all(state), 0)
    assert actions == ()
    assert [layer.phase for layer in state.layers] == [Phase.active, Phase.cold, Phase.cold]


def test_order_and_slots_change_only_between_steps() -> None:
    rules = rules_of(3, 3)
    state, _ = demand(rules, start(rules, sweeps(3, backward=True), lookahead=2), 0)
    state, _ = activate(rules, land_all(state), 0)
    with pytest.raises(UserError, match="in use"):
        follow(state, sweeps(3, backward=False), 2)
    with pytest.raises(UserError, match="in use"):
        clear(state)
    state = release(state, 0)
    assert follow(state, sweeps(3, backward=False), 1).position == -1
    with pytest.raises(UserError, match="lookahead 0"):
        follow(state, sweeps(3, backward=False), 0)
    state, actions = clear(state)
    assert all(layer.phase is Phase.cold for layer in state.layers)
    assert not state.flying
    assert [type(a) for a in actions] == [Evict, Drain, Evict]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budget_bytes": 3}, "the largest layer takes 4 bytes, the budget is 3"),
        ({"budget_bytes": 7}, "the slots take 8 bytes, the budget is 7"),
        ({"gather_window_bytes": 1}, "2 bytes a chunk, 1 of gathers"),
        ({"window_bytes": 50}, "100 of gathers, 50 in all"),
        ({"layers": (Layer(nbytes=4, own=((0, 2),), gathered=False, slot=0),)}, "holds only a part"),
        ({"layers": (Layer(nbytes=4, own=((2, 5),), gathered=True, slot=0),)}, "own spans"),
        ({"layers": (Layer(nbytes=4, own=(), gathered=True), Layer(nbytes=4, own=(), gathered=True, slot=1))}, "some"),
    ],
)
def test_rules_that_cannot_hold_are_refused(change: dict[str, object], words: str) -> None:
    good = rules_of(2, 2)
    values = {name: getattr(good, name) for name in Rules.__dataclass_fields__}
    with pytest.raises(UserError, match=words):
        Rules(**{**values, **change})


def test_ranks_agree_on_everything_but_their_own_bytes() -> None:
    one, other = rules_of(3, 2, own=((0, 1),)), rules_of(3, 2, own=((1, 4),), window_bytes=100)
    assert one.agreement == other.agreement
    assert one.agreement != rules_of(3, 3).agreement


def test_a_start_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UserError) as told:
        start(rules_of(2, 2), Order(uses=(0, 5)), 0)
    assert len(told.value.problems) == 2
    with pytest.raises(UserError, match="no layer is used"):
        Order(uses=())
    transfer = Transfer(move=Move.copy, layer=0, begin=0, end=1, nbytes=1)
    with pytest.raises(UserError, match="not under way"):
        landed(start(rules_of(2, 2), sweeps(2, backward=True), 1), transfer)
