"""Shapes of architectures without a formula, from the weights' headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Final

from orchestrator.errors import Problem, UserError
from orchestrator.workload.agreement import LAYER, longest
from orchestrator.workload.families import SUPPORTED
from orchestrator.workload.files import TensorInfo
from orchestrator.workload.layout import Config
from orchestrator.workload.model import LinearShape, ModelShape

_MATRIX: Final = 2
_NOTE: Final = (
    "Counted from the weights' headers: every matrix of a layer is taken for a linear module that bitsandbytes packs."
)


class Uncountable(UserError):
    """No formula knows the architecture and its headers do not tell; transformers can, on the meta device."""


def shape_from_headers(name: str, config: Config, tensors: Mapping[str, TensorInfo]) -> ModelShape:
    """Shape of a dense decoder of equal layers, whatever its architecture.

    Raises:
        Uncountable: the headers do not tell.
    """
    layers = longest(tensors)
    if "text_config" in config or "vision_config" in config:
        raise _refused(name, "it has more than a text decoder (text_config, vision_config)")
    if "quantization_config" in config:
        raise _refused(name, "its architecture is unknown and its weights are quantised")
    if not layers:
        raise _refused(name, "its architecture is unknown and it has no safetensors file to count")
    if any("expert" in rest for layer in layers.values() for rest in layer):
        raise _refused(name, "it is a mixture of experts")
    if len({tuple(sorted((rest, info.shape) for rest, info in layer.items())) for layer in layers.values()}) > 1:
        raise _refused(name, "its layers differ from each other")
    layer = next(iter(layers.values()))
    linears = _linears(layer)
    outside = [(key, info.shape) for key, info in tensors.items() if LAYER.fullmatch(key) is None]
    matrices = sorted((shape for _, shape in outside if len(shape) == _MATRIX), key=prod, reverse=True)
    if not linears or not matrices:
        raise _refused(name, "its weights hold no 2-D matrices where a decoder has them")
    vocab, hidden = matrices[0]
    has_head = matrices[1:2] == [matrices[0]]
    biases = sum(linear.out_features for linear in linears if linear.bias)
    head = vocab * hidden if has_head else 0
    embeddings = sum(prod(shape) for shape in matrices) - head
    rest = sum(info.elements for info in tensors.values()) - head - embeddings
    return replace(
        _draft(name, config, linears, len(layers)),
        hidden=hidden,
        vocab=vocab,
        tied=not has_head,
        embedding_params=embeddings,
        head_params=head,
        bias_params=len(layers) * biases,
        norm_params=rest - len(layers) * (sum(linear.weights for linear in linears) + biases),
        norms_per_layer=sum(info.shape == (hidden,) and key.endswith("weight") for key, info in layer.items()),
        qk_norm=any("q_norm" in key for key in layer),
        source="safetensors headers",
        notes=(_NOTE,),
    )


def _linears(layer: Mapping[str, TensorInfo]) -> tuple[LinearShape, ...]:
    return tuple(
        LinearShape(
            name=rest.removesuffix(".weight"),
            out_features=info.shape[0],
            in_features=info.shape[1],
            bias=rest.removesuffix("weight") + "bias" in layer,
        )
        for rest, info in sorted(layer.items())
        if len(info.shape) == _MATRIX and rest.endswith(".weight")
    )


def _draft(name: str, config: Config, linears: tuple[LinearShape, ...], layers: int) -> ModelShape:
    """Fill what headers cannot say from config.json; without it, one wide head stands in (same widths)."""
    hidden = min(min(linear.in_features, linear.out_features) for linear in linears)
    widest = max(max(linear.in_features, linear.out_features) for linear in linears)
    heads = _positive(config.get("num_attention_heads"), 1)
    width = _positive(config.get("hidden_size"), hidden)
    return ModelShape(
        name=name,
        architecture=str(config.get("model_type") or "unknown"),
        hidden=width,
        intermediate=_positive(config.get("intermediate_size"), widest),
        layers=layers,
        heads=heads,
        kv_heads=_positive(config.get("num_key_value_heads"), heads),
        head_dim=_positive(config.get("head_dim"), max(1, width // heads)),
        vocab=1,
        tied=False,
        max_positions=_positive(config.get("max_position_embeddings"), 0),
        linears=linears,
        embedding_params=0,
        norm_params=0,
        head_params=0,
        bias_params=0,
    )


def _positive(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise


def _refused(name: str, found: str) -> Uncountable:
    remedy = f"Use 16- or 32-bit weights of a dense decoder; known from config.json: {', '.join(SUPPORTED)}."
    return Uncountable(Problem(where=f"model {name}", found=found, remedy=remedy))
