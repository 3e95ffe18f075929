"""Bytes of the decoder layers as engine `streamed` lays them out, and of what lies outside them.

All frozen tensors of a layer lie in one run of bytes, each at a multiple of 64 (`weights.layout`): packed weights,
their scales, norms, biases. What is in no layer stays whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from orchestrator.config import Quant
from orchestrator.estimate import calibration as c
from orchestrator.estimate.base import FOUR_BIT, kind_of
from orchestrator.estimate.setting import Setting
from orchestrator.workload.model import LinearShape, ModelShape
from orchestrator.workload.parameters import Parameter, Role

ALIGNMENT_BYTES: Final = 64
_FP32: Final = 4
_CODE_BYTES: Final = 16 * _FP32  # of each packed weight's own code book
_NESTED_CODE_BYTES: Final = 256 * _FP32  # one for all on a CPU, a copy for each weight on a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How the base is stored: what decides its bytes."""

    quant: Quant
    double_quant: bool
    load_bytes: int


def stored_of(setting: Setting) -> Stored:
    """How a setting stores its base."""
    return Stored(quant=setting.quant, double_quant=setting.double_quant, load_bytes=setting.load_bytes)


def aligned(number_bytes: int) -> int:
    """Round up to the alignment."""
    return -(-number_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@lru_cache(64)
def layer_bytes(model: ModelShape, stored: Stored) -> tuple[int, ...]:
    """Bytes of each decoder layer."""
    if not model.groups:
        rest = -(-_inner_rest(model) // model.layers)
        linears = sum(aligned(part) for x in model.linears for part in _weight_parts(x.weights, x, stored))
        return (linears + aligned(rest * stored.load_bytes),) * model.layers
    sizes = [0] * model.layers
    for group in model.groups:
        size = sum(aligned(part) for x in group.parameters for part in _parts(x, group.parameters, stored))
        for layer in group.layers:
            sizes[layer] = size
    return tuple(sizes)


@lru_cache(64)
def outside_bytes(model: ModelShape, stored: Stored, *, is_gpu: bool) -> int:
    """Bytes that every rank holds whole: embeddings, final norm, head, code books, biases of 8-bit modules."""
    packed = sum(count for linear, count in model.linear_counts if kind_of(linear, stored.quant) in FOUR_BIT)
    books = packed * _CODE_BYTES
    if stored.double_quant and packed:
        books += _NESTED_CODE_BYTES * (packed if is_gpu else 1)
    if not model.groups:
        return (model.unquantised_params - _inner_rest(model)) * stored.load_bytes + books
    outside = sum(part for x in model.outside for part in _parts(x, model.outside, stored))
    biases = sum(
        len(group.layers) * x.elements
        for group in model.groups
        for x in group.parameters
        if _stays(x, group.parameters, stored)
    )
    return outside + biases * stored.load_bytes + books


def slot_bytes(sizes: Iterable[int], window: int) -> int:
    """Bytes of a window: each streamed layer has a fixed slot, which is as large as its largest layer."""
    sizes = tuple(sizes)
    return sum(max(sizes[at::window]) for at in range(min(window, len(sizes))))


def resident_indices(sizes: tuple[int, ...], count: int) -> frozenset[int]:
    """Which layers are held whole when so many are, spread evenly (`weights.cut.resident_layers`)."""
    layers = len(sizes)
    return frozenset(at for at in range(layers) if (at + 1) * count // layers > at * count // layers)


def _inner_rest(model: ModelShape) -> int:
    """Elements of the layers that are no weights of linear modules, where only counts are known."""
    return model.norm_params + model.bias_params + model.expert_params + model.other_params


def _stays(parameter: Parameter, siblings: tuple[Parameter, ...], stored: Stored) -> bool:
    """Whether it is an 8-bit module's bias: bitsandbytes casts those in new memory, so they are in no layer."""
    return parameter.role is Role.bias and any(
        x.packed and x.module == parameter.module and _kind(x, stored) is Quant.int8 for x in siblings
    )


def _kind(parameter: Parameter, stored: Stored) -> Quant:
    """How a packed weight is stored."""
    return Quant(parameter.quant) if parameter.quant else stored.quant


def _parts(parameter: Parameter, siblings: tuple[Parameter, ...], stored: Stored) -> Iterator[int]:
    """Bytes of each tensor that a parameter is stored as."""
    if not parameter.packed or stored.quant is Quant.none:
        if not _stays(parameter, siblings, stored):
            yield parameter.elements * stored.load_bytes
        return
    first, second = parameter.shape
    rows, columns = (second, first) if parameter.role is Role.conv1d else (first, second)
    linear = LinearShape(name="", out_features=rows, in_features=columns, bias=False, quant=parameter.quant)
    yield from _weight_parts(parameter.elements, linear, stored)


def _weight_parts(elements: int, linear: LinearShape, stored: Stored) -> Iterator[int]:
    """Packed weight, scales, and under double quantisation the scales' own scales and their mean."""
    kind = kind_of(linear, stored.quant)
    if kind is Quant.none:
        yield elements * stored.load_bytes
        return
    if kind is Quant.int8:
        yield elements
        yield _FP32 * linear.out_features
        return
    blocks = -(-elements // c.BLOCK_WEIGHTS)
    yield -(-elements // 2)
    if not stored.double_quant:
        yield _FP32 * blocks
        return
    yield blocks
    yield _FP32 * -(-blocks // c.NESTED_BLOCK)
    yield _FP32
