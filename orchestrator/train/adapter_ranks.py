"""The ranks of a PEFT model's adapters: read, changed in place, and told in the configuration that is exported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import torch
from peft.peft_model import PeftModel
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from torch import nn

from orchestrator.errors import Problem, UserError

ADAPTER: Final = "default"
_PREFIX: Final = "base_model.model."  # PEFT's own names of modules begin behind it


def name_of_a(module: str) -> str:
    """Parameter name of A, by the name of its module."""
    return f"{module}.lora_A.{ADAPTER}.weight"


def name_of_b(module: str) -> str:
    """Parameter name of B."""
    return f"{module}.lora_B.{ADAPTER}.weight"


def lora_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules with an adapter, in the model's own order, by name."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and ADAPTER in module.lora_A:
            yield name, module


def ranks_of(model: nn.Module) -> dict[str, int]:
    """Rank of each adapter, by the name of its module."""
    return {name: int(module.r[ADAPTER]) for name, module in lora_layers(model)}


def saved_ranks(parameters: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Rank of each adapter in a checkpoint, by the name of its module."""
    end = name_of_a("")
    return {name.removesuffix(end): value.shape[0] for name, value in parameters.items() if name.endswith(end)}


def check_resizable(model: nn.Module) -> None:
    """Refuse adapters whose matrices are no plain pairs.

    Raises:
        UserError: adapters of stacked experts, of which PEFT keeps many in one matrix.
    """
    odd = [name for name, module in lora_layers(model) if isinstance(module, ParamWrapper)]
    if odd:
        raise UserError(
            Problem(
                where="adapter.resize",
                found=f"{odd[0]} holds the adapters of many experts in one matrix",
                remedy="Leave the ranks as they are, or give adapter.targets without experts.",
            )
        )


def set_ranks(model: PeftModel, ranks: Mapping[str, int]) -> bool:
    """Give adapters new matrices, of zeros, where their rank changes; the old ones are let go.

    What wraps the model or holds its parameters must be made anew. The scale of each adapter stays.

    Returns:
        Whether any rank has changed.
    """
    changed = False
    for name, module in lora_layers(model):
        rank, old = ranks.get(name, module.r[ADAPTER]), module.r[ADAPTER]
        if rank == old:
            continue
        changed = True
        a, b = module.lora_A[ADAPTER], module.lora_B[ADAPTER]
        a.weight = _zeros(a.weight, (rank, a.weight.shape[1]))
        b.weight = _zeros(b.weight, (b.weight.shape[0], rank))
        a.out_features = b.in_features = rank
        share = rank / old
        module.r[ADAPTER] = rank
        module.lora_alpha[ADAPTER] *= share**0.5 if module.use_rslora.get(ADAPTER) else share
    if changed:
        _tell_peft(model)
    return changed


def _zeros(like: torch.Tensor, shape: tuple[int, int]) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=like.dtype, device=like.device), requires_grad=True)


def _tell_peft(model: PeftModel) -> None:
    """Write ranks and alphas into the configuration that is exported: what most have, and patterns for the others."""
    layers = {name.removeprefix(_PREFIX): module for name, module in lora_layers(model)}
    ranks = {name: int(module.r[ADAPTER]) for name, module in layers.items()}
    alphas = {name: _short(module.lora_alpha[ADAPTER]) for name, module in layers.items()}
    config: Any = model.peft_config[ADAPTER]
    config.r, config.lora_alpha = _usual(ranks.values()), _usual(alphas.values())
    # Whole names: PEFT takes a pattern for the end of a name, and no whole name is the end of another.
    config.rank_pattern = {name: rank for name, rank in ranks.items() if rank != config.r}
    config.alpha_pattern = {name: alpha for name, alpha in alphas.items() if alpha != config.lora_alpha}


def _short(alpha: float) -> float:
    return int(alpha) if float(alpha).is_integer() else float(alpha)


def _usual(values: Collection[Any]) -> Any:  # noqa: ANN401 - as given
    return Counter(values).most_common(1)[0][0]
