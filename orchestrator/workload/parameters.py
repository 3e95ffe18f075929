"""The parameters of a decoder by name: what each is, its shape, and whether bitsandbytes packs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod


class Role(StrEnum):
    """What a parameter is for, as far as storage and adapters care."""

    linear = "linear"  # weight of an nn.Linear
    conv1d = "conv1d"  # weight of transformers' Conv1D: an nn.Linear stored as (in, out)
    own_linear = "own_linear"  # weight of a subclass of nn.Linear: adapters reach it, bitsandbytes does not
    experts = "experts"  # all experts of a layer in one parameter
    router = "router"  # weight that chooses experts: no nn.Linear, or one that returns a tuple
    embedding = "embedding"
    head = "head"
    norm = "norm"
    bias = "bias"  # of a linear module or of the head
    other = "other"


# Subclasses of nn.Linear that return their result with the choice of experts. PEFT would wrap them for all-linear, and
# an adapter cannot add to a tuple, so all-linear leaves them out.
TUPLE_ROUTERS = frozenset({"Llama4Router", "PhimoeTopKRouter"})

LINEAR_ROLES = frozenset({Role.linear, Role.conv1d, Role.own_linear})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a model, or of each layer of a group.

    Attributes:
        name: within the layer (`self_attn.q_proj.weight`), or in the model when outside the layers.
        shape: as the module holds it: (out, in) for linear modules, (in, out) for Conv1D.
        role: what it is for.
        packed: bitsandbytes stores it in 4 or 8 bits when asked to.
        quant: `nf4`, `fp4`, `int8` or `none` where a pattern says how it is stored (`quant_pattern`); else empty.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    packed: bool = False
    quant: str = ""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def module(self) -> str:
        """Name of the module that holds the parameter."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that hold the same parameters, by their indices, ascending."""

    layers: tuple[int, ...]
    parameters: tuple[Parameter, ...]

    @property
    def layer_elements(self) -> int:
        """Elements of one layer."""
        return sum(x.elements for x in self.parameters)

    def elements(self, *roles: Role) -> int:
        """Elements of these roles in all layers of the group."""
        return len(self.layers) * sum(x.elements for x in self.parameters if x.role in roles)


def linear(
    name: str, out_features: int, in_features: int, *, bias: bool = False, role: Role = Role.linear
) -> tuple[Parameter, ...]:
    """Weight and, if any, bias of an `nn.Linear` called `name`."""
    weight = Parameter(name=f"{name}.weight", shape=(out_features, in_features), role=role)
    return (weight, Parameter(name=f"{name}.bias", shape=(out_features,), role=Role.bias)) if bias else (weight,)


def conv1d(name: str, out_features: int, in_features: int) -> tuple[Parameter, ...]:
    """Weight and bias of a transformers `Conv1D`, which stores its weight the other way round."""
    weight = Parameter(name=f"{name}.weight", shape=(in_features, out_features), role=Role.conv1d)
    return (weight, Parameter(name=f"{name}.bias", shape=(out_features,), role=Role.bias))


def norm(name: str, *shape: int, bias: bool = False) -> tuple[Parameter, ...]:
    """Weight and, if any, bias of a norm."""
    weight = Parameter(name=f"{name}.weight", shape=shape, role=Role.norm)
    return (weight, Parameter(name=f"{name}.bias", shape=shape, role=Role.norm)) if bias else (weight,)


def single(name: str, *shape: int, role: Role = Role.other) -> tuple[Parameter, ...]:
    """One parameter, by its full name."""
    return (Parameter(name=name, shape=shape, role=role),)


def embedding(name: str, rows: int, width: int) -> tuple[Parameter, ...]:
    """The table of an `nn.Embedding`."""
    return single(f"{name}.weight", rows, width, role=Role.embedding)


def head(name: str, vocab: int, hidden: int, *, bias: bool = False) -> tuple[Parameter, ...]:
    """The output head."""
    weight = single(f"{name}.weight", vocab, hidden, role=Role.head)
    return (*weight, Parameter(name=f"{name}.bias", shape=(vocab,), role=Role.bias)) if bias else weight
