"""Which layers run forward a second time: all, none, or the first ones.

The first ones, not the last: the backward pass begins with the last layer, while everything that was kept is still
there. If that layer keeps its activations, nothing is added to them; recomputed, it would bring a whole layer's
activations on top. By the time the first layers are recomputed, what the later ones kept is gone.

A number of layers is enough where kinds of layers hardly differ in what a recomputed one saves for its time, since
both grow with the same widths: by this estimate layers with a window and without one are within 7% of each other
(gemma-3-1b, olmo-3-7b and exaone-4-32b, rows of 2,048 and 8,192 tokens). Dense layers of a model with experts count as
the others.
"""

from __future__ import annotations

from orchestrator.config import Checkpointing
from orchestrator.estimate.setting import Setting


def recomputed_layers(setting: Setting) -> int:
    """How many layers, from the first on, are recomputed."""
    if setting.checkpointing is Checkpointing.none:
        return 0
    layers = setting.model.layers
    return layers if setting.recomputed_layers is None else min(layers, setting.recomputed_layers)


def recomputed_share(setting: Setting) -> float:
    """The same as a share of all layers."""
    return recomputed_layers(setting) / setting.model.layers


def mode_text(mode: Checkpointing, recomputed: int | None, layers: int) -> str:
    """Name what is recomputed: `checkpointing full for 20 of 32 layers`.

    Args:
        mode: of the layers that are recomputed.
        recomputed: how many, from the first on; None for all.
        layers: of the model.
    """
    part = "" if recomputed is None or mode is Checkpointing.none else f" for {recomputed} of {layers} layers"
    return f"checkpointing {mode.value}{part}"
