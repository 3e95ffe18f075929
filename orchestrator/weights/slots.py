"""Which layer comes to lie in which slot, and the rules of the life cycle that follow from a cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.weights.bandwidth import CHUNK_BYTES
from orchestrator.weights.cut import Cut
from orchestrator.weights.layout import BaseLayout
from orchestrator.weights.rules import Layer, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What may be fetched while one layer computes; None: as much as the window holds.

    Attributes:
        chunk_bytes: size of one transfer.
        gather_window_bytes: of gathers between ranks, by plan: the same on all ranks.
        window_bytes: of all transfers of this rank.
    """

    chunk_bytes: int = CHUNK_BYTES
    gather_window_bytes: int | None = None
    window_bytes: int | None = None


def streamed_layers(cut: Cut) -> tuple[int, ...]:
    """Layers that are fetched, in order; the rules count these only."""
    return tuple(layer for layer in range(len(cut.layers)) if layer not in cut.residents)


def rules_of(layout: BaseLayout, cut: Cut, rank: int, window: int, pace: Pace | None = None) -> Rules:
    """Return the rules for the streamed layers under `window` slots.

    The i-th of them always lies in slot i modulo the window: a layer never moves, since autograd keeps its addresses.
    """
    pace = pace or Pace()
    layers = []
    for at, layer in enumerate(streamed_layers(cut)):
        pieces = [piece for piece in cut.layers[layer] if piece.rank == rank]
        own = ((pieces[0].begin, pieces[-1].end),) if pieces else ()
        nbytes = layout.layer_bytes[layer]
        layers.append(Layer(nbytes=nbytes, own=own, gathered=cut.world_size > 1, slot=at % window))
    budget = sum(max(one.nbytes for one in layers[at::window]) for at in range(min(window, len(layers))))
    most = max(budget, pace.chunk_bytes)
    gathers = most if pace.gather_window_bytes is None else pace.gather_window_bytes
    everything = max(most, gathers) if pace.window_bytes is None else pace.window_bytes
    return Rules(
        layers=tuple(layers),
        budget_bytes=budget,
        gather_window_bytes=gathers,
        window_bytes=everything,
        chunk_bytes=pace.chunk_bytes,
    )


def counts_between(counts: Sequence[int], begin: int, end: int) -> tuple[int, ...]:
    """Bytes of each rank's block within [begin, end) of a layer that consists of these blocks."""
    found, at = [], 0
    for count in counts:
        found.append(max(0, min(end, at + count) - max(begin, at)))
        at += count
    return tuple(found)
