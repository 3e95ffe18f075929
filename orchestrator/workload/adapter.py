"""LoRA adapters in numbers: which modules and parameters carry one, and how many parameters train."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from orchestrator.config import AdapterConfig, AdapterInit, AdapterKind
from orchestrator.errors import Problem, UserError
from orchestrator.workload.adapter_names import (
    Pairs,
    named_linears,
    pattern_problems,
    ranks_of,
    saved_modules,
)
from orchestrator.workload.adapter_pieces import AdapterPiece, AdapterShape, piece_of
from orchestrator.workload.model import LinearShape, ModelShape
from orchestrator.workload.parameters import Parameter, Role
from orchestrator.workload.quant_pattern import without_kinds

__all__ = ["ALL_LINEAR", "AdapterPiece", "AdapterShape", "adapter_shape", "first_rank_of_adalora"]

ALL_LINEAR: Final = "all-linear"
_SHOWN: Final = 12
_MATRIX: Final = 2

# PEFT 0.21 reads the names that experts had in transformers 4 as names of the stacked parameters of transformers 5,
# in these families (`peft/utils/transformers_weight_conversion.py`), and all-linear as all of these names too.
_QWEN_EXPERTS: Final = MappingProxyType(
    {"gate": "gate.weight", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}
)
_MIXTRAL_EXPERTS: Final = MappingProxyType(
    {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
)
_EXPERT_NAMES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "mixtral": _MIXTRAL_EXPERTS,
        **dict.fromkeys(("qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe"), _QWEN_EXPERTS),
    }
)
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
_FUSED: Final = "gate_up_proj"  # holds two of the old projections, so its adapter has twice the rank


def adapter_shape(model: ModelShape, config: AdapterConfig) -> AdapterShape:
    """Match `config.targets` as PEFT does: `all-linear`, or the end of a module's dotted name.

    Raises:
        UserError: a target names no module (with the nearest names), or nothing would train.
    """
    model = without_kinds(model)
    names = tuple(name for name in config.targets if name)
    modules, stacked = _split(names, model)
    problems = tuple(_unknown(name, model) for name in modules if not _matching(name, model))
    problems += _half_fused(names, model)
    rank = _first_rank(config)
    if rank < 1:
        problems += (Problem(where="adapter.rank", found=f"{rank}", remedy="Give a rank of at least 1."),)
    if not names:
        problems += (
            Problem(
                where="adapter.targets",
                found="no name, so no parameter would train",
                remedy=f"Use {ALL_LINEAR} or some of {_leaves(model)}.",
            ),
        )
    if problems:
        raise UserError(*problems)
    chosen = frozenset(linear for name in modules for linear in _matching(name, model))
    experts = _expert_pieces(model, stacked, rank)
    saved, problems = saved_modules(model, config.saved_modules, frozenset(x.name for x in chosen))
    problems += _packed_files(model, config)
    problems += tuple(_pattern_problems(model, chosen, config)) + _expert_problems(model, experts, config)
    if problems:
        raise UserError(*problems)
    pieces = (*_pieces(model, chosen, config.rank_pattern, rank, config), *experts)
    mean = sum(x.count * x.rank for x in pieces if x.name in {y.name for y in chosen}) / model.layers
    is_plain = model.is_uniform and not experts and not config.rank_pattern and not _has_vector(config)
    is_plain = is_plain and config.init is not AdapterInit.eva
    return AdapterShape(
        rank=rank,
        targets=tuple(linear for linear in model.linears if linear in chosen),
        layers=model.layers,
        dropout=config.dropout,
        pieces=() if is_plain else pieces,
        notes=_notes(model, experts),
        dora=config.dora,
        saved=saved,
        mean_ranks=mean if config.rank_pattern or config.init is AdapterInit.eva else 0.0,
    )


def _first_rank(config: AdapterConfig) -> int:
    """Rank that adapters are made with; AdaLoRA's are larger at first, and all of it trains."""
    rank = config.settled_rank
    if config.kind is AdapterKind.adalora:
        return first_rank_of_adalora(rank) if config.init_rank is None else config.init_rank
    return max(rank, config.resize.largest)  # memory must do for the largest of the run


def first_rank_of_adalora(rank: int) -> int:
    """Rank at the start where none is told: one and a half times the one at the end, as in the paper's experiments."""
    return math.ceil(1.5 * rank)


def _has_vector(config: AdapterConfig) -> bool:
    return config.dora or config.kind is AdapterKind.adalora


def _pieces(
    model: ModelShape, chosen: frozenset[LinearShape], pairs: Pairs, rank: int, config: AdapterConfig
) -> tuple[AdapterPiece, ...]:
    """Adapters of linear modules, one entry for each name and rank."""
    counts = [(linear, count) for linear, count in model.linear_counts if linear in chosen]
    if pairs:
        ranks = ranks_of(model, chosen, pairs, rank)
        sized = [(x, own, count) for x, _ in counts for (name, own), count in ranks.items() if name == x.name]
    else:
        sized = [(linear, rank, count) for linear, count in counts]
    found = (piece_of(linear, count, own) for linear, own, count in sized)
    if config.init is AdapterInit.eva:
        found = (x for x in _most_of_eva(tuple(found), rank, round(config.rho * rank)))
    if config.dora:
        return tuple(replace(piece, vector=piece.out_features) for piece in found)
    if config.kind is AdapterKind.adalora:
        return tuple(replace(piece, vector=piece.rank) for piece in found)
    return tuple(found)


def _most_of_eva(pieces: tuple[AdapterPiece, ...], rank: int, most: int) -> tuple[AdapterPiece, ...]:
    """The most parameters that EVA may make of its budget of ranks: the widest modules get all they may."""
    left, found = rank * sum(piece.count for piece in pieces), []
    for piece in sorted(pieces, key=lambda x: -(x.in_features + x.out_features)):
        whole = min(piece.count, left // most)
        left -= whole * most
        found.append(replace(piece, count=whole, rank=most))
        if whole < piece.count and left:
            found.append(replace(piece, count=1, rank=left))
            left = 0
    return tuple(piece for piece in found if piece.count)


def _pattern_problems(model: ModelShape, chosen: frozenset[LinearShape], config: AdapterConfig) -> Iterator[Problem]:
    if not config.rank_pattern and not config.alpha_pattern:
        return
    short = {linear.name for linear in chosen}
    names = [name for name, linear in named_linears(model) if re.sub(r"(?<=\.)\d+(?=\.)", "*", linear.name) in short]
    yield from pattern_problems("adapter.rank_pattern", config.rank_pattern, names)
    yield from pattern_problems("adapter.alpha_pattern", config.alpha_pattern, names)


def _packed_files(model: ModelShape, config: AdapterConfig) -> tuple[Problem, ...]:
    if config.init not in (AdapterInit.pissa, AdapterInit.loftq) or not model.prequantised:
        return ()
    found = f"{config.init.value} needs the weights in full precision, and the files of {model.name} hold "
    remedy = "Give the model that was not quantised, or use adapter.init=default or eva."
    return (Problem(where="adapter.init", found=f"{found}{model.prequantised}", remedy=remedy),)


def _expert_problems(
    model: ModelShape, experts: tuple[AdapterPiece, ...], config: AdapterConfig
) -> tuple[Problem, ...]:
    """PEFT adapts stacked experts by plain LoRA of one rank alone."""
    asked = {
        "adapter.dora": config.dora,
        "adapter.kind": config.kind is AdapterKind.adalora,
        "adapter.init": config.init is not AdapterInit.default,
        "adapter.rank_pattern": bool(config.rank_pattern),
        "adapter.alpha_pattern": bool(config.alpha_pattern),
    }
    told = [key for key, is_asked in asked.items() if is_asked]
    if not experts or not told:
        return ()
    found = f"the stacked experts of {model.name} take plain LoRA of one rank alone"
    remedy = f"Name linear modules outside the experts in adapter.targets, or leave out {', '.join(told)}."
    return (Problem(where=", ".join(told), found=found, remedy=remedy),)


def _expert_names(model: ModelShape) -> Mapping[str, str]:
    return _EXPERT_NAMES.get(model.architecture, _NO_NAMES) if model.expert_params else _NO_NAMES


def _split(names: tuple[str, ...], model: ModelShape) -> tuple[tuple[str, ...], frozenset[str]]:
    """Targets that are modules, and stacked parameters that PEFT adapts in their stead."""
    known = _expert_names(model)
    if not known:
        return names, frozenset()
    if ALL_LINEAR in names:
        leaves = {linear.leaf for linear, _ in model.linear_counts}
        return tuple(sorted(leaves - set(known))), frozenset(known.values())
    stacked = frozenset(known[name.rpartition(".")[2]] for name in names if name.rpartition(".")[2] in known)
    return tuple(name for name in names if name.rpartition(".")[2] not in known), stacked


def _half_fused(names: tuple[str, ...], model: ModelShape) -> tuple[Problem, ...]:
    """PEFT refuses one half of a fused projection."""
    known = _expert_names(model)
    halves = {old for old, new in known.items() if new == _FUSED}
    given = halves.intersection(name.rpartition(".")[2] for name in names)
    if not given or given == halves:
        return ()
    missing = ", ".join(sorted(halves - given))
    return (
        Problem(
            where="adapter.targets",
            found=f"{', '.join(sorted(given))} without {missing}: the experts of {model.name} hold both as one",
            remedy=f"Name {missing} too, or neither.",
        ),
    )


def _expert_pieces(model: ModelShape, stacked: frozenset[str], rank: int) -> tuple[AdapterPiece, ...]:
    return tuple(
        _expert_piece(parameter, len(group.layers), rank)
        for group in model.groups
        for parameter in group.parameters
        if parameter.role in (Role.experts, Role.router)
        and any(parameter.name.endswith(f".{name}") for name in stacked)
    )


def _expert_piece(parameter: Parameter, count: int, rank: int) -> AdapterPiece:
    own_rank = 2 * rank if parameter.name.endswith(_FUSED) else rank
    stack = parameter.shape[0] if len(parameter.shape) > _MATRIX else 1
    rows, columns = parameter.shape[-2:]
    return AdapterPiece(name=parameter.name, count=count, rank=own_rank * stack, in_features=columns, out_features=rows)


def _notes(model: ModelShape, experts: tuple[AdapterPiece, ...]) -> tuple[str, ...]:
    if experts:
        params = sum(piece.params for piece in experts)
        return (f"{params:,} of the adapter's parameters are on experts and routers (PEFT reaches them by name).",)
    if model.expert_params:
        return ("No expert carries an adapter: they are no nn.Linear in transformers 5.",)
    return ()


def _matching(name: str, model: ModelShape) -> tuple[LinearShape, ...]:
    linears = tuple(linear for linear, _ in model.linear_counts)
    if name == ALL_LINEAR:
        return linears
    return tuple(linear for linear in linears if linear.name == name or linear.name.endswith(f".{name}"))


def _all_leaves(model: ModelShape) -> tuple[str, ...]:
    experts = _expert_names(model)
    return tuple(dict.fromkeys([*(linear.leaf for linear, _ in model.linear_counts), *experts]))


def _leaves(model: ModelShape) -> str:
    leaves = _all_leaves(model)
    return ", ".join(leaves[:_SHOWN]) + (", ..." if len(leaves) > _SHOWN else "")


def _unknown(name: str, model: ModelShape) -> Problem:
    near = difflib.get_close_matches(re.sub(r".*\.", "", name), _all_leaves(model), n=3, cutoff=0.4)
    return Problem(
        where="adapter.targets",
        found=f"{name!r} names no linear module of a layer of {model.name}",
        remedy=f"The nearest: {', '.join(near)}." if near else f"Use {ALL_LINEAR} or some of {_leaves(model)}.",
    )
