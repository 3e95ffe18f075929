"""Modules that are stored otherwise than the rest of the base, by patterns of their names (`base.quant_pattern`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from orchestrator.config import Quant
from orchestrator.errors import Problem, UserError
from orchestrator.workload.adapter_names import matches, nearest_modules
from orchestrator.workload.layout import grouped
from orchestrator.workload.model import ModelShape, count_linears, linears_of
from orchestrator.workload.parameters import LINEAR_ROLES, LayerGroup, Parameter

WHERE: Final = "base.quant_pattern"
Kinds = tuple[tuple[str, Quant], ...]
_ALL_INSIDE: Final = r"\."  # a pattern that ends like this stands for every module inside


def kind_for(name: str, pairs: Kinds) -> Quant | None:
    """Return the kind of the first pattern that matches a module's full name; None where `base.quant` holds.

    A pattern matches as in `adapter.rank_pattern`, and one that ends in an escaped dot matches what is inside.
    """
    return next((kind for pattern, kind in pairs if is_match(pattern, name)), None)


def is_match(pattern: str, name: str) -> bool:
    """Whether a pattern stands for the module with this full name."""
    return matches(f"{pattern}.*" if pattern.endswith(_ALL_INSIDE) else pattern, name)


def with_kinds(model: ModelShape, pairs: Kinds) -> ModelShape:
    """Return the model with the kind of storage marked at each linear module that a pattern names.

    Raises:
        UserError: patterns that match nothing, or a model whose modules cannot be stored so.
    """
    if not pairs:
        return model
    problems = tuple(_problems(model, pairs))
    if problems:
        raise UserError(*problems)
    layers: list[tuple[Parameter, ...]] = [()] * model.layers
    for group in model.groups:
        for at in group.layers:
            layers[at] = tuple(_marked(x, f"{model.prefix}.{at}.", pairs) for x in group.parameters)
    outside = tuple(_marked(x, "", pairs) for x in model.outside)
    return _regrouped(model, grouped(tuple(layers)), outside)


@lru_cache(64)
def without_kinds(model: ModelShape) -> ModelShape:
    """Return the model as it is without patterns: adapters do not depend on how their modules are stored."""
    every = (*(x for group in model.groups for x in group.parameters), *model.outside)
    if not any(x.quant for x in every):
        return model
    layers: list[tuple[Parameter, ...]] = [()] * model.layers
    for group in model.groups:
        for at in group.layers:
            layers[at] = tuple(_unmarked(x) for x in group.parameters)
    return _regrouped(model, grouped(tuple(layers)), tuple(_unmarked(x) for x in model.outside))


def kinds_text(model: ModelShape, quant: Quant) -> str:
    """Tell how many weights of linear modules are stored in which kind; empty where no pattern says anything."""
    weights: dict[str, int] = {}
    for linear, count in model.linear_counts:
        kind = linear.quant or (quant.value if linear.packed else Quant.none.value)
        weights[kind] = weights.get(kind, 0) + count * linear.weights
    if not any(linear.quant for linear, _ in model.linear_counts):
        return ""
    words = {Quant.none.value: "not quantised"}
    return ", ".join(f"{number:,} weights {words.get(kind, kind)}" for kind, number in weights.items())


def _marked(parameter: Parameter, prefix: str, pairs: Kinds) -> Parameter:
    kind = kind_for(prefix + parameter.module, pairs) if parameter.packed else None
    if kind is None:
        return parameter
    return replace(parameter, quant=kind.value, packed=kind is not Quant.none)


def _unmarked(parameter: Parameter) -> Parameter:
    return replace(parameter, quant="", packed=True) if parameter.quant else parameter


def _regrouped(model: ModelShape, groups: tuple[LayerGroup, ...], outside: tuple[Parameter, ...]) -> ModelShape:
    is_uniform = len(groups) == 1 and not any(x.role in LINEAR_ROLES for x in outside)
    counts = () if is_uniform else tuple(count_linears(groups, outside).items())
    return replace(model, linears=linears_of(groups[0].parameters), groups=groups, outside=outside, counts=counts)


def _problems(model: ModelShape, pairs: Kinds) -> Iterator[Problem]:
    if model.prequantised:
        found = f"the weights of {model.name} are {model.prequantised} already and load as they are"
        yield Problem(where=WHERE, found=found, remedy="Leave it out, or give the 16-bit model.")
        return
    if not model.groups:
        found = f"the modules of {model.name} are known by their numbers alone"
        yield Problem(where=WHERE, found=found, remedy="Give the model's folder with its config.json.")
        return
    every = tuple(_linears(model))
    for pattern, _ in pairs:
        yield from _pattern_problems(model, pattern, every)


def _pattern_problems(model: ModelShape, pattern: str, every: Sequence[tuple[str, bool]]) -> Iterator[Problem]:
    try:
        hits = [is_packed for name, is_packed in every if is_match(pattern, name)]
    except re.error as error:
        remedy = "Give the end of a module's name, or a regular expression."
        yield Problem(where=WHERE, found=f"{pattern!r} is no regular expression ({error})", remedy=remedy)
        return
    if any(hits):
        return
    if hits:
        found = f"{pattern!r} names modules that bitsandbytes does not quantise: they stay as they are"
        yield Problem(where=WHERE, found=found, remedy="Leave it out.")
        return
    found = f"{pattern!r} matches no linear module of {model.name}"
    if model.expert_params:
        found += " (its experts are one 3-D tensor a layer, which bitsandbytes does not quantise)"
    names = [name for name, is_packed in every if is_packed]
    yield Problem(where=WHERE, found=found, remedy=nearest_modules(pattern, names))


def _linears(model: ModelShape) -> Iterator[tuple[str, bool]]:
    """Full name of every linear module, and whether bitsandbytes would pack it."""
    for group in model.groups:
        found = [(x.module, x.packed) for x in group.parameters if x.role in LINEAR_ROLES]
        for at in group.layers:
            yield from ((f"{model.prefix}.{at}.{module}", is_packed) for module, is_packed in found)
    yield from ((x.module, x.packed) for x in model.outside if x.role in LINEAR_ROLES)
