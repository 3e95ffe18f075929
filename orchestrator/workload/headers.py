"""Model shapes from safetensors headers: a check of the known architectures, a way in for the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Final

from orchestrator.errors import Problem, UserError
from orchestrator.workload.families import SUPPORTED, Config, is_known, shape_from_config
from orchestrator.workload.files import TensorInfo, read_config, read_headers
from orchestrator.workload.model import LinearShape, ModelShape

_LAYER: Final = re.compile(r"(?P<prefix>.*?\.)(?P<index>\d+)\.(?P<rest>.+)")
_FLOATS: Final = frozenset({"BF16", "F16", "F32", "F64"})
_SHOWN = 5
_MATRIX = 2


def load_shape(folder: Path, name: str = "") -> ModelShape:
    """Shape of the model in `folder`: computed from config.json and checked against its weights.

    Raises:
        UserError: files are missing or damaged, disagree, or the architecture cannot be counted.
    """
    try:
        return _load_shape(folder, name)
    except ValueError as error:  # counts that no shape can have
        raise UserError(
            Problem(
                where=str(folder / "config.json"),
                found=str(error).rstrip(". "),
                remedy="Take config.json and the weights from the model's own folder.",
            )
        ) from error


def _load_shape(folder: Path, name: str) -> ModelShape:
    config, tensors = read_config(folder), read_headers(folder)
    name = name or folder.name
    quantised = sorted({info.dtype for info in tensors.values()} - _FLOATS)
    if quantised:
        raise _refused(name, f"its weights hold {', '.join(quantised)}: they are quantised already")
    kind = config.get("model_type")
    if kind is not None and not isinstance(kind, str):
        found = f"model_type {kind!r} is no name of an architecture"
        remedy = "Take the file from the model's own folder."
        raise UserError(Problem(where=str(folder / "config.json"), found=found, remedy=remedy))
    if not is_known(config):
        return _shape_from_headers(name, config, tensors)
    shape = shape_from_config(name, config)
    if tensors:
        _check(shape, tensors, folder)
    return shape


def _check(shape: ModelShape, tensors: Mapping[str, TensorInfo], folder: Path) -> None:
    layers = _by_layer(tensors)
    faults = [f"{len(layers)} layers instead of {shape.layers}"] if len(layers) != shape.layers else []
    for index, layer in sorted(layers.items()):
        for linear in shape.linears:
            found = layer.get(f"{linear.name}.weight")
            wanted = (linear.out_features, linear.in_features)
            if found is None or found.shape != wanted:
                faults.append(f"layer {index}, {linear.name}: {found.shape if found else 'absent'}, not {wanted}")
    outside = [info.shape for name, info in tensors.items() if _LAYER.fullmatch(name) is None]
    wanted_matrices = 1 if shape.tied else 2
    if outside.count((shape.vocab, shape.hidden)) < wanted_matrices:
        faults.append(f"fewer than {wanted_matrices} of ({shape.vocab}, {shape.hidden}) (embeddings and head)")
    if faults:
        more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise UserError(
            Problem(
                where=str(folder),
                found=f"config.json and the weights disagree: {'; '.join(faults[:_SHOWN])}{more}",
                remedy="Download or save the model again.",
            )
        )


def _by_layer(tensors: Mapping[str, TensorInfo]) -> dict[int, dict[str, TensorInfo]]:
    """Tensors of the longest repeated prefix, by layer and name within it."""
    prefixes: defaultdict[str, dict[int, dict[str, TensorInfo]]] = defaultdict(lambda: defaultdict(dict))
    for name, info in tensors.items():
        if match := _LAYER.fullmatch(name):
            prefixes[match["prefix"]][int(match["index"])][match["rest"]] = info
    return max(prefixes.values(), key=len, default={})


def _shape_from_headers(name: str, config: Config, tensors: Mapping[str, TensorInfo]) -> ModelShape:
    layers = _by_layer(tensors)
    if "text_config" in config or "vision_config" in config:
        raise _refused(name, "it has more than a text decoder (text_config, vision_config)")
    if not layers:
        raise _refused(name, "its architecture is unknown and it has no safetensors file to count")
    if any("expert" in rest for layer in layers.values() for rest in layer):
        raise _refused(name, "it is a mixture of experts")
    if len({tuple(sorted((rest, info.shape) for rest, info in layer.items())) for layer in layers.values()}) > 1:
        raise _refused(name, "its layers differ from each other")
    layer = next(iter(layers.values()))
    linears = _linears(layer)
    outside = [(key, info.shape) for key, info in tensors.items() if _LAYER.fullmatch(key) is None]
    matrices = sorted((shape for _, shape in outside if len(shape) == _MATRIX), key=prod, reverse=True)
    if not linears or not matrices:
        raise _refused(name, "its weights hold no 2-D matrices where a decoder has them")
    vocab, hidden = matrices[0]
    has_head = matrices[1:2] == [matrices[0]]
    draft = _draft(name, config, linears, len(layers))
    biases = sum(linear.out_features for linear in linears if linear.bias)
    total = sum(prod(info.shape) for info in tensors.values())
    head = vocab * hidden if has_head else 0
    embeddings = sum(prod(shape) for shape in matrices) - head
    rest = total - len(layers) * (sum(linear.weights for linear in linears) + biases) - head - embeddings
    return replace(
        draft,
        hidden=hidden,
        vocab=vocab,
        tied=not has_head,
        embedding_params=embeddings,
        head_params=head,
        bias_params=len(layers) * biases,
        norm_params=rest,
        norms_per_layer=sum(info.shape == (hidden,) and key.endswith("weight") for key, info in layer.items()),
        qk_norm=any("q_norm" in key for key in layer),
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


def _refused(name: str, found: str) -> UserError:
    remedy = f"Use 16- or 32-bit weights of a dense decoder; known from config.json: {', '.join(SUPPORTED)}."
    return UserError(Problem(where=f"model {name}", found=found, remedy=remedy))
