"""What the life cycle of frozen layers obeys, and the values it consists of. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.errors import Problem, UserError
from orchestrator.weights.bandwidth import CHUNK_BYTES
from orchestrator.weights.order import Order

Span = tuple[int, int]  # begin and end in bytes


class Phase(StrEnum):
    """Where a layer is in its life."""

    cold = "cold"  # holds no device memory
    preloading = "preloading"  # holds its memory, bytes are on their way or all there, not used yet
    active = "active"  # used by a computation: refcount above 0
    evictable = "evictable"  # whole, not used now


class Move(StrEnum):
    """How bytes reach the memory of a layer."""

    gather = "gather"  # between ranks: all ranks must start it, in the same order
    copy = "copy"  # from this rank's own shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The frozen bytes of one decoder layer, as one rank sees them.

    Attributes:
        nbytes: all of its bytes.
        own: spans that this rank holds in its shard, ascending, apart from each other.
        gathered: some rank holds only a part, so that all ranks gather it (the same on every rank).
        slot: the only place the layer may be in; layers with the same slot take turns. None: anywhere in the budget.
    """

    nbytes: int
    own: tuple[Span, ...]
    gathered: bool
    slot: int | None = None

    def own_between(self, begin: int, end: int) -> int:
        """Bytes of this rank's shard within a span."""
        return sum(max(0, min(end, b) - max(begin, a)) for a, b in self.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What every decision rests on.

    Of these, only `Layer.own` and `window_bytes` may differ between ranks; neither has a say in gathers.

    Attributes:
        layers: all of them, by index.
        budget_bytes: device memory for all layers that are not cold.
        gather_window_bytes: bytes of gathers that may start in a compute window, by plan.
        window_bytes: bytes of all transfers that this rank may start in a compute window.
        chunk_bytes: size of one transfer.
    """

    layers: tuple[Layer, ...]
    budget_bytes: int
    gather_window_bytes: int
    window_bytes: int
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        """Check that every layer can be loaded.

        Raises:
            UserError: all that is wrong.
        """
        problems = list(_faults(self))
        if problems:
            raise UserError(*problems)

    @property
    def slot_bytes(self) -> tuple[int, ...]:
        """Bytes of each slot: those of its largest layer."""
        return tuple(self.slots.values())

    @property
    def slots(self) -> dict[int, int]:
        """Bytes of each slot by its number; empty without slots."""
        found: dict[int, int] = {}
        for layer in self.layers:
            if layer.slot is not None:
                found[layer.slot] = max(found.get(layer.slot, 0), layer.nbytes)
        return dict(sorted(found.items()))

    @property
    def agreement(self) -> str:
        """Hash of all that must be equal on every rank, lest gathers block each other."""
        common = [(layer.nbytes, layer.gathered, layer.slot) for layer in self.layers]
        text = repr((common, self.budget_bytes, self.gather_window_bytes, self.chunk_bytes))
        return hashlib.sha256(text.encode()).hexdigest()


def _faults(rules: Rules) -> Iterator[Problem]:
    largest = max((layer.nbytes for layer in rules.layers), default=0)
    slots = sum(rules.slot_bytes)
    if len({layer.slot is None for layer in rules.layers}) != 1:
        yield _problem("slots", "some layers have one and some have none", "Give every layer a slot, or none")
    if largest > rules.budget_bytes:
        found = f"the largest layer takes {largest} bytes, the budget is {rules.budget_bytes}"
        yield _problem("budget", found, "Give at least the largest layer's bytes")
    elif slots > rules.budget_bytes:
        found = f"the slots take {slots} bytes, the budget is {rules.budget_bytes}"
        yield _problem("budget", found, "Use fewer slots, or a larger budget")
    if rules.chunk_bytes < 1 or not rules.chunk_bytes <= rules.gather_window_bytes <= rules.window_bytes:
        found = (
            f"{rules.chunk_bytes} bytes a chunk, {rules.gather_window_bytes} of gathers, {rules.window_bytes} in all"
        )
        yield _problem(
            "bytes of a compute window", found, "One chunk must fit the gathers, and these must fit the rest"
        )
    for index, layer in enumerate(rules.layers):
        ends = [edge for span in layer.own for edge in span]
        if layer.nbytes < 0 or ends != sorted(ends) or (ends and not 0 <= ends[0] <= ends[-1] <= layer.nbytes):
            found = f"{layer.nbytes} bytes with own spans {layer.own}"
            yield _problem(f"layer {index}", found, "Spans must ascend within the layer's bytes")
        elif not layer.gathered and layer.own_between(0, layer.nbytes) != layer.nbytes:
            found = "it is not gathered, and this rank holds only a part of it"
            yield _problem(f"layer {index}", found, "Gather it, or give this rank the whole of it")


def _problem(what: str, found: str, remedy: str) -> Problem:
    return Problem(where=f"life cycle, {what}", found=found, remedy=f"{remedy}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Start to bring a span of a layer: its own part by a copy, the rest by a gather.

    Attributes:
        move: how.
        layer: its index.
        begin, end: the span. A gather is started by all ranks; a rank that holds all of the span only sends.
        nbytes: what lands in this rank's memory by it.
    """

    move: Move
    layer: int
    begin: int
    end: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Wait for transfers of a layer that is given up; they are not reported as landed."""

    layer: int
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """The memory of a layer is free for another."""

    layer: int


Action = Transfer | Drain | Evict


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """One layer now.

    Attributes:
        phase: where it is in its life.
        refcount: computations that use it.
        gathered_to: end of the span whose gathers have started.
        copied_to: every own byte before this has been started.
    """

    phase: Phase = Phase.cold
    refcount: int = 0
    gathered_to: int = 0
    copied_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All layers now.

    Attributes:
        layers: by index.
        flying: transfers that have started and not landed.
        order: how layers are used.
        position: place of the present use in the order; -1 before the first.
        lookahead: layers, the present one included, that are kept on the device ahead of their use.
    """

    layers: tuple[LayerState, ...]
    flying: frozenset[Transfer]
    order: Order
    position: int
    lookahead: int
