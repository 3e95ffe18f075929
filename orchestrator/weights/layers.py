"""Finds the decoder layers of a model, and what in them is frozen base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bitsandbytes.nn import Linear4bit, Linear8bitLt
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from orchestrator.errors import Problem, UserError

_WRAPPED = ".base_layer"  # PEFT puts the module it adapts under this name


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenParameter:
    """Where a frozen parameter is.

    Attributes:
        name: inside its layer, the same with and without adapters around it.
        module: that owns it.
        attribute: under which name it does.
    """

    name: str
    module: nn.Module
    attribute: str

    @property
    def parameter(self) -> Any:  # noqa: ANN401 - a Parameter, with what bitsandbytes adds to it
        """The parameter there now."""
        return self.module._parameters[self.attribute]  # noqa: SLF001 - a parametrised one is hidden from getattr


def bare_model(model: nn.Module) -> nn.Module:
    """Return the transformers model inside what DDP, accelerate and PEFT wrap around it."""
    inner: Any = model
    while isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    found: nn.Module = inner
    return found


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Return the list of decoder layers of a decoder-only model, whatever its family calls it.

    It is the outermost list with as many modules as the configuration has layers, and the largest of these where a
    model has several (a vision tower may be as deep as the decoder).

    Raises:
        UserError: an encoder-decoder, or a model without such a list.
    """
    inner: Any = bare_model(model)
    config = inner.config
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    number = getattr(text, "num_hidden_layers", None)
    if getattr(config, "is_encoder_decoder", False):
        raise _unfit(f"{type(inner).__name__} has an encoder and a decoder")
    found: list[tuple[str, nn.ModuleList]] = []
    for name, module in inner.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if isinstance(module, nn.ModuleList) and len(module) == number and not is_inside:
            found.append((name, module))
    if not found:
        raise _unfit(f"{type(inner).__name__} has no list of {number} decoder layers")
    return max((layers for _, layers in found), key=lambda one: sum(p.numel() for p in one.parameters()))


def _unfit(found: str) -> UserError:
    remedy = "Use engine=ddp or engine=zero3 for it"
    return UserError(Problem(where="engine=streamed", found=found, remedy=remedy))


def frozen_places(model: nn.Module, layers: nn.ModuleList) -> list[list[FrozenParameter]]:
    """Return the frozen base parameters of each layer, in the modules' own order.

    Left out, and so resident: what several layers share or something outside them uses, parts of adapters, and biases
    of 8-bit modules (bitsandbytes casts those to the type of the activations, in new memory).
    """
    uses = Counter(id(p) for p in _outside(model, layers))
    for layer in layers:
        uses.update({id(parameter) for parameter in layer.parameters()})
    return [[place for place in _places(layer) if uses[id(place.parameter)] == 1] for layer in layers]


def _outside(model: nn.Module, layers: nn.ModuleList) -> Iterator[nn.Parameter]:
    inside = {id(module) for module in layers.modules()}
    for module in model.modules():
        if id(module) not in inside:
            yield from module.parameters(recurse=False)


def _places(layer: nn.Module) -> Iterator[FrozenParameter]:
    adapters = _adapter_parameters(layer)
    seen: set[int] = set()
    for path, module in layer.named_modules():
        for attribute, parameter in module.named_parameters(recurse=False):
            is_ours = not parameter.requires_grad and id(parameter) not in adapters | seen
            if is_ours and not (attribute == "bias" and isinstance(module, Linear8bitLt)):
                seen.add(id(parameter))
                name = f"{path}.{attribute}" if path else attribute
                yield FrozenParameter(name=name.replace(_WRAPPED, ""), module=module, attribute=attribute)


def _adapter_parameters(layer: nn.Module) -> set[int]:
    """Frozen parts of adapters are adapters all the same: PEFT may change them."""
    found: set[int] = set()
    for module in layer.modules():
        if isinstance(module, BaseTunerLayer):
            for name in (*module.adapter_layer_names, *module.other_param_names):
                part = getattr(module, name, None)
                if isinstance(part, nn.Module):
                    found.update(id(parameter) for parameter in part.parameters())
                elif isinstance(part, nn.Parameter):
                    found.add(id(part))
    return found


def settle_biases(layers: nn.ModuleList) -> None:
    """Give biases of 4-bit modules the type that bitsandbytes' first pass would, which it does in new memory."""
    for module in layers.modules():
        if isinstance(module, Linear4bit) and module.bias is not None and module.compute_dtype is not None:
            module.bias.data = module.bias.data.to(module.compute_dtype)
