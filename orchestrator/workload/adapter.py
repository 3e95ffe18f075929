"""LoRA adapters in numbers: which modules and parameters carry one, and how many parameters train."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

from orchestrator.config import AdapterConfig
from orchestrator.errors import Problem, UserError
from orchestrator.workload.model import LinearShape, ModelShape
from orchestrator.workload.parameters import Parameter, Role

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterPiece:
    """Pairs of low-rank matrices of one size: A is (rank, in), B is (out, rank).

    Attributes:
        name: of the module or parameter, within its layer.
        count: how many of them the model has.
        rank: of each; an adapter of stacked experts has the rank times their number.
        in_features, out_features: of what it adapts.
    """

    name: str
    count: int
    rank: int
    in_features: int
    out_features: int

    @property
    def params(self) -> int:
        """Trainable parameters of all of them."""
        return self.count * self.rank * (self.in_features + self.out_features)

    @property
    def largest(self) -> int:
        """Elements of the larger matrix."""
        return self.rank * max(self.in_features, self.out_features)


@dataclass(frozen=True, kw_only=True)  # no slots: what follows from the fields is reckoned once
class AdapterShape:
    """LoRA of one rank on some linear modules of every layer.

    Attributes:
        rank: width of the bottleneck.
        targets: the linear modules of a layer that carry an adapter (of a layer of the largest group, where layers
            differ).
        layers: layers of the model.
        dropout: dropout on the adapter's input, which then keeps a copy and a mask of it.
        pieces: all adapters of the model, where layers differ or more than their linear modules carry one; empty
            for `targets` in every layer.
        notes: what the user may not expect.
    """

    rank: int
    targets: tuple[LinearShape, ...]
    layers: int
    dropout: float = 0.0
    pieces: tuple[AdapterPiece, ...] = ()
    notes: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """A few numbers: functions that keep what they counted of adapters ask for it often."""
        return hash((self.rank, self.layers, len(self.targets), len(self.pieces)))

    @cached_property
    def all_pieces(self) -> tuple[AdapterPiece, ...]:
        """Every adapter of the model."""
        return self.pieces or tuple(_piece(target, self.layers, self.rank) for target in self.targets)

    @property
    def params_per_layer(self) -> int:
        """Trainable parameters of one layer (the mean, rounded up, where layers differ)."""
        return -(-self.params // self.layers)

    @cached_property
    def params(self) -> int:
        """Trainable parameters of the model."""
        return sum(piece.params for piece in self.all_pieces)

    @cached_property
    def tensors(self) -> int:
        """Trainable tensors of the model (A and B of every target)."""
        return 2 * sum(piece.count for piece in self.all_pieces)

    @cached_property
    def largest_tensor(self) -> int:
        """Elements of the largest trainable tensor."""
        return max(piece.largest for piece in self.all_pieces)


def adapter_shape(model: ModelShape, config: AdapterConfig) -> AdapterShape:
    """Match `config.targets` as PEFT does: `all-linear`, or the end of a module's dotted name.

    Raises:
        UserError: a target names no module (with the nearest names), or nothing would train.
    """
    names = tuple(name for name in config.targets if name)
    modules, stacked = _split(names, model)
    problems = tuple(_unknown(name, model) for name in modules if not _matching(name, model))
    problems += _half_fused(names, model)
    if config.rank < 1:
        problems += (Problem(where="adapter.rank", found=f"{config.rank}", remedy="Give a rank of at least 1."),)
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
    chosen = {linear for name in modules for linear in _matching(name, model)}
    experts = _expert_pieces(model, stacked, config.rank)
    modules_of_all = [(linear, count) for linear, count in model.linear_counts if linear in chosen]
    pieces = (*(_piece(linear, count, config.rank) for linear, count in modules_of_all), *experts)
    is_plain = model.is_uniform and not experts
    return AdapterShape(
        rank=config.rank,
        targets=tuple(linear for linear in model.linears if linear in chosen),
        layers=model.layers,
        dropout=config.dropout,
        pieces=() if is_plain else pieces,
        notes=_notes(model, experts),
    )


def _piece(linear: LinearShape, count: int, rank: int) -> AdapterPiece:
    return AdapterPiece(
        name=linear.name, count=count, rank=rank, in_features=linear.in_features, out_features=linear.out_features
    )


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
