"""The shape of a decoder: what each layer multiplies by, and how many parameters stay 16-bit."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from orchestrator.workload.parameters import LINEAR_ROLES, LayerGroup, Parameter, Role

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """One `nn.Linear` of a decoder layer; `name` is relative to the layer (`self_attn.q_proj`).

    `packed` is False where bitsandbytes leaves the module in 16 bits (a subclass of nn.Linear, a skipped module).
    `quant` is the kind of storage that a pattern gives it, empty where it is stored as all of the base.
    """

    name: str
    out_features: int
    in_features: int
    bias: bool
    packed: bool = True
    quant: str = ""

    @property
    def weights(self) -> int:
        """Elements of the weight, without the bias."""
        return self.out_features * self.in_features

    @property
    def leaf(self) -> str:
        """Last part of the name: what adapters are aimed at."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder, counted in parameters.

    `linears` are the linear modules of one layer. Where layers differ, it is a layer of the largest group, and
    `linear_counts` tells all. Embeddings, norms, head, biases, routers and experts held in one 3-D parameter keep
    the load dtype.

    Attributes:
        name: folder name, hub id or preset.
        architecture: `model_type` of config.json, or `unknown` when only headers were read.
        hidden, intermediate, layers, heads, kv_heads, head_dim, vocab: as in config.json.
        tied: the head shares the embedding's storage (`head_params` is then 0).
        max_positions: longest sequence in tokens; 0 when unknown.
        linears: the linear modules of one layer.
        embedding_params, norm_params, head_params, bias_params: of the whole model.
        norms_per_layer: norms over the residual stream in one layer.
        qk_norm: queries and keys are normed too.
        expert_params: of experts that a layer holds in single parameters.
        expert_linear_params: of `linear_params`, those of experts that are linear modules (`older`).
        other_params: routers, sinks and whatever else is none of the above.
        experts, experts_per_token, expert_width: of a layer with experts; 0 without. The width is that of one
            expert, as `intermediate` is that of a dense MLP.
        layer_norm: norms subtract the mean (LayerNorm), else RMSNorm.
        gated_mlp: the MLP multiplies two projections (gate and up).
        activation: of the MLP, as in config.json; empty when unknown.
        drops_residuals: layers apply dropout to what attention and the MLP return.
        logit_softcap, attention_softcap: logits, or attention scores, pass through a tanh.
        sliding_window: tokens that attention looks back in the layers that have a window; 0 without.
        windowed_layers: how many have one.
        dtype: of the weights as config.json tells it (`bfloat16`); empty when it does not.
        stored: dtypes of the weights file with their elements (`BF16`, 7241732096); empty without a file.
        prequantised: `nf4`, `fp4` or `int8` when the weights file is quantised by bitsandbytes already.
        double_quant: the scales of a prequantised file are quantised too.
        prefix: name that the layers' indices follow (`model.layers`).
        groups: all layers with their parameters by name; empty when only counts are known.
        outside: parameters outside the layers; empty when only counts are known.
        counts: linear modules with how often they occur, where layers differ or some are outside them.
        source: where the numbers come from.
        notes: what a reader should know about them.
    """

    name: str
    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    max_positions: int
    linears: tuple[LinearShape, ...]
    embedding_params: int
    norm_params: int
    head_params: int
    bias_params: int
    norms_per_layer: int = 2
    qk_norm: bool = False
    expert_params: int = 0
    other_params: int = 0
    expert_linear_params: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    layer_norm: bool = False
    gated_mlp: bool = True
    activation: str = ""
    drops_residuals: bool = False
    logit_softcap: bool = False
    attention_softcap: bool = False
    sliding_window: int = 0
    windowed_layers: int = 0
    dtype: str = ""
    stored: tuple[tuple[str, int], ...] = ()
    prequantised: str = ""
    double_quant: bool = False
    prefix: str = ""
    groups: tuple[LayerGroup, ...] = ()
    outside: tuple[Parameter, ...] = ()
    counts: tuple[tuple[LinearShape, int], ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject shapes no decoder can have."""
        counts = (self.hidden, self.intermediate, self.layers, self.heads, self.kv_heads, self.head_dim, self.vocab)
        if min(counts) < 1 or not self.linears:
            msg = f"{self.name}: every count of the shape must be at least 1 and a layer needs linear modules"
            raise ValueError(msg)
        if (self.sliding_window > 0) != (self.windowed_layers > 0) or not 0 <= self.windowed_layers <= self.layers:
            msg = f"{self.name}: {self.windowed_layers} of {self.layers} layers with a window of {self.sliding_window}"
            raise ValueError(msg)
        grouped = sorted(index for group in self.groups for index in group.layers)
        if self.groups and grouped != list(range(self.layers)):
            msg = f"{self.name}: the groups hold layers {grouped}, not 0 to {self.layers - 1}"
            raise ValueError(msg)

    def __hash__(self) -> int:
        """A few numbers: functions that keep what they counted of a model ask for it often."""
        return hash((self.name, self.layers, self.hidden, self.intermediate, self.vocab))

    @property
    def linear_counts(self) -> tuple[tuple[LinearShape, int], ...]:
        """Every linear module of the model but the head, with how often it occurs; names as in their layer."""
        return self.counts or _alike(self)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers hold the same linear modules and none is outside them."""
        return not self.counts

    @property
    def layer_linear_params(self) -> int:
        """Weights of the linear modules of one layer (of `linears`)."""
        return sum(linear.weights for linear in self.linears)

    @property
    def linear_params(self) -> int:
        """Weights of all linear modules but the head."""
        return _linear_params(self)

    @property
    def packed_params(self) -> int:
        """Weights that bitsandbytes packs."""
        return sum(count * linear.weights for linear, count in self.linear_counts if linear.packed)

    @property
    def active_params(self) -> int:
        """Weights that multiply each token in the layers: linear modules, and the chosen experts' share."""
        share = self.experts_per_token / self.experts if self.experts else 0
        idle = round(self.expert_linear_params * (1 - share))
        return self.linear_params - idle + round(self.expert_params * share)

    @property
    def unquantised_params(self) -> int:
        """Parameters that are no weights of linear modules: they keep the load dtype."""
        experts = self.expert_params + self.other_params
        return self.embedding_params + self.norm_params + self.head_params + self.bias_params + experts

    @property
    def total_params(self) -> int:
        """All parameters, a tied head counted once."""
        return self.linear_params + self.unquantised_params

    @property
    def largest_linear(self) -> int:
        """Weights of the largest linear module."""
        return max(linear.weights for linear, _ in self.linear_counts)

    @property
    def largest_param(self) -> int:
        """Elements of the largest single parameter: a table, or all experts of a layer."""
        named = [x.elements for group in self.groups for x in group.parameters] + [x.elements for x in self.outside]
        return max([*named, self.largest_linear, self.vocab * self.hidden if not named else 0])

    @property
    def largest_layer_params(self) -> int:
        """Elements of the largest layer."""
        if self.groups:
            return max(group.layer_elements for group in self.groups)
        return self.layer_linear_params + -(-(self.norm_params + self.bias_params) // self.layers)

    @property
    def query_width(self) -> int:
        """Features of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Features of all key (or value) heads together."""
        return self.kv_heads * self.head_dim

    @property
    def summary(self) -> str:
        """One line for people: size and shape."""
        size = self.total_params / 1e9
        text = f"{size:.2f}B" if size >= 1 else f"{self.total_params / 1e6:.1f}M"
        experts = f", {self.experts} experts ({self.experts_per_token} a token)" if self.experts else ""
        return (
            f"{self.name} ({self.architecture}, {text} parameters): {self.layers} layers, hidden {self.hidden}, "
            f"{self.heads} heads ({self.kv_heads} for keys), vocabulary {self.vocab}{experts}"
        )


def count_linears(groups: tuple[LayerGroup, ...], outside: tuple[Parameter, ...]) -> Counter[LinearShape]:
    """How often each linear module occurs; numbers within names become `*`."""
    counts: Counter[LinearShape] = Counter()
    for group in groups:
        for linear in linears_of(group.parameters):
            counts[replace(linear, name=_NUMBER.sub("*", linear.name))] += len(group.layers)
    for linear in linears_of(outside):
        counts[replace(linear, name=_NUMBER.sub("*", linear.name))] += 1
    return counts


@lru_cache(64)
def _alike(model: ModelShape) -> tuple[tuple[LinearShape, int], ...]:
    return tuple((linear, model.layers) for linear in model.linears)


@lru_cache(64)
def _linear_params(model: ModelShape) -> int:
    return sum(count * linear.weights for linear, count in model.linear_counts)


def linears_of(parameters: tuple[Parameter, ...]) -> tuple[LinearShape, ...]:
    """The linear modules among `parameters`, in their order."""
    names = {parameter.name for parameter in parameters}
    found = []
    for parameter in parameters:
        if parameter.role in LINEAR_ROLES:
            first, second = parameter.shape
            rows, columns = (second, first) if parameter.role is Role.conv1d else (first, second)
            found.append(
                LinearShape(
                    name=parameter.module,
                    out_features=rows,
                    in_features=columns,
                    bias=f"{parameter.module}.bias" in names,
                    packed=parameter.packed,
                    quant=parameter.quant,
                )
            )
    return tuple(found)
