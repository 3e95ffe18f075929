"""Whether the weights' headers hold what a shape says.

Checkpoints keep the names of the version that wrote them: experts one by one, other prefixes, buffers beside
parameters. So what a layer holds under other names must at least be as many elements as the layer needs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

from orchestrator.workload.files import TensorInfo
from orchestrator.workload.model import ModelShape
from orchestrator.workload.parameters import Parameter, Role

LAYER: Final = re.compile(r"(?P<prefix>.*?\.)(?P<index>\d+)\.(?P<rest>.+)")
# Buffers of old checkpoints, and what bitsandbytes stores beside a packed weight.
_BESIDE: Final = re.compile(
    r".*(rotary_emb\.inv_freq|e_score_correction_bias|masked_bias|(attn|attention)\.bias|\.absmax|\.quant_map"
    r"|\.nested_absmax"
    r"|\.nested_quant_map|\.quant_state\.bitsandbytes__\w+|\.SCB|\.weight_format)"
)
_DTYPE_BYTES: Final = {"U8": 1, "I8": 1, "BF16": 2, "F16": 2, "F32": 4}

Layers = dict[int, dict[str, TensorInfo]]


def by_layer(tensors: Mapping[str, TensorInfo]) -> dict[str, Layers]:
    """Tensors of each repeated prefix, by layer and by name within it."""
    prefixes: defaultdict[str, Layers] = defaultdict(dict)
    for name, info in tensors.items():
        if match := LAYER.fullmatch(name):
            prefixes[match["prefix"]].setdefault(int(match["index"]), {})[match["rest"]] = info
    return dict(prefixes)


def longest(tensors: Mapping[str, TensorInfo]) -> Layers:
    """Tensors of the longest repeated prefix."""
    return max(by_layer(tensors).values(), key=len, default={})


def disagreements(shape: ModelShape, tensors: Mapping[str, TensorInfo], *, spare_layers: int = 0) -> list[str]:
    """What the headers hold otherwise than the shape; empty when they agree.

    Args:
        shape: a shape with names.
        tensors: the headers.
        spare_layers: layers after the last one that the weights may hold unused (heads that predict more tokens).
    """
    expected = {index: group.parameters for group in shape.groups for index in group.layers}
    prefix, layers = _decoder(tensors, expected[0])
    used = {index: layer for index, layer in layers.items() if index < shape.layers + spare_layers}
    found = min(len(layers), shape.layers) if len(used) == len(layers) else len(layers)
    faults = [f"{found} layers instead of {shape.layers}"] if found != shape.layers else []
    for index in sorted(set(expected) & set(layers)):
        faults += _of_layer(index, expected[index], layers[index], shape.prequantised)
    outside = [info for name, info in tensors.items() if not (prefix and name.startswith(prefix))]
    return [*faults, *_of_outside(shape, outside)]


def _decoder(tensors: Mapping[str, TensorInfo], expected: tuple[Parameter, ...]) -> tuple[str, Layers]:
    """The prefix whose layers are most like the expected ones, and its layers."""
    names = {parameter.name for parameter in expected}
    stacks = by_layer(tensors)
    return max(
        stacks.items(),
        key=lambda item: (len(names.intersection(next(iter(item[1].values())))), len(item[1])),
        default=("", {}),
    )


def _of_layer(
    index: int, expected: tuple[Parameter, ...], layer: Mapping[str, TensorInfo], prequantised: str
) -> list[str]:
    faults, missing = [], []
    for parameter in expected:
        found = layer.get(parameter.name)
        if found is None:
            missing.append(parameter)
        elif not _is_same(parameter, found, prequantised):
            faults.append(f"layer {index}, {_module(parameter)}: {found.shape}, not {parameter.shape}")
    names = {parameter.name for parameter in expected}
    extra = [info for name, info in layer.items() if name not in names and not _BESIDE.fullmatch(name)]
    surplus = sum(x.elements for x in extra)
    needed = [x for x in missing if x.role is not Role.norm]  # an absent norm loads as the identity
    if surplus in (sum(x.elements for x in missing), sum(x.elements for x in needed)):
        return faults  # the same elements under the names of another version
    return [
        *faults,
        *(f"layer {index}, {_module(x)}: absent, not {x.shape}" for x in needed),
        *_surplus(index, surplus),
    ]


def _surplus(index: int, elements: int) -> list[str]:
    return [f"layer {index}: {elements:,} elements that config.json does not tell of"] if elements else []


def _module(parameter: Parameter) -> str:
    return parameter.name.removesuffix(".weight")


def _is_same(parameter: Parameter, found: TensorInfo, prequantised: str) -> bool:
    if found.shape == parameter.shape:
        return True
    if not (prequantised and parameter.packed):
        return False
    if prequantised == "int8":  # a Conv1D is stored the way of an nn.Linear
        return parameter.role is Role.conv1d and found.shape == parameter.shape[::-1]
    # Two weights a byte, stored as bytes or as a wider type.
    return found.elements * _DTYPE_BYTES.get(found.dtype, 1) == -(-parameter.elements // 2)


def _of_outside(shape: ModelShape, outside: list[TensorInfo]) -> list[str]:
    """Tables, head and norms are compared by shape: their names change most."""
    is_packed = bool(shape.prequantised)
    wanted = Counter(x.shape for x in shape.outside if x.role is not Role.norm and not (is_packed and x.packed))
    found = Counter(info.shape for info in outside)
    faults = []
    tables = {x.shape for x in shape.outside if x.role in (Role.embedding, Role.head)}
    for size, count in wanted.items():
        if found[size] < count:
            what = "embeddings and head" if size in tables else "outside the layers"
            faults.append(f"fewer than {count} of {size} ({what})")
    return faults
