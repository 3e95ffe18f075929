"""AdaLoRA while it trains: masks after each step, and the penalty that keeps its directions apart.

The masks set singular values to zero. Parameters, gradients and moments stay as many as at the start: no memory is
freed (`peft/tuners/adalora/layer.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from peft import AdaLoraConfig, AdaLoraModel
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

    def on_pre_optimizer_step(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        """Read the masks of a run that goes on behind the last change, while singular values are as they were saved."""
        config = self._model.peft_config[_ADAPTER]
        if state.global_step + 1 > _last_change(config) and not config.rank_pattern:
            config.rank_pattern = present_masks(self._model.model)  # named as PEFT looks them up

    def on_optimizer_step(self, args: object, state: Any, control: object, **_: object) -> None:  # noqa: ANN401
        """Count the step that ends now. After a resume, importance is counted anew: it fades within a few steps."""
        step = state.global_step + 1
        last, allocator = _last_change(self._model.peft_config[_ADAPTER]), self._model.rankallocator
        if allocator.init_bgt <= allocator.target_bgt:
            return  # it starts with the ranks that it ends with; PEFT would look for the 0th smallest importance
        if step <= last and not _is_finite(self._model):
            # fp16 skips such a step. Importance is a running mean, which would be no number from here on.
            if step < last or not allocator.exp_avg_ipt:
                return
        elif step == last and not allocator.exp_avg_ipt:  # the first step after a resume
            allocator.update_ipt(self._model.model)
        self._model.update_and_allocate(step)


def _last_change(config: AdaLoraConfig) -> int:
    """The step after which masks stay as they are."""
    return int(config.total_step - config.tfinal)


def _is_finite(model: nn.Module) -> bool:
    """Whether all gradients are numbers: the same on all ranks, as they have been summed."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return not gradients or bool(torch.stack([gradient.isfinite().all() for gradient in gradients]).all())


def present_masks(model: nn.Module) -> dict[str, list[bool]]:
    """The masks as the singular values tell them."""
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
