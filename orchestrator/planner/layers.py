"""Recompute, offload or a smaller adapter: what each costs and saves in each group of layers that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.planner.plan import LayerTrade, Trade
from orchestrator.workload.model import LinearShape, ModelShape, linears_of

_MOST_GROUPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """Layers that are alike; shares of all layers: what they keep for the backward pass, compute and hold."""

    name: str
    count: int
    kept: float
    held: float


def layer_trades(model: ModelShape, single: Sequence[Trade]) -> tuple[LayerTrade, ...]:
    """Share what the three kinds of change save and cost among the groups of layers, and name the cheapest in each.

    Activations and adapters follow the widths of a layer's linear modules, time and stored bytes their weights.
    """
    return tuple(
        LayerTrade(
            layers=group.name,
            count=group.count,
            change=trade.change,
            saved_bytes=round(trade.saved_bytes * (group.held if _is_base(trade) else group.kept)),
            time_percent=trade.time_percent * group.held,
        )
        for group in _groups(model)
        for trade in _three_kinds(single)
    )


def _three_kinds(single: Sequence[Trade]) -> Iterator[Trade]:
    """The best bargain of each kind; the trades stand in the order of their price."""
    for word in ("recompute", "offload", "smaller adapter"):
        found = [trade for trade in single if trade.saved_bytes > 0 and word in trade.change.partition("(")[0]]
        yield from found[:1]


def _is_base(trade: Trade) -> bool:
    return "offload" in trade.change.partition("(")[0]


def _groups(model: ModelShape) -> list[_Layers]:
    alike: dict[tuple[LinearShape, ...], list[int]] = {}
    for group in model.groups:
        alike.setdefault(linears_of(group.parameters), []).extend(group.layers)
    if not alike:
        alike = {model.linears: list(range(model.layers))}
    kept = {linears: len(at) * sum(x.in_features + x.out_features for x in linears) for linears, at in alike.items()}
    held = {linears: len(at) * sum(x.weights for x in linears) for linears, at in alike.items()}
    groups = [
        _Layers(
            name=_named(sorted(at)),
            count=len(at),
            kept=kept[linears] / sum(kept.values()),
            held=held[linears] / sum(held.values()),
        )
        for linears, at in alike.items()
    ]
    return sorted(groups, key=lambda group: -group.count)[:_MOST_GROUPS]


def _named(layers: list[int]) -> str:
    """`0-79`, or `1, 3, 5, ...` where they do not follow each other."""
    if all(after == before + 1 for before, after in pairwise(layers)):
        return f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])
    shown = ", ".join(map(str, layers[:3]))
    return f"{shown}, ... {layers[-1]}"
