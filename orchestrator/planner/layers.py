"""Recompute, offload or a smaller adapter: what each costs and saves in each group of layers that are alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.planner.plan import LayerTrade, Trade
from orchestrator.planner.trades import Trades
from orchestrator.workload.model import LinearShape, ModelShape, linears_of

_MOST_GROUPS = 4
_KINDS = ("recompute", "offload", "smaller adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """Layers that are alike; shares of all layers: what they keep for the backward pass, compute and hold."""

    name: str
    count: int
    kept: float
    held: float
    recomputed: bool


def layer_trades(model: ModelShape, trades: Trades) -> tuple[LayerTrade, ...]:
    """Share what the three kinds of change save and cost among the groups of layers, the best bargain of each first.

    Activations and adapters follow the widths of a layer's linear modules, time and stored bytes their weights. What
    recomputes a part of the layers is told for one of them, so groups that keep their activations share its price.
    """
    found = []
    for group in _groups(model, trades.recomputed):
        for trade in _bargains(trades):
            more = trades.layers.get(trade.change, 0)
            if more and group.recomputed:
                continue
            part = model.layers / more if more else 1.0
            found.append(
                LayerTrade(
                    layers=group.name,
                    count=group.count,
                    change=_for_any(trade.change) if more else trade.change,
                    saved_bytes=round(trade.saved_bytes * part * (group.held if _is_base(trade) else group.kept)),
                    time_percent=trade.time_percent * part * group.held,
                )
            )
    return tuple(found)


def _bargains(trades: Trades) -> Iterator[Trade]:
    """The best bargain of each kind; the trades stand in the order of their price."""
    left = list(_KINDS)
    for trade in trades.single:
        kind = next((word for word in left if word in trade.change.partition("(")[0]), None)
        if kind is not None and trade.saved_bytes > 0:
            left.remove(kind)
            yield trade


def _for_any(change: str) -> str:
    """`recompute (checkpointing=full checkpointing_layers=N)`."""
    mode = change.partition("(")[2].partition(" ")[0].rstrip(")")
    return f"recompute ({mode} checkpointing_layers=N)"


def _is_base(trade: Trade) -> bool:
    return "offload" in trade.change.partition("(")[0]


def _groups(model: ModelShape, recomputed: int) -> list[_Layers]:
    """Layers with the same linear modules; those that are recomputed already stand apart."""
    alike: dict[tuple[tuple[LinearShape, ...], bool], list[int]] = {}
    kinds = [(linears_of(group.parameters), group.layers) for group in model.groups]
    for linears, layers in kinds or [(model.linears, tuple(range(model.layers)))]:
        for layer in layers:
            alike.setdefault((linears, layer < recomputed), []).append(layer)
    kept = {key: len(at) * sum(x.in_features + x.out_features for x in key[0]) for key, at in alike.items()}
    held = {key: len(at) * sum(x.weights for x in key[0]) for key, at in alike.items()}
    groups = [
        _Layers(
            name=_named(sorted(at)),
            count=len(at),
            kept=kept[key] / sum(kept.values()),
            held=held[key] / sum(held.values()),
            recomputed=key[1],
        )
        for key, at in alike.items()
    ]
    return sorted(groups, key=lambda group: -group.count)[:_MOST_GROUPS]


def _named(layers: list[int]) -> str:
    """`0-79`, or `1, 3, 5, ...` where they do not follow each other."""
    if all(after == before + 1 for before, after in pairwise(layers)):
        return f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])
    shown = ", ".join(map(str, layers[:3]))
    return f"{shown}, ... {layers[-1]}"
