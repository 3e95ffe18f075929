"""Shapes as transformers 4 and litgpt hold them: for measurements made with them.

There, each expert is three `nn.Linear` modules and the router one more, and bitsandbytes packs them; so are subclasses
of `nn.Linear` (Falcon's). In transformers 5 neither is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from orchestrator.workload.model import ModelShape, count_linears, linears_of
from orchestrator.workload.parameters import LINEAR_ROLES, LayerGroup, Parameter, Role, linear

_MIXTRAL: Final = ("w1", "w3", "w2")
_QWEN: Final = ("gate_proj", "up_proj", "down_proj")
# Gate, up and down of an expert. Families that stacked their experts in transformers 4 too are not among these.
_NAMES: Final = MappingProxyType(
    {
        **dict.fromkeys(("mixtral", "phimoe"), _MIXTRAL),
        **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe"), _QWEN),
    }
)
# Their routers hold a bare parameter in transformers 4 as well.
_BARE_ROUTERS: Final = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe"})
_NOTE: Final = "Held as in transformers 4: experts are linear modules, and every linear module but the head is packed."


def as_transformers_4(shape: ModelShape) -> ModelShape:
    """The same parameters, held and packed as before transformers 5. Shapes without names come back as they are."""
    if not shape.groups:
        return shape
    groups = tuple(
        LayerGroup(layers=group.layers, parameters=tuple(_unstacked(shape, group.parameters))) for group in shape.groups
    )
    moved = sum(group.elements(Role.experts, Role.router) for group in shape.groups)
    left = sum(group.elements(Role.experts, Role.router) for group in groups)
    if groups == shape.groups:
        return shape
    expert_params = sum(group.elements(Role.experts) for group in groups)
    is_uniform = len(groups) == 1 and not any(x.role in LINEAR_ROLES for x in shape.outside)
    return replace(
        shape,
        groups=groups,
        linears=linears_of(groups[0].parameters),
        counts=() if is_uniform else tuple(count_linears(groups, shape.outside).items()),
        expert_params=expert_params,
        expert_linear_params=shape.expert_params - expert_params,
        other_params=shape.other_params - (moved - left - (shape.expert_params - expert_params)),
        notes=(*(note for note in shape.notes if not note.startswith("Falcon")), _NOTE),
    )


def _unstacked(shape: ModelShape, parameters: tuple[Parameter, ...]) -> Iterator[Parameter]:
    names = _NAMES.get(shape.architecture)
    for parameter in parameters:
        if parameter.role is Role.own_linear:
            yield replace(parameter, packed=True)
        elif names and parameter.role is Role.experts:
            yield from _experts(parameter, names)
        elif names and parameter.role is Role.router and shape.architecture not in _BARE_ROUTERS:
            yield replace(parameter, role=Role.linear, packed=True)
        else:
            yield parameter


def _experts(parameter: Parameter, names: tuple[str, ...]) -> Iterator[Parameter]:
    num, rows, columns = parameter.shape
    gate, up, down = names
    for index in range(num):
        name = f"{parameter.module}.{index}"
        if parameter.name.endswith("gate_up_proj"):
            wanted = (*linear(f"{name}.{gate}", rows // 2, columns), *linear(f"{name}.{up}", rows // 2, columns))
        else:
            wanted = linear(f"{name}.{down}", rows, columns)
        yield from (replace(weight, packed=True) for weight in wanted)
