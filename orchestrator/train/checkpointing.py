"""Activation checkpointing as planned: full, selective or none, of all layers or of the first ones."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import torch
from bitsandbytes.nn import Linear8bitLt
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers.modeling_layers import GradientCheckpointingLayer

from orchestrator.errors import Problem, UserError
from orchestrator.train.settings import TrainSettings

_MATRIX_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def enable_checkpointing(model: nn.Module, settings: TrainSettings, rank: int | AbstractSet[int]) -> None:
    """Switch on what the plan says; `rank` is that of the adapters, or all of theirs, a set that may change.

    `selective` keeps the rank-wide results of the adapters' first products and recomputes the
    frozen part; it needs the non-reentrant implementation. ZeRO-3 with frozen parameters needs the
    reentrant one (its hooks release a parameter before the recomputation is checked), and so do
    bitsandbytes' 8-bit layers: they keep their inputs where the other one does not see them
    (bitsandbytes/autograd/_functions.py, `ctx.A`), so that nothing would be saved.
    """
    if settings.checkpointing == "none":
        return
    hides_inputs = settings.checkpointing == "full" and any(isinstance(x, Linear8bitLt) for x in model.modules())
    kwargs: dict[str, Any] = {"use_reentrant": settings.is_zero3 or hides_inputs}
    if settings.checkpointing == "selective":
        ranks = frozenset({rank}) if isinstance(rank, int) else rank
        policy = partial(_keep_adapter_products, ranks)
        kwargs["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
    target: Any = model
    target.activation_checkpointing_enable(activation_checkpointing_kwargs=kwargs)
    # Inputs of the first layer need a gradient, or a reentrant checkpoint drops the graph.
    target.enable_input_require_grads()
    if settings.recomputed_layers is not None:
        _keep_from(model, settings.recomputed_layers)


def _keep_from(model: nn.Module, recomputed: int) -> None:
    """Let all layers but the first `recomputed` keep their activations.

    transformers gives every layer a switch of its own (modeling_layers.py, GradientCheckpointingLayer), and
    `activation_checkpointing_enable` turns all of them on.

    Raises:
        UserError: the model's code has fewer such layers.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if len(layers) < recomputed:
        raise UserError(
            Problem(
                where="checkpointing_layers",
                found=f"{recomputed} layers are to be recomputed, and the model's code has {len(layers)} that can be "
                "recomputed one by one",
                remedy="Use checkpointing_layers=auto with checkpointing=full or none.",
            )
        )
    for layer in layers[recomputed:]:
        layer.gradient_checkpointing = False


def _keep_adapter_products(
    ranks: AbstractSet[int],
    _context: object,
    operator: Callable[..., Any],
    *args: object,
    **_kwargs: object,
) -> CheckpointPolicy:
    """Save a matrix product whose result is as wide as a rank: that is an adapter's first half."""
    if operator in _MATRIX_PRODUCTS:
        right = args[-1]
        if isinstance(right, torch.Tensor) and right.shape[-1] in ranks:
            return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
