"""Reads `config.json` for the families, and puts the parameters they declare together into a shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.errors import Problem, UserError
from orchestrator.workload.model import ModelShape, count_linears, linears_of
from orchestrator.workload.parameters import LINEAR_ROLES, LayerGroup, Parameter, Role

Config = Mapping[str, object]
# No model comes near; a damaged file that says more would only fill the memory.
MOST_LAYERS: Final = 10_000
_MOST: Final = 10**9
_NORM_PARTS: Final = 2  # `input_layernorm.weight`: a norm of the layer itself, none of its attention
_QK_NORMS: Final = frozenset({"q_norm", "k_norm", "q_layernorm", "k_layernorm"})


class Reader:
    """Typed look-ups in a configuration, that collect what is wrong instead of stopping at it."""

    def __init__(self, name: str, config: Config, names: Mapping[str, tuple[str, ...]], defaults: Config) -> None:
        """`names` are other spellings of a key, `defaults` stand in for absent ones."""
        self.name = name
        self.config = config
        self.names = names
        self.defaults = defaults
        self.problems: list[Problem] = []

    def get(self, key: str) -> object:
        """Value of a key, under any of its names; None when absent."""
        for spelling in (key, *self.names.get(key, ())):
            if self.config.get(spelling) is not None:
                return self.config[spelling]
        return self.defaults.get(key)

    def count(self, key: str, otherwise: int | None = None) -> int:
        """A whole number above 0; `otherwise` when absent. Notes a problem and returns 1 if it is anything else."""
        value = self.get(key)
        if value is None and otherwise is not None:
            return otherwise
        most = MOST_LAYERS if key == "num_hidden_layers" else _MOST
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most:
            return value
        is_more = isinstance(value, int | float) and value > most
        self.wrong(key, f"{value!r}, more than {most:,}" if is_more else f"{value!r} instead of a count")
        return 1

    def counts(self, key: str) -> tuple[int, ...] | None:
        """A list of layer indices; None when absent."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, list | tuple) and all(isinstance(x, int) and x >= 0 for x in value):
            return tuple(value)
        self.wrong(key, f"{value!r} instead of a list of layers")
        return ()

    def maybe(self, key: str) -> int:
        """A whole number above 0, or 0 when absent, None or 0."""
        return 0 if not self.get(key) else self.count(key)

    def flag(self, key: str, *, otherwise: bool = False) -> bool:
        """A truth value; `otherwise` when absent."""
        value = self.get(key)
        return otherwise if value is None else bool(value)

    def wrong(self, key: str, found: str) -> None:
        """Note a problem with a key."""
        remedy = "Take the file from the model's own folder."
        self.problems.append(Problem(where=f"{self.name}/config.json, {key}", found=found, remedy=remedy))

    def check(self) -> None:
        """Raise all problems noted so far.

        Raises:
            UserError: there are some.
        """
        if self.problems:
            raise UserError(*self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers every family shares."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int

    @property
    def queries(self) -> int:
        """Features of all query heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Features of all key heads."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All parameters of a model in the order of `named_parameters`; a tied head is in none of them.

    `before` and `after` hold full names, `layers` names within the layer. `head` is the module of the output head.
    """

    before: tuple[Parameter, ...]
    layers: tuple[tuple[Parameter, ...], ...]
    after: tuple[Parameter, ...]
    prefix: str = "model.layers"
    head: str = "lm_head"
    experts: int = 0
    experts_per_token: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one `model_type` is read and built. Defaults are those of transformers' configuration class.

    Attributes:
        layout: declares the parameters.
        names: other spellings of the shared keys.
        defaults: values of absent keys.
        nested: values of absent keys inside `text_config`, where files leave out what equals the default.
        widths: the MLP is this many times as wide as the hidden state when `intermediate_size` is absent.
        halves: `intermediate_size` counts this many projections together.
        kv_heads: key heads when the configuration does not tell; None for as many as heads.
        head_dim: width of a query head, where `head_dim` is absent or something else.
        tied: the head is tied when the configuration does not tell.
        norms_per_layer: where norms have no parameters; None counts them.
        layer_norm, gated_mlp: as in ModelShape.
        note: what to tell about every model of the family.
    """

    layout: Callable[[Sizes, Reader], Layout]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Config = field(default_factory=dict)
    nested: Config = field(default_factory=dict)
    widths: int = 0
    halves: int = 1
    kv_heads: Callable[[Reader, int], int] | None = None
    head_dim: Callable[[Reader], int] | None = None
    tied: bool = False
    norms_per_layer: int | None = None
    layer_norm: bool = False
    gated_mlp: bool = True
    note: str = ""


def read_sizes(reader: Reader, family: Family) -> Sizes:
    """The shared numbers of a configuration.

    Raises:
        UserError: keys are missing or are no counts (all of them at once).
    """
    hidden = reader.count("hidden_size")
    intermediate = reader.count("intermediate_size", family.widths * hidden or None)
    layers, heads = reader.count("num_hidden_layers"), reader.count("num_attention_heads")
    vocab = reader.count("vocab_size")
    kv_heads = family.kv_heads(reader, heads) if family.kv_heads else reader.count("num_key_value_heads", heads)
    own_dim = family.head_dim(reader) if family.head_dim else 0
    head_dim = own_dim or reader.count("head_dim", max(1, hidden // heads))
    max_positions = reader.count("max_position_embeddings", 0) if reader.get("max_position_embeddings") else 0
    reader.check()
    if not own_dim and reader.get("head_dim") is None and hidden % heads:
        reader.wrong("num_attention_heads", f"hidden_size {hidden} does not divide among num_attention_heads {heads}")
    if heads % kv_heads:
        found = f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        reader.wrong("num_key_value_heads", found)
    reader.check()
    return Sizes(
        hidden=hidden,
        intermediate=intermediate // family.halves,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        max_positions=max_positions,
    )


def skip_patterns(layout: Layout, *, tied: bool) -> tuple[str, ...]:
    """Modules that transformers 5.24 keeps from bitsandbytes: the head, and the table it is tied to.

    Its third rule, the module of the last parameter, names the head again: while weights are loaded nothing is tied
    yet, so every head has a parameter of its own, and it is the last.
    """
    tables = [parameter.module for parameter in layout.before if parameter.role is Role.embedding]
    return (layout.head, *(tables[:1] if tied else ()))


def is_skipped(module: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern names the module: as its beginning up to a dot, as a regular expression, or as its end."""
    for pattern in patterns:
        if module.endswith(pattern):
            return True
        try:
            if re.match(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))", module):
                return True
        except re.error:
            continue
    return False


def packed(layout: Layout, patterns: tuple[str, ...]) -> Layout:
    """Mark the weights that bitsandbytes packs: of nn.Linear and Conv1D, but for the modules of `patterns`."""

    def mark(parameter: Parameter, prefix: str) -> Parameter:
        is_packed = parameter.role in (Role.linear, Role.conv1d) and not is_skipped(prefix + parameter.module, patterns)
        return replace(parameter, packed=True) if is_packed else parameter

    return replace(
        layout,
        before=tuple(mark(x, "") for x in layout.before),
        after=tuple(mark(x, "") for x in layout.after),
        layers=tuple(tuple(mark(x, f"{layout.prefix}.{i}.") for x in layer) for i, layer in enumerate(layout.layers)),
    )


def grouped(layers: tuple[tuple[Parameter, ...], ...]) -> tuple[LayerGroup, ...]:
    """Equal layers together, the largest group first."""
    groups: dict[tuple[Parameter, ...], list[int]] = {}
    for index, layer in enumerate(layers):
        groups.setdefault(layer, []).append(index)
    found = [LayerGroup(layers=tuple(indices), parameters=layer) for layer, indices in groups.items()]
    return tuple(sorted(found, key=lambda group: -len(group.layers)))


def assembled(name: str, architecture: str, sizes: Sizes, layout: Layout, *, tied: bool) -> ModelShape:
    """The shape of a model whose packed weights are marked."""
    groups, outside = grouped(layout.layers), (*layout.before, *layout.after)

    def total(*roles: Role) -> int:
        return sum(group.elements(*roles) for group in groups) + sum(x.elements for x in outside if x.role in roles)

    linears = linears_of(groups[0].parameters)
    counts = count_linears(groups, outside)
    is_uniform = len(groups) == 1 and not any(x.role in LINEAR_ROLES for x in outside)
    norms = [x for x in groups[0].parameters if x.role is Role.norm and x.name.endswith("weight")]
    return ModelShape(
        name=name,
        architecture=architecture,
        hidden=sizes.hidden,
        intermediate=sizes.intermediate,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocab=sizes.vocab,
        tied=tied,
        max_positions=sizes.max_positions,
        linears=linears,
        embedding_params=total(Role.embedding),
        norm_params=total(Role.norm),
        head_params=total(Role.head),
        bias_params=total(Role.bias),
        norms_per_layer=sum(x.shape == (sizes.hidden,) and x.name.count(".") < _NORM_PARTS for x in norms),
        qk_norm=any(_QK_NORMS.intersection(x.name.split(".")) for x in norms),
        expert_params=total(Role.experts),
        other_params=total(Role.router, Role.other),
        experts=layout.experts,
        experts_per_token=layout.experts_per_token,
        expert_width=_expert_width(groups, sizes.hidden),
        prefix=layout.prefix,
        groups=groups,
        outside=outside,
        counts=() if is_uniform else tuple(counts.items()),
    )


def _expert_width(groups: tuple[LayerGroup, ...], hidden: int) -> int:
    """Width of one expert, from the stacked down projections (experts, hidden, width) in either order."""
    stacked = (x for group in groups for x in group.parameters if x.role is Role.experts)
    return next((x.elements // x.shape[0] // hidden for x in stacked if x.name.endswith("down_proj")), 0)
