"""The life of frozen layers on a device: cold -> preloading -> active -> evictable -> cold. Pure.

Every function takes a state and an event, and returns the next state with the actions that carry it out, in order.
A use of a layer is: `demand`, wait until `missing` has landed, `activate`, compute, `release`.

Two kinds of decisions are kept apart. Which layers are loaded and evicted, and which gathers start, follows from the
rules that all ranks share and from the program's own events: landings and measurements have no say, so every rank
starts the same gathers in the same order. Only copies of a rank's own bytes may be put off by what it measures, and
at the latest they start with the gather of the same span, which therefore never waits for a decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from orchestrator.errors import UserError
from orchestrator.weights.order import Order
from orchestrator.weights.room import held_bytes, problem, room_by_chance, room_by_force
from orchestrator.weights.rules import (
    Action,
    Drain,
    Evict,
    Layer,
    LayerState,
    Move,
    Phase,
    Rules,
    State,
    Transfer,
)

_COLD = LayerState()
Step = tuple[State, tuple[Action, ...]]
__all__ = ["activate", "clear", "demand", "follow", "held_bytes", "is_whole", "landed", "missing", "release", "start"]


def start(rules: Rules, order: Order, lookahead: int) -> State:
    """All layers cold.

    Raises:
        UserError: the order names layers that do not exist, or the lookahead is below 1.
    """
    strangers = sorted(layer for layer in set(order.uses) if not 0 <= layer < len(rules.layers))
    problems = []
    if strangers:
        problems.append(problem(f"the order uses layers {strangers} of {len(rules.layers)}", "Give existing layers."))
    if lookahead < 1:
        problems.append(problem(f"lookahead {lookahead}", "Use 1 or more layers."))
    if problems:
        raise UserError(*problems)
    layers = (_COLD,) * len(rules.layers)
    return State(layers=layers, flying=frozenset(), order=order, position=-1, lookahead=lookahead)


def demand(rules: Rules, state: State, layer: int) -> Step:
    """The program is about to use a layer: start all that is left of it, budget or not, since it waits anyway.

    Raises:
        UserError: layers in use leave no room for it.
    """
    state = replace(state, position=state.order.place(layer, state.position))
    actions: list[Action] = []
    if state.layers[layer].phase is Phase.cold:
        state = _admit(state, layer, room_by_force(rules, state, layer), actions)
    return _begin(rules, state, layer, rules.layers[layer].nbytes, actions), tuple(actions)


def missing(state: State, layer: int) -> tuple[Transfer, ...]:
    """Transfers that must land before the layer can be used."""
    return tuple(transfer for transfer in state.flying if transfer.layer == layer)


def is_whole(rules: Rules, state: State, layer: int) -> bool:
    """Whether all bytes of a layer are on the device."""
    now, kind = state.layers[layer], rules.layers[layer]
    has_begun = now.phase is not Phase.cold and (now.gathered_to if kind.gathered else now.copied_to) == kind.nbytes
    return has_begun and not missing(state, layer)


def activate(rules: Rules, state: State, layer: int, *, defer_copies: bool = False) -> Step:
    """A computation on a layer begins: fetch what comes next, within what a compute window may start.

    Args:
        rules: all ranks' but for their own bytes.
        state: in which the layer is whole.
        layer: its index.
        defer_copies: measured on this rank: the link or the memory has no room for copies ahead of time.

    Raises:
        UserError: bytes of the layer are missing.
    """
    if not is_whole(rules, state, layer):
        raise UserError(problem(f"layer {layer} is used before all its bytes are there", "Wait for `missing`."))
    now = state.layers[layer]
    state = _with(state, layer, replace(now, phase=Phase.active, refcount=now.refcount + 1))
    actions: list[Action] = []
    state = _prefetch(rules, state, actions)
    if not defer_copies:
        state = _copy_ahead(rules, state, actions)
    return state, tuple(actions)


def landed(state: State, transfer: Transfer) -> State:
    """A transfer has ended on this rank.

    Raises:
        UserError: it is not under way.
    """
    if transfer not in state.flying:
        raise UserError(problem(f"{transfer} landed, but is not under way", "Report each transfer once."))
    return replace(state, flying=state.flying - {transfer})


def release(state: State, layer: int) -> State:
    """A computation on a layer has ended.

    Raises:
        UserError: none was running.
    """
    now = state.layers[layer]
    if now.refcount < 1:
        raise UserError(problem(f"layer {layer} is released more often than used", "Release each use once."))
    phase = Phase.active if now.refcount > 1 else Phase.evictable
    return _with(state, layer, replace(now, phase=phase, refcount=now.refcount - 1))


def follow(state: State, order: Order, lookahead: int) -> State:
    """Another order or lookahead from here on, at a step boundary and on all ranks alike.

    Raises:
        UserError: a layer is in use, or the lookahead is below 1.
    """
    used = [index for index, layer in enumerate(state.layers) if layer.refcount]
    if used or lookahead < 1:
        found = f"layers {used} are in use" if used else f"lookahead {lookahead}"
        raise UserError(problem(f"{found} at a change of the order", "Change it between steps, to 1 or more layers."))
    return replace(state, order=order, position=-1, lookahead=lookahead)


def clear(state: State) -> Step:
    """Give up all layers, as before slots are dealt anew.

    Raises:
        UserError: a layer is in use.
    """
    if any(layer.refcount for layer in state.layers):
        raise UserError(problem("a layer is in use when all are given up", "Do it between steps."))
    held = [index for index, layer in enumerate(state.layers) if layer.phase is not Phase.cold]
    actions: list[Action] = []
    return _give_up(state, held, actions), tuple(actions)


def _admit(state: State, layer: int, victims: list[int], actions: list[Action]) -> State:
    state = _give_up(state, victims, actions)
    return _with(state, layer, LayerState(phase=Phase.preloading))


def _give_up(state: State, layers: Iterable[int], actions: list[Action]) -> State:
    for layer in layers:
        flying = sorted((t for t in state.flying if t.layer == layer), key=lambda t: (t.begin, t.move))
        if flying:
            actions.append(Drain(layer=layer, transfers=tuple(flying)))
            state = replace(state, flying=state.flying - set(flying))
        actions.append(Evict(layer=layer))
        state = _with(state, layer, _COLD)
    return state


# Transfers.


def _upcoming(state: State) -> Iterator[int]:
    """Layers to have ready besides the one in use, nearest use first."""
    ahead = (layer for layer in state.order.ahead(state.position) if state.layers[layer].phase is not Phase.active)
    for layer, _ in zip(ahead, range(state.lookahead - 1), strict=False):
        yield layer


def _prefetch(rules: Rules, state: State, actions: list[Action]) -> State:
    """Admit upcoming layers and start their gathers, as far as the planned bytes of a window go."""
    left = rules.gather_window_bytes
    for layer in _upcoming(state):
        if state.layers[layer].phase is Phase.cold:
            victims = room_by_chance(rules, state, layer)
            if victims is None:
                break  # a later layer must not take the room first
            state = _admit(state, layer, victims, actions)
        kind = rules.layers[layer]
        while kind.gathered and state.layers[layer].gathered_to < kind.nbytes:
            begin = state.layers[layer].gathered_to
            end = min(begin + rules.chunk_bytes, kind.nbytes)
            if end - begin > left:
                return state
            left -= end - begin
            state = _begin(rules, state, layer, end, actions)
    return state


def _copy_ahead(rules: Rules, state: State, actions: list[Action]) -> State:
    """Start copies of this rank's own bytes with what the gathers leave of the window."""
    left = rules.window_bytes - sum(action.nbytes for action in actions if isinstance(action, Transfer))
    for layer in _upcoming(state):
        now, kind = state.layers[layer], rules.layers[layer]
        if now.phase is not Phase.preloading:
            continue
        while now.copied_to < kind.nbytes:
            end = min(now.copied_to + rules.chunk_bytes, kind.nbytes)
            own = kind.own_between(now.copied_to, end)
            if own > left:
                return state
            left -= own
            state = _copy(state, layer, kind, end, actions)
            now = state.layers[layer]
    return state


def _begin(rules: Rules, state: State, layer: int, end: int, actions: list[Action]) -> State:
    """Start all that is left of a layer before `end`; own bytes first, since others may wait for them."""
    kind = rules.layers[layer]
    if not kind.gathered:
        return _begin_copies(rules, state, layer, end, actions)
    while (begin := state.layers[layer].gathered_to) < end:
        until = min(begin + rules.chunk_bytes, kind.nbytes)
        state = _copy(state, layer, kind, until, actions)
        nbytes = until - begin - kind.own_between(begin, until)
        gather = Transfer(move=Move.gather, layer=layer, begin=begin, end=until, nbytes=nbytes)
        actions.append(gather)
        state = _with(replace(state, flying=state.flying | {gather}), layer, gathered_to=until)
    return state


def _begin_copies(rules: Rules, state: State, layer: int, end: int, actions: list[Action]) -> State:
    while (begin := state.layers[layer].copied_to) < end:
        until = min(begin + rules.chunk_bytes, end)
        state = _copy(state, layer, rules.layers[layer], until, actions)
    return state


def _copy(state: State, layer: int, kind: Layer, end: int, actions: list[Action]) -> State:
    begin = state.layers[layer].copied_to
    if end <= begin:
        return state
    own = kind.own_between(begin, end)
    state = _with(state, layer, replace(state.layers[layer], copied_to=end))
    if not own:
        return state
    copy = Transfer(move=Move.copy, layer=layer, begin=begin, end=end, nbytes=own)
    actions.append(copy)
    return replace(state, flying=state.flying | {copy})


def _with(state: State, layer: int, now: LayerState | None = None, gathered_to: int | None = None) -> State:
    value = state.layers[layer] if now is None else now
    if gathered_to is not None:
        value = replace(value, gathered_to=gathered_to)
    return replace(state, layers=(*state.layers[:layer], value, *state.layers[layer + 1 :]))
