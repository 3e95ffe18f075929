"""AdaLoRA while it trains: masks after each step, and the penalty that keeps its directions apart.

The masks set singular values to zero. Parameters, gradients and moments stay as many as at the start: no memory is
freed (`peft/tuners/adalora/layer.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from peft import AdaLoraModel
from peft.peft_model import PeftModel
from torch import nn
from transformers import TrainerCallback

from orchestrator.config import AdapterConfig, AdapterKind

_ADAPTER = "default"


class Allocator(TrainerCallback):  # type: ignore[misc]
    """Moves the masks between the optimizer's step and the end of its gradients."""

    def __init__(self, model: AdaLoraModel) -> None:
        """Take PEFT's model, which counts importance from gradients that are equal on all ranks."""
        self._model = model

    def on_optimizer_step(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        """Count the step that ends now. After a resume, importance is counted anew: it fades within a few steps."""
        step = state.global_step + 1
        config = self._model.peft_config[_ADAPTER]
        if step > config.total_step - config.tfinal and not config.rank_pattern:
            config.rank_pattern = present_masks(self._model)
        self._model.update_and_allocate(step)


def present_masks(model: nn.Module) -> dict[str, list[bool]]:
    """The masks as the singular values tell them, for a run that goes on behind the last change."""
    return {
        name: (parameter != 0).view(-1).tolist()
        for name, parameter in model.named_parameters()
        if f"lora_E.{_ADAPTER}" in name
    }


def allocators(adapter: AdapterConfig, model: PeftModel) -> list[TrainerCallback]:
    """Callbacks that a run with these adapters needs."""
    return [Allocator(model.base_model)] if adapter.kind is AdapterKind.adalora else []


def orthogonality(model: nn.Module) -> torch.Tensor | float:
    """Weighted mean distance of A's rows and B's columns from orthonormal ones; 0 for other adapters.

    PEFT adds it to the loss of a forward pass, which we do not take: our loss is made of log-probabilities.
    """
    config = getattr(model, "peft_config", {}).get(_ADAPTER)
    if config is None or not isinstance(getattr(model, "base_model", None), AdaLoraModel):
        return 0.0
    distances = []
    for name, parameter in model.named_parameters():
        if f"lora_A.{_ADAPTER}" in name or f"lora_B.{_ADAPTER}" in name:
            product = parameter @ parameter.T if "lora_A" in name else parameter.T @ parameter
            distances.append(torch.linalg.norm(product - torch.eye(len(product), device=product.device)))
    total: torch.Tensor = config.orth_reg_weight * torch.stack(distances).mean()
    return total
