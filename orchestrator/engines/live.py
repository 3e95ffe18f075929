"""Which live storages of a rank belong to which term of the memory estimate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

Named = dict[str, list[torch.Tensor]]
_BASE: Final = frozenset(
    {"base_packed", "absmax", "base_unquantised", "base_partition", "persistent_params", "base_shard", "window"}
)


def count_bytes(named: Mapping[str, list[torch.Tensor]]) -> dict[str, int]:
    """Bytes of the distinct storages of each name; a storage that two names share counts for the first."""
    seen: set[int] = set()
    found: dict[str, int] = {}
    for name, tensors in named.items():
        total = 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
        found[name] = total
    return found


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of the distinct storages behind the tensors."""
    return count_bytes({"": tensors})[""]


def base_bytes(live: Mapping[str, int]) -> int:
    """Bytes of the frozen base among live ones."""
    return sum(held for name, held in live.items() if name in _BASE)


def base_by_place(named: Mapping[str, list[torch.Tensor]]) -> dict[str, int]:
    """Bytes of the frozen base among live tensors, by the kind of device (`cuda`, `cpu`) they lie on."""
    tensors = [tensor for name, held in named.items() if name in _BASE for tensor in held]
    kinds = dict.fromkeys(tensor.device.type for tensor in tensors)
    return {kind: storage_bytes([tensor for tensor in tensors if tensor.device.type == kind]) for kind in kinds}


def frozen_parameters(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Parameter, bool]]:
    """Every frozen parameter with its module, and whether it is the weight of a linear module other than the head."""
    head = _head(model)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                is_linear = name == "weight" and isinstance(module, (nn.Linear, Conv1D)) and module is not head
                yield module, parameter, is_linear


def _head(model: nn.Module) -> nn.Module | None:
    # DDP, DeepSpeed and PEFT wrap the model that knows its head.
    inner: Any = model
    while hasattr(inner, "module"):
        inner = inner.module
    return inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None


def scales(module: nn.Module, parameter: nn.Parameter) -> list[torch.Tensor]:
    """What bitsandbytes keeps beside the packed weights: scales, their own scales, code books, the offset."""
    state: Any = getattr(parameter, "quant_state", None)
    if state is not None:
        tensors = [state.absmax, state.code]
        if state.nested:
            tensors += [state.offset, state.state2.absmax, state.state2.code]
        return tensors
    # int8: the scales move from the parameter to the module's state in the first pass.
    places: tuple[Any, Any] = (parameter, getattr(module, "state", None))
    found = (getattr(place, "SCB", None) for place in places)
    return [tensor for tensor in found if isinstance(tensor, torch.Tensor)]


def replicated_base(model: nn.Module) -> Named:
    """The frozen base of a rank that holds all of it."""
    named: Named = {"base_packed": [], "absmax": [], "base_unquantised": []}
    for module, parameter, is_linear in frozen_parameters(model):
        named["base_packed" if is_linear else "base_unquantised"].append(parameter.data)
        named["absmax"] += scales(module, parameter)
    return named


def partitioned_base(model: nn.Module) -> Named:
    """The frozen base under ZeRO-3: this rank's partitions, and what is whole."""
    named: Named = {"base_partition": [], "absmax": [], "persistent_params": []}
    for module, parameter, _ in frozen_parameters(model):
        named["absmax"] += scales(module, parameter)
        partitioned: Any = parameter  # DeepSpeed adds the attributes below
        is_persistent = bool(getattr(partitioned, "ds_persist", False))
        # The parameter itself is empty between uses, unless it is persistent.
        named["persistent_params" if is_persistent else "base_partition"] += [parameter.data, partitioned.ds_tensor]
    return named


def tensors_of(values: object) -> list[torch.Tensor]:
    """Every tensor in nested mappings, lists and tuples."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in tensors_of(value)]
    return []
