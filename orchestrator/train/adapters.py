"""Adapters on a base, by PEFT: which config they get, and what they start from."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import torch
from peft import AdaLoraConfig, LoraConfig, get_peft_model
from peft.peft_model import PeftModel
from peft.utils.other import ModulesToSaveWrapper
from torch import nn
from transformers import PreTrainedModel

from orchestrator.config import AdapterConfig, AdapterKind
from orchestrator.workload.adapter import first_rank_of_adalora
from orchestrator.workload.adapter_names import Pairs, number_for
from orchestrator.workload.parameters import TUPLE_ROUTERS

__all__ = ["add_adapters", "cast_outputs", "product_widths"]

# Of AdaLoRA's steps: as many warm up at the full rank, and as many tune at the final one, as in the paper's experiments
# on language models (Zhang et al. 2023, arXiv 2303.10512, appendix: about 10% and 30% of the steps).
_ADALORA_WARMUP = 0.1
_ADALORA_FINAL = 0.3
_ADALORA_UPDATES = 100  # changes of the masks between the two


def add_adapters(base: PreTrainedModel, adapter: AdapterConfig, seed: int, num_steps: int = 0) -> PeftModel:
    """Put adapters on the base, initialised from the seed alone (equal on every rank).

    Args:
        base: frozen.
        adapter: which ones.
        seed: of the random numbers.
        num_steps: optimizer steps of the run, which AdaLoRA's schedule needs.
    """
    config = adapter_config(base, adapter, num_steps)
    devices = [base.device.index] if base.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        model = get_peft_model(base, config)
    if not isinstance(model, PeftModel):
        raise TypeError(f"PEFT returned {type(model).__name__} instead of a PeftModel")
    return model


def adapter_config(base: PreTrainedModel, adapter: AdapterConfig, num_steps: int) -> LoraConfig:
    """Return PEFT's config; ranks and alphas by pattern are resolved there, with the rules that the plan counted by."""
    all_linear = adapter.targets == ("all-linear",)
    # A router that returns a tuple is no linear layer to wrap, though its class inherits from one.
    routers = [name for name, module in base.named_modules() if type(module).__name__ in TUPLE_ROUTERS]
    shared: dict[str, Any] = {
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": "all-linear" if all_linear else list(adapter.targets),
        "exclude_modules": routers if all_linear and routers else None,
        "modules_to_save": list(adapter.saved_modules) or None,
        "task_type": "CAUSAL_LM",
        "bias": "none",
    }
    rank = adapter.settled_rank
    if adapter.kind is AdapterKind.adalora:
        return AdaLoraConfig(
            init_r=first_rank_of_adalora(rank) if adapter.init_rank is None else adapter.init_rank,
            target_r=rank,
            **adalora_schedule(num_steps),
            **shared,
        )
    return LoraConfig(
        r=rank,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        rank_pattern={name: round(number) for name, number in _in_order(base, adapter.rank_pattern).items()},
        alpha_pattern=_in_order(base, adapter.alpha_pattern),
        **shared,
    )


def _in_order(base: nn.Module, pairs: Pairs) -> dict[str, float]:
    """Patterns as PEFT's config takes them, which is saved sorted by name, and of which the first that matches counts.

    Where another order means other numbers, every module is named by its own.
    """
    ordered = tuple(sorted(pairs))
    names = [name for name, _ in base.named_modules() if name]
    wanted = {name: number_for(name, pairs, 0) for name in names}
    if all(number_for(name, ordered, 0) == number for name, number in wanted.items()):
        return dict(ordered)
    return {re.escape(name): number for name, number in wanted.items() if number}


def adalora_schedule(num_steps: int) -> dict[str, int]:
    """Steps at the full rank, at the final rank, and between two changes of the masks, for so many steps."""
    first, last = math.floor(_ADALORA_WARMUP * num_steps), math.floor(_ADALORA_FINAL * num_steps)
    between = max(1, num_steps - first - last)
    return {
        "tinit": first,
        "tfinal": last,
        "deltaT": max(1, between // _ADALORA_UPDATES),
        "total_step": max(1, num_steps),
    }


def product_widths(model: nn.Module) -> frozenset[int]:
    """Widths of what the adapters' first halves return: the ranks that occur."""
    found: set[int] = set()
    for module in model.modules():
        ranks = getattr(module, "r", None)
        if hasattr(module, "lora_A") and isinstance(ranks, dict):
            found.update(int(rank) for rank in ranks.values() if isinstance(rank, int))
    return frozenset(found)


def cast_outputs(model: nn.Module, dtype: torch.dtype) -> None:
    """Let modules return the compute type that are trained whole, or whose magnitudes are (DoRA), in whatever type.

    An fp32 embedding, or the product with an fp32 magnitude, would otherwise make the whole residual stream fp32, and
    so all activations.
    """
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper) or len(getattr(module, "lora_magnitude_vector", ())):
            module.register_forward_hook(partial(_cast_output, dtype))


def _cast_output(dtype: torch.dtype, _module: nn.Module, _args: object, output: object) -> object:
    return output.to(dtype) if isinstance(output, torch.Tensor) and output.is_floating_point() else output
