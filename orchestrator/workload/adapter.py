"""LoRA adapters in numbers: which linear modules carry one, and how many parameters train."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from orchestrator.config import AdapterConfig
from orchestrator.errors import Problem, UserError
from orchestrator.workload.model import LinearShape, ModelShape

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """LoRA of one rank on some linear modules of every layer.

    Attributes:
        rank: width of the bottleneck.
        targets: the linear modules of a layer that carry an adapter.
        layers: layers of the model.
        dropout: dropout on the adapter's input, which then keeps a copy and a mask of it.
    """

    rank: int
    targets: tuple[LinearShape, ...]
    layers: int
    dropout: float = 0.0

    @property
    def params_per_layer(self) -> int:
        """Trainable parameters of one layer: A is rank x in, B is out x rank."""
        return sum(self.rank * (target.in_features + target.out_features) for target in self.targets)

    @property
    def params(self) -> int:
        """Trainable parameters of the model."""
        return self.layers * self.params_per_layer

    @property
    def tensors(self) -> int:
        """Trainable tensors of the model (A and B of every target)."""
        return 2 * self.layers * len(self.targets)

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest trainable tensor."""
        return self.rank * max(max(target.in_features, target.out_features) for target in self.targets)


def adapter_shape(model: ModelShape, config: AdapterConfig) -> AdapterShape:
    """Match `config.targets` as PEFT does: `all-linear`, or the end of a module's dotted name.

    Raises:
        UserError: a target names no module (with the nearest names), or nothing would train.
    """
    names = tuple(name for name in config.targets if name)
    problems = tuple(
        _unknown(name, model) for name in names if name != ALL_LINEAR and not _matching(name, model.linears)
    )
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
    chosen = {linear.name for name in names for linear in _matching(name, model.linears)}
    targets = tuple(linear for linear in model.linears if linear.name in chosen)
    return AdapterShape(rank=config.rank, targets=targets, layers=model.layers, dropout=config.dropout)


def _matching(name: str, linears: tuple[LinearShape, ...]) -> tuple[LinearShape, ...]:
    if name == ALL_LINEAR:
        return linears
    return tuple(linear for linear in linears if linear.name == name or linear.name.endswith(f".{name}"))


def _leaves(model: ModelShape) -> str:
    return ", ".join(linear.leaf for linear in model.linears)


def _unknown(name: str, model: ModelShape) -> Problem:
    near = difflib.get_close_matches(name, [linear.leaf for linear in model.linears], n=3, cutoff=0.4)
    return Problem(
        where="adapter.targets",
        found=f"{name!r} names no linear module of a layer of {model.name}",
        remedy=f"The nearest: {', '.join(near)}." if near else f"Use {ALL_LINEAR} or some of {_leaves(model)}.",
    )
