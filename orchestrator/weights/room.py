"""Whom to evict: by next use, since the order of uses is known (Belady's rule). Pure.

Of the layers on the device, the one whose next use is farthest away must go; with the same room, no other choice
fetches less. The least recently used layer would be the wrong one in sweeps.
"""

from __future__ import annotations

from orchestrator.errors import Problem, UserError
from orchestrator.weights.rules import Phase, Rules, State

_NEVER = 2**62  # the distance of a use that does not come


def held_bytes(rules: Rules, state: State) -> int:
    """Device memory of all layers that are not cold."""
    return sum(rules.layers[i].nbytes for i, layer in enumerate(state.layers) if layer.phase is not Phase.cold)


def _distance(state: State, layer: int) -> int:
    found = state.order.distance(layer, state.position)
    return _NEVER if found is None else found


def _rivals(rules: Rules, state: State, layer: int) -> list[int]:
    """Layers on the device that the layer shares room with, latest next use first."""
    slot = rules.layers[layer].slot
    held = [i for i, now in enumerate(state.layers) if now.phase is not Phase.cold and rules.layers[i].slot == slot]
    return sorted(held, key=lambda i: (-_distance(state, i), i))


def _lack(rules: Rules, state: State, layer: int) -> int:
    """Bytes that must be freed; whoever else is in a layer's slot must go."""
    kind = rules.layers[layer]
    if kind.slot is not None:
        return sum(rules.layers[i].nbytes for i in _rivals(rules, state, layer))
    return held_bytes(rules, state) + kind.nbytes - rules.budget_bytes


def room_by_force(rules: Rules, state: State, layer: int) -> list[int]:
    """Whom to evict for a layer that is needed now: first what has been used, then what is loading for later."""
    lack = _lack(rules, state, layer)
    victims = []
    rivals = _rivals(rules, state, layer)
    for phase in (Phase.evictable, Phase.preloading):
        for rival in rivals:
            if lack > 0 and state.layers[rival].phase is phase:
                victims.append(rival)
                lack -= rules.layers[rival].nbytes
    if lack > 0:
        used = [index for index, now in enumerate(state.layers) if now.phase is Phase.active]
        found = f"layer {layer} has no room beside layers {used}, which are in use"
        raise UserError(problem(found, "Raise the budget, or use more slots."))
    return victims


def room_by_chance(rules: Rules, state: State, layer: int) -> list[int] | None:
    """Whom to evict for a layer that is needed later; None while that would cost more than it brings.

    The layer with the latest next use must go, and only if it is needed after the new one. While it is in use
    itself, waiting is better than evicting one that is needed earlier.
    """
    lack = _lack(rules, state, layer)
    victims: list[int] = []
    for rival in _rivals(rules, state, layer):
        if lack <= 0:
            break
        is_later = _distance(state, rival) > _distance(state, layer)
        if state.layers[rival].phase is not Phase.evictable or not is_later:
            return None
        victims.append(rival)
        lack -= rules.layers[rival].nbytes
    return victims if lack <= 0 else None


def problem(found: str, remedy: str) -> Problem:
    """Something that the life cycle cannot do."""
    return Problem(where="life cycle of layers", found=found, remedy=remedy)
