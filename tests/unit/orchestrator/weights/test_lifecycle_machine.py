"""Any number of ranks, any timing: what must hold after every event."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from orchestrator.weights.lifecycle import (
    activate,
    demand,
    follow,
    held_bytes,
    is_whole,
    landed,
    missing,
    release,
    start,
)
from orchestrator.weights.order import sweeps
from orchestrator.weights.rules import Action, Drain, Evict, Layer, Move, Phase, Rules, State, Transfer

CHUNK = 3


class Memory:
    """Carries out a rank's actions on bytes that know where they come from."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.held: dict[int, list[bool]] = {}
        self.flying: list[Transfer] = []
        self.gathers: list[tuple[int, int, int]] = []

    def carry_out(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, Evict):
                assert not any(t.layer == action.layer for t in self.flying), "evicted under a transfer"
                self.held.pop(action.layer, None)  # nothing may have been started yet
            elif isinstance(action, Drain):
                for transfer in action.transfers:
                    self.land(transfer)
            else:
                self.held.setdefault(action.layer, [False] * self.rules.layers[action.layer].nbytes)
                self._check_room()
                self.flying.append(action)
                if action.move is Move.gather:
                    self._check_own_bytes_started(action)
                    self.gathers.append((action.layer, action.begin, action.end))

    def land(self, transfer: Transfer) -> None:
        self.flying.remove(transfer)
        kind, held = self.rules.layers[transfer.layer], self.held[transfer.layer]
        came = 0
        for at in range(transfer.begin, transfer.end):
            if (kind.own_between(at, at + 1) == 1) == (transfer.move is Move.copy):
                assert not held[at], "brought twice"
                held[at] = True
                came += 1
        assert came == transfer.nbytes

    def _check_room(self) -> None:
        nbytes = [self.rules.layers[layer].nbytes for layer in self.held]
        assert sum(nbytes) <= self.rules.budget_bytes
        slots = [self.rules.layers[layer].slot for layer in self.held]
        assert len(set(slots)) == len(slots) or set(slots) == {None}, "two layers in a slot"

    def _check_own_bytes_started(self, gather: Transfer) -> None:
        kind, held = self.rules.layers[gather.layer], self.held[gather.layer]
        for at in range(gather.begin, gather.end):
            if kind.own_between(at, at + 1):
                under_way = any(
                    t.move is Move.copy and t.layer == gather.layer and t.begin <= at < t.end for t in self.flying
                )
                assert held[at] or under_way, "a gather would wait for a copy that nobody started"


@settings(max_examples=60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
class Life(RuleBasedStateMachine):
    """Ranks run the same program; each lands its transfers and puts off its copies as it likes."""

    used = Bundle("used")

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        layers, ranks = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
        sizes = [data.draw(st.integers(1, 8)) for _ in range(layers)]
        window = data.draw(st.one_of(st.none(), st.integers(1, layers)))
        slots = [None if window is None else i % window for i in range(layers)]
        cuts = [sorted(data.draw(st.integers(0, size)) for _ in range(ranks - 1)) for size in sizes]
        self.gather_bytes = data.draw(st.integers(CHUNK, 3 * CHUNK))
        extra = [data.draw(st.integers(0, CHUNK)) for _ in range(ranks)]
        least = max(sizes) if window is None else sum(max(sizes[s::window]) for s in range(window))
        budget = least + data.draw(st.integers(0, 6))
        self.rules: list[Rules] = []
        for rank in range(ranks):
            kinds = []
            for size, cut, slot in zip(sizes, cuts, slots, strict=True):
                edges = [0, *cut, size]
                span = (edges[rank], edges[rank + 1])
                kinds.append(
                    Layer(nbytes=size, own=(span,) if span[0] < span[1] else (), gathered=ranks > 1, slot=slot)
                )
            self.rules.append(
                Rules(
                    layers=tuple(kinds),
                    budget_bytes=budget,
                    gather_window_bytes=self.gather_bytes,
                    window_bytes=self.gather_bytes + extra[rank],
                    chunk_bytes=CHUNK,
                )
            )
        assert len({rules.agreement for rules in self.rules}) == 1
        self.order = sweeps(layers, backward=data.draw(st.booleans()))
        lookahead = data.draw(st.integers(1, 3))
        self.states: list[State] = [start(rules, self.order, lookahead) for rules in self.rules]
        self.memories = [Memory(rules) for rules in self.rules]
        self.in_use: list[int] = []
        self.at = -1

    @rule(data=st.data(), strays=st.booleans())
    def use_a_layer(self, data: st.DataObject, strays: bool) -> None:
        """Mostly the next in order; sometimes any other one."""
        for layer in self.in_use:
            self.states = [release(state, layer) for state in self.states]
        self.in_use = []
        self.at = (self.at + 1) % len(self.order.uses)
        layer = self.order.uses[self.at]
        if strays and data.draw(st.integers(0, 4)) == 0:
            layer = data.draw(st.integers(0, len(self.rules[0].layers) - 1))
        for rank, rules in enumerate(self.rules):
            # The largest layer fits and nothing is in use: this must always go.
            state, actions = demand(rules, self.states[rank], layer)
            self.memories[rank].carry_out(actions)
            for transfer in data.draw(st.permutations(missing(state, layer))):
                self.memories[rank].land(transfer)
                state = landed(state, transfer)
            assert is_whole(rules, state, layer)
            assert all(self.memories[rank].held[layer])
            state, actions = activate(rules, state, layer, defer_copies=data.draw(st.booleans()))
            self.memories[rank].carry_out(actions)
            started = sum(a.nbytes for a in actions if isinstance(a, Transfer))
            assert started <= max(CHUNK, rules.window_bytes)
            self.states[rank] = state
        self.in_use.append(layer)

    @rule(data=st.data())
    def use_another_at_once(self, data: st.DataObject) -> None:
        """The layer in use again, as in a recomputation."""
        if self.in_use:
            layer = self.in_use[0]
            for rank, rules in enumerate(self.rules):
                state, actions = demand(rules, self.states[rank], layer)
                assert actions == ()
                state, actions = activate(rules, state, layer, defer_copies=data.draw(st.booleans()))
                self.memories[rank].carry_out(actions)
                self.states[rank] = state
            self.in_use.append(layer)

    @rule(data=st.data())
    def something_lands_somewhere(self, data: st.DataObject) -> None:
        rank = data.draw(st.integers(0, len(self.rules) - 1))
        flying = sorted(self.states[rank].flying, key=repr)
        if flying:
            transfer = data.draw(st.sampled_from(flying))
            self.memories[rank].land(transfer)
            self.states[rank] = landed(self.states[rank], transfer)

    @rule(backward=st.booleans(), lookahead=st.integers(1, 4))
    def change_the_order(self, backward: bool, lookahead: int) -> None:
        for layer in self.in_use:
            self.states = [release(state, layer) for state in self.states]
        self.in_use, self.at = [], -1
        self.order = sweeps(len(self.rules[0].layers), backward=backward)
        self.states = [follow(state, self.order, lookahead) for state in self.states]

    @invariant()
    def every_rank_gathers_alike(self) -> None:
        if hasattr(self, "memories"):
            assert all(memory.gathers == self.memories[0].gathers for memory in self.memories)
            phases = [[layer.phase for layer in state.layers] for state in self.states]
            assert all(found == phases[0] for found in phases)

    @invariant()
    def the_state_tells_the_truth(self) -> None:
        for rules, state, memory in zip(*(getattr(self, x, []) for x in ("rules", "states", "memories")), strict=True):
            assert held_bytes(rules, state) <= rules.budget_bytes
            assert set(memory.flying) == state.flying
            for index, layer in enumerate(state.layers):
                assert (layer.phase is Phase.active) == (layer.refcount > 0)
                assert layer.refcount == self.in_use.count(index)
                if layer.phase in {Phase.active, Phase.evictable}:
                    assert is_whole(rules, state, index)
                    assert all(memory.held[index])
                if layer.phase is Phase.cold:
                    assert index not in memory.held


TestLife = Life.TestCase
