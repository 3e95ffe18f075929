"""Where each frozen tensor of the decoder layers lies in its layer's run of bytes.

The frozen tensors of one decoder layer (packed weights, their scales, norms, biases) lie one after the other in one
run of bytes, the layer's extent. Bytes are never interpreted on the way: a view of the right type and shape restores
each tensor exactly, whatever its bit patterns mean.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

ALIGNMENT_BYTES: Final = (
    64  # of each tensor and each boundary of a cut: a cache line, and what GPU kernels read at once
)

ITEM_BYTES: Final[Mapping[str, int]] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}


class Role(Enum):
    """What a tensor is to its parameter."""

    packed = "packed"  # two 4-bit weights in a byte
    absmax = "absmax"  # scales of the blocks of a packed weight; 8-bit codes under double quantisation
    nested_absmax = "nested_absmax"  # scales of those codes
    nested_offset = "nested_offset"  # their mean, one number
    int8 = "int8"  # 8-bit weights
    int8_scale = "int8_scale"  # a scale for each of their rows
    plain = "plain"  # as it is: norms, biases, 16- and 32-bit weights


def aligned(number_bytes: int, alignment: int = ALIGNMENT_BYTES) -> int:
    """Round up to the alignment."""
    return -(-number_bytes // alignment) * alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenTensor:
    """A tensor that wants a place.

    Attributes:
        name: of the parameter inside its layer, such as `self_attn.q_proj.weight`.
        role: what of the parameter it is.
        dtype: as torch names it, without the prefix.
        shape: elements along each dimension; empty for a single number.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Reject types whose size is not known, and shapes that are none."""
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"{self.name}: no known type {self.dtype!r}")
        if any(length < 0 for length in self.shape):
            raise ValueError(f"{self.name}: shape {self.shape}")

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(FrozenTensor):
    """A tensor and its place.

    Attributes:
        offset: first byte inside the extent, a multiple of `ALIGNMENT_BYTES`.
    """

    offset: int

    def __post_init__(self) -> None:
        """Reject a place that no view could begin at."""
        # Named: `super()` without arguments knows only the class that `slots` has replaced.
        FrozenTensor.__post_init__(self)
        if self.offset < 0 or self.offset % ALIGNMENT_BYTES:
            raise ValueError(f"{self.name}: offset {self.offset} is not aligned to {ALIGNMENT_BYTES} bytes")

    @property
    def end(self) -> int:
        """First byte behind it."""
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The frozen bytes of one decoder layer.

    Attributes:
        items: in the order of their offsets, without overlap.
    """

    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        """Reject tensors that overlap or are named twice."""
        behind = 0
        for item in self.items:
            if item.offset < behind:
                raise ValueError(f"{item.name} ({item.role.value}) overlaps the tensor before it")
            behind = item.end
        if len({(item.name, item.role) for item in self.items}) < len(self.items):
            raise ValueError("a tensor is named twice in a layer")

    @property
    def nbytes(self) -> int:
        """Bytes of the run, filling to the alignment among them."""
        return aligned(max((item.end for item in self.items), default=0))

    @property
    def by_key(self) -> dict[tuple[str, Role], Item]:
        """The items by name and role."""
        return {(item.name, item.role): item for item in self.items}


def extent_of(tensors: Iterable[FrozenTensor]) -> Extent:
    """Give each tensor its place, in the given order."""
    items: list[Item] = []
    at = 0
    for tensor in tensors:
        items.append(Item(name=tensor.name, role=tensor.role, dtype=tensor.dtype, shape=tensor.shape, offset=at))
        at = aligned(items[-1].end)
    return Extent(items=tuple(items))


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseLayout:
    """The extents of all decoder layers, in the order in which a forward pass uses them; sizes may differ."""

    extents: tuple[Extent, ...]

    @property
    def num_layers(self) -> int:
        """How many decoder layers there are."""
        return len(self.extents)

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of each layer."""
        return tuple(extent.nbytes for extent in self.extents)

    @property
    def total_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(self.layer_bytes)

    @property
    def fingerprint(self) -> str:
        """Equal for equal layouts, on every machine."""
        return hashlib.sha256(json.dumps(to_json(self), sort_keys=True).encode()).hexdigest()


def to_json(layout: BaseLayout) -> dict[str, Any]:
    """Return plain values for a file."""
    return {
        "schema": 1,
        "extents": [
            [[item.name, item.role.value, item.dtype, list(item.shape), item.offset] for item in extent.items]
            for extent in layout.extents
        ],
    }


def from_json(body: Mapping[str, Any]) -> BaseLayout:
    """Read what `to_json` wrote.

    Raises:
        ValueError: the body is no layout.
    """
    try:
        extents = [
            Extent(
                items=tuple(
                    Item(name=name, role=Role(role), dtype=dtype, shape=tuple(shape), offset=offset)
                    for name, role, dtype, shape, offset in rows
                )
            )
            for rows in body["extents"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no layout of layers: {error!r}") from error
    return BaseLayout(extents=tuple(extents))
