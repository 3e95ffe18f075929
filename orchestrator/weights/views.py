"""Packs the frozen tensors of a layer into its extent, and makes them views of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from orchestrator.weights.layers import FrozenParameter
from orchestrator.weights.layout import Extent, FrozenTensor, Item, Role, extent_of

Parts = dict[Role, torch.Tensor]


def view(memory: torch.Tensor, item: Item) -> torch.Tensor:
    """Return the tensor that lies in `memory` (flat bytes of an extent) at the item's place; nothing is copied."""
    found = memory[item.offset : item.end].view(getattr(torch, item.dtype))
    return found.view(item.shape)


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes, flat; a view where it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def parts(place: FrozenParameter) -> Parts:
    """Return the tensors that a frozen parameter consists of."""
    parameter = place.parameter
    weight: torch.Tensor = parameter.data
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        found = {Role.packed: weight, Role.absmax: state.absmax}
        if state.nested:
            found |= {Role.nested_absmax: state.state2.absmax, Role.nested_offset: state.offset}
        return found
    scale = _scale_owner(place)
    if scale is not None:
        return {Role.int8: weight, Role.int8_scale: scale.SCB}
    return {Role.plain: weight}


def _scale_owner(place: FrozenParameter) -> Any:  # noqa: ANN401 - Int8Params or MatmulLtState
    """Who has the scales of an 8-bit weight: the parameter, and from the first pass on the module's state."""
    for owner in (getattr(place.module, "state", None), place.parameter):
        if isinstance(getattr(owner, "SCB", None), torch.Tensor):
            return owner
    return None


def declare(places: Sequence[FrozenParameter]) -> Extent:
    """Lay out a layer's frozen tensors."""
    return extent_of(
        FrozenTensor(
            name=place.name, role=role, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape)
        )
        for place in places
        for role, tensor in parts(place).items()
    )


def _pairs(places: Sequence[FrozenParameter], extent: Extent) -> Iterator[tuple[FrozenParameter, dict[Role, Item]]]:
    items = extent.by_key
    for place in places:
        yield place, {role: items[place.name, role] for role in parts(place)}


def pack(places: Sequence[FrozenParameter], extent: Extent, memory: torch.Tensor) -> None:
    """Copy a layer's frozen bytes into `memory` (flat, at least the extent's bytes); what fills up is zero."""
    memory[: extent.nbytes].zero_()
    for place, items in _pairs(places, extent):
        for role, tensor in parts(place).items():
            memory[items[role].offset : items[role].end].copy_(raw_bytes(tensor))


def bind(places: Sequence[FrozenParameter], extent: Extent, memory: torch.Tensor) -> None:
    """Make a layer's frozen tensors views of `memory`, from now on; what was in them is let go.

    `.data` is assigned: a parameter made from a view would share the version counter of the memory, and autograd
    would take each refill for a change of a saved tensor.
    """
    for place, items in _pairs(places, extent):
        views = {role: view(memory, item) for role, item in items.items()}
        _set(place, views)


def _set(place: FrozenParameter, views: Parts) -> None:
    parameter = place.parameter
    if Role.packed in views:
        state = parameter.quant_state
        parameter.data, state.absmax = views[Role.packed], views[Role.absmax]
        if Role.nested_absmax in views:
            state.state2.absmax, state.offset = views[Role.nested_absmax], views[Role.nested_offset]
    elif Role.int8 in views:
        owner = _scale_owner(place)
        parameter.data = views[Role.int8]
        # Before the first pass the parameter has both, and hands them over to the module's state then.
        owner.CB, owner.SCB = views[Role.int8], views[Role.int8_scale]
    else:
        parameter.data = views[Role.plain]


def strayed(places: Sequence[FrozenParameter], extent: Extent, memory: torch.Tensor) -> list[str]:
    """Return the names of tensors that are no longer the views that `bind` made."""
    found = []
    for place, items in _pairs(places, extent):
        for role, tensor in parts(place).items():
            is_there = tensor.data_ptr() == memory.data_ptr() + items[role].offset
            is_alike = str(tensor.dtype) == f"torch.{items[role].dtype}" and tuple(tensor.shape) == items[role].shape
            if not (is_there or not tensor.numel()) or not is_alike:
                found.append(f"{place.name} ({role.value})")
    return found


def hold(places: Sequence[FrozenParameter]) -> None:
    """Keep `model.to(...)` and its like away from the frozen parameters; the trainable ones move as ever.

    Trainers call `model.to(device)`, which silently copies each view into memory of its own.
    """
    owned: dict[nn.Module, list[str]] = {}
    for place in places:
        owned.setdefault(place.module, []).append(place.attribute)
    for module, attributes in owned.items():
        # An attribute of the instance stands before the class's method.
        setattr(module, "_apply", partial(_apply_to_rest, module, attributes))  # noqa: B010 - a method, to mypy


def _apply_to_rest(module: nn.Module, attributes: Sequence[str], fn: Any, recurse: bool = True) -> nn.Module:  # noqa: ANN401, FBT001, FBT002 - torch's signature
    own = module._parameters  # noqa: SLF001 - None marks what `_apply` passes over
    kept = {attribute: own[attribute] for attribute in attributes}
    own.update(dict.fromkeys(attributes))
    try:
        type(module)._apply(module, fn, recurse)  # type: ignore[no-untyped-call] # noqa: SLF001 - the method that is stood in for
    finally:
        own.update(kept)
    return module
