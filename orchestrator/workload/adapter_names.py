"""Modules by name: which rank and which alpha each adapter has, and which modules are trained whole."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.errors import Problem
from orchestrator.workload.model import LinearShape, ModelShape, linears_of
from orchestrator.workload.parameters import LINEAR_ROLES, Parameter, Role

Pairs = tuple[tuple[str, float], ...]
_SHOWN: Final = 12
_HEADS: Final = frozenset({"lm_head", "embed_out", "output"})  # names of heads, which a tied model counts no weight of


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModule:
    """A module that is trained whole, as a copy of the frozen one.

    Attributes:
        name: within its layer, or in the model.
        count: how many of them the model has.
        elements: of each of its tensors.
    """

    name: str
    count: int
    elements: tuple[int, ...]

    @property
    def params(self) -> int:
        """Trainable parameters of all of them."""
        return self.count * sum(self.elements)


def number_for(name: str, pairs: Pairs, default: float) -> float:
    """Return the number of the first pattern that matches a module's full name, as PEFT does (`get_pattern_key`)."""
    return next((number for pattern, number in pairs if matches(pattern, name)), default)


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern stands for a module's full name: its end after a dot, or a regular expression for that."""
    return re.match(rf"(.*\.)?({pattern})$", name) is not None


def named_linears(model: ModelShape) -> Iterator[tuple[str, LinearShape]]:
    """Yield every linear module with its full name; where only counts are known, as if all layers were alike."""
    prefix = model.prefix or "model.layers"
    if not model.groups:
        for linear in model.linears:
            yield from ((f"{prefix}.{at}.{linear.name}", linear) for at in range(model.layers))
        return
    for group in model.groups:
        found = linears_of(group.parameters)
        for at in group.layers:
            yield from ((f"{prefix}.{at}.{linear.name}", linear) for linear in found)
    yield from ((linear.name, linear) for linear in linears_of(model.outside))


def pattern_problems(where: str, pairs: Pairs, names: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each pattern that is no pattern, or matches none of the adapted modules."""
    for pattern, _ in pairs:
        try:
            found = any(matches(pattern, name) for name in names)
        except re.error as error:
            remedy = "Give the end of a module's name, or a regular expression."
            yield Problem(where=where, found=f"{pattern!r} is no regular expression ({error})", remedy=remedy)
            continue
        if not found:
            shown = nearest_modules(pattern, names)
            yield Problem(where=where, found=f"{pattern!r} matches no module with an adapter", remedy=shown)


def nearest_modules(pattern: str, names: Sequence[str]) -> str:
    """Name the modules that a pattern may have meant."""
    leaves = tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))
    near = difflib.get_close_matches(re.sub(r".*\.", "", pattern), leaves, n=3, cutoff=0.4)
    return f"The nearest: {', '.join(near)}." if near else f"Known: {', '.join(leaves[:_SHOWN])}."


def ranks_of(model: ModelShape, chosen: frozenset[LinearShape], pairs: Pairs, rank: int) -> Counter[tuple[str, int]]:
    """How many adapters of each name (numbers in it become `*`) have each rank."""
    found: Counter[tuple[str, int]] = Counter()
    for name, linear in named_linears(model):
        short = re.sub(r"(?<=\.)\d+(?=\.)", "*", linear.name)
        if any(x.name == short for x in chosen):
            found[short, round(number_for(name, pairs, rank))] += 1
    return found


def saved_modules(
    model: ModelShape, names: Sequence[str], adapted: frozenset[str]
) -> tuple[tuple[SavedModule, ...], tuple[Problem, ...]]:
    """Find modules that are trained whole, and what is wrong with their names.

    Args:
        model: with its parameters by name.
        names: as given.
        adapted: names of linear modules that carry an adapter, as in `linear_counts`.
    """
    modules = dict(_modules(model))
    found: dict[str, SavedModule] = {}
    problems: list[Problem] = []
    for name in names:
        hits = [key for key in modules if key == name or key.endswith(f".{name}")]
        if not hits and model.tied and name in _HEADS:
            why, remedy = _tied(model)
            problems.append(Problem(where="adapter.modules_to_save", found=f"{name!r} {why}", remedy=remedy))
        elif not hits:
            problems.append(_unknown(name, model, tuple(modules)))
        for key in hits:
            reason = _whyagainst(key, modules[key][1], model, adapted)
            if reason:
                problems.append(
                    Problem(where="adapter.modules_to_save", found=f"{name!r} {reason[0]}", remedy=reason[1])
                )
            else:
                count, parameters = modules[key]
                found[key] = SavedModule(name=key, count=count, elements=tuple(x.elements for x in parameters))
    return tuple(found.values()), tuple(problems)


def in_layers(model: ModelShape, saved: Sequence[SavedModule]) -> bool:
    """Whether one of the modules is part of a decoder layer."""
    outside = {parameter.module for parameter in model.outside}
    return any(module.name not in outside for module in saved)


def _modules(model: ModelShape) -> Iterator[tuple[str, tuple[int, tuple[Parameter, ...]]]]:
    """Modules that hold parameters, by name, with how many there are and what they hold."""
    found: dict[str, tuple[int, tuple[Parameter, ...]]] = {}
    for count, parameters in [(len(g.layers), g.parameters) for g in model.groups] + [(1, model.outside)]:
        own: dict[str, list[Parameter]] = {}
        for parameter in parameters:
            own.setdefault(parameter.module, []).append(parameter)
        for name, held in own.items():
            before = found.get(name, (0, ()))[0]
            found[name] = (before + count, tuple(held))
    yield from found.items()


def _whyagainst(
    key: str, parameters: tuple[Parameter, ...], model: ModelShape, adapted: frozenset[str]
) -> tuple[str, str] | None:
    """Why this module cannot be trained whole, and what to do."""
    roles = {parameter.role for parameter in parameters}
    if key in adapted:
        return "carries an adapter already", "Leave it out of adapter.targets, or of adapter.modules_to_save."
    if roles & (LINEAR_ROLES | {Role.experts, Role.router}):
        return "is a weight that may be quantised, and packed weights have no gradient", "Give it an adapter instead."
    return _tied(model) if model.tied and roles & {Role.embedding, Role.head} else None


def _tied(model: ModelShape) -> tuple[str, str]:
    return (
        f"is tied in {model.name}: embedding and head are one weight, and a trained copy of one would part them",
        "Use a base whose head is a weight of its own, or adapters alone.",
    )


def _unknown(name: str, model: ModelShape, known: tuple[str, ...]) -> Problem:
    where = "adapter.modules_to_save"
    if not known:
        found = f"the modules of {model.name} are known by their numbers alone"
        return Problem(where=where, found=found, remedy="Give the model's folder with its config.json.")
    leaves = tuple(dict.fromkeys(x.rpartition(".")[2] for x in known if x))
    near = difflib.get_close_matches(name.rpartition(".")[2], leaves, n=3, cutoff=0.4)
    remedy = f"The nearest: {', '.join(near)}." if near else f"Known: {', '.join(leaves[:_SHOWN])}."
    return Problem(where=where, found=f"{name!r} names no module of {model.name}", remedy=remedy)
