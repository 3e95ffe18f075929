"""Which rank holds which bytes of each layer, and in which tier."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any, Final

from orchestrator.weights.layout import ALIGNMENT_BYTES, BaseLayout, aligned

NVME_ALIGNMENT_BYTES: Final = 4096  # of each piece in a file: a page, as unbuffered reads want it


class Tier(Enum):
    """Where a rank keeps its bytes between uses."""

    device = "device"
    host = "host"
    nvme = "nvme"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes [begin, end) of a layer's extent that one rank keeps in one tier."""

    rank: int
    tier: Tier
    begin: int
    end: int

    def __post_init__(self) -> None:
        """Reject pieces without bytes, or off the alignment."""
        if not 0 <= self.begin < self.end or self.begin % ALIGNMENT_BYTES or self.end % ALIGNMENT_BYTES:
            raise ValueError(f"bytes [{self.begin}, {self.end}) are no aligned piece")

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The pieces of every layer.

    Attributes:
        world_size: ranks that hold one copy of the layers between them.
        layers: the pieces of each layer in order; they cover its extent, each rank's in one run. Empty for a layer
            that every rank holds whole on its device.
    """

    world_size: int
    layers: tuple[tuple[Piece, ...], ...]

    def __post_init__(self) -> None:
        """Reject gaps, overlaps, and ranks that do not exist."""
        for at, pieces in enumerate(self.layers):
            behind, rank = 0, 0
            for piece in pieces:
                if piece.begin != behind:
                    raise ValueError(f"layer {at}: a gap or an overlap at byte {behind}")
                if not rank <= piece.rank < self.world_size:
                    raise ValueError(f"layer {at}: rank {piece.rank} after rank {rank} of {self.world_size}")
                behind, rank = piece.end, piece.rank

    @property
    def residents(self) -> frozenset[int]:
        """Layers that every rank holds whole."""
        return frozenset(at for at, pieces in enumerate(self.layers) if not pieces)

    def check(self, layout: BaseLayout) -> None:
        """Make sure that the cut is one of this layout.

        Raises:
            ValueError: it is not.
        """
        if len(self.layers) != layout.num_layers:
            raise ValueError(f"a cut of {len(self.layers)} layers for {layout.num_layers}")
        for at, (pieces, nbytes) in enumerate(zip(self.layers, layout.layer_bytes, strict=True)):
            if pieces and pieces[-1].end != nbytes:
                raise ValueError(f"layer {at}: the pieces end at byte {pieces[-1].end} of {nbytes}")

    def counts(self, layer: int) -> tuple[int, ...]:
        """Bytes of each rank in a layer; all zero for a resident one."""
        found = [0] * self.world_size
        for piece in self.layers[layer]:
            found[piece.rank] += piece.nbytes
        return tuple(found)

    def held_bytes(self, rank: int, tier: Tier) -> int:
        """Bytes of all layers that a rank keeps in a tier, without residents."""
        return sum(p.nbytes for pieces in self.layers for p in pieces if p.rank == rank and p.tier is tier)

    @property
    def fingerprint(self) -> str:
        """Equal for equal cuts, on every machine."""
        return hashlib.sha256(json.dumps(to_json(self)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a piece lies in its rank's buffer (or file) of its tier.

    Attributes:
        at: first byte in the buffer.
    """

    layer: int
    piece: Piece
    at: int


def places(cut: Cut, rank: int, tier: Tier) -> tuple[Place, ...]:
    """Lay out a rank's buffer of a tier: its pieces in the order of the layers."""
    alignment = NVME_ALIGNMENT_BYTES if tier is Tier.nvme else ALIGNMENT_BYTES
    found: list[Place] = []
    at = 0
    for layer, pieces in enumerate(cut.layers):
        for piece in pieces:
            if piece.rank == rank and piece.tier is tier:
                found.append(Place(layer=layer, piece=piece, at=at))
                at = aligned(at + piece.nbytes, alignment)
    return tuple(found)


def buffer_bytes(found: Sequence[Place]) -> int:
    """Bytes of the buffer that `places` has laid out."""
    return found[-1].at + found[-1].piece.nbytes if found else 0


Shares = Sequence[Mapping[Tier, int]]


def cut_by_bytes(layout: BaseLayout, shares: Shares, residents: Sequence[int] = ()) -> Cut:
    """Cut every layer in proportion to what each rank shall hold in each tier.

    Over all layers a rank's bytes in a tier come to its proportion of the whole within `ALIGNMENT_BYTES` (as long as
    the layers are much larger than that): what rounding takes in one layer it gives back in the next.

    Args:
        layout: what to cut.
        shares: bytes (or any other weights) by tier, for each rank; zero and missing ones hold nothing.
        residents: layers that every rank holds whole.

    Raises:
        ValueError: negative shares, or none at all.
    """
    who = [(rank, tier) for rank in range(len(shares)) for tier in Tier]
    weights = [shares[rank].get(tier, 0) for rank, tier in who]
    total = sum(weights)
    if not total or min(weights) < 0:
        raise ValueError(f"nobody holds anything, or less than nothing: {weights}")
    ends = list(accumulate(weights))
    given = [0] * len(who)  # bytes so far before each end
    passed = 0
    layers: list[tuple[Piece, ...]] = []
    for layer, nbytes in enumerate(layout.layer_bytes):
        if layer in residents:
            layers.append(())
            continue
        passed += nbytes
        begin, pieces = 0, []
        for at, (rank, tier) in enumerate(who):
            end = _nearest(passed * ends[at] // total - given[at], begin, nbytes) if ends[at] < total else nbytes
            given[at] += end
            if weights[at] and end > begin:
                pieces.append(Piece(rank=rank, tier=tier, begin=begin, end=end))
            begin = max(begin, end)
        layers.append(tuple(pieces))
    return Cut(world_size=len(shares), layers=tuple(layers))


def _nearest(wanted: int, least: int, most: int) -> int:
    """Return the nearest aligned byte from `least` to `most`."""
    return min(max((wanted + ALIGNMENT_BYTES // 2) // ALIGNMENT_BYTES * ALIGNMENT_BYTES, least), most)


def cut_by_weights(
    layout: BaseLayout, weights: Sequence[int], tier: Tier = Tier.device, residents: Sequence[int] = ()
) -> Cut:
    """Cut every layer in proportion to the ranks' weights, all in one tier; see `cut_by_bytes`."""
    return cut_by_bytes(layout, [{tier: weight} for weight in weights], residents)


def even_cut(layout: BaseLayout, world_size: int, residents: Sequence[int] = ()) -> Cut:
    """Cut every layer evenly, on the devices."""
    return cut_by_weights(layout, [1] * world_size, residents=residents)


def resident_layers(layout: BaseLayout, room_bytes: int) -> tuple[int, ...]:
    """Which layers a device holds whole with so much room, spread evenly so that the others arrive at an even pace."""
    sizes = layout.layer_bytes
    number, least = 0, 0
    for size in sorted(sizes, reverse=True):  # whichever they are, the largest ones are room enough
        least += size
        if least > room_bytes:
            break
        number += 1
    return tuple(at for at in range(len(sizes)) if (at + 1) * number // len(sizes) > at * number // len(sizes))


def to_json(cut: Cut) -> dict[str, Any]:
    """Return plain values for a file."""
    rows = [[[p.rank, p.tier.value, p.begin, p.end] for p in pieces] for pieces in cut.layers]
    return {"schema": 1, "world_size": cut.world_size, "layers": rows}


def from_json(body: Mapping[str, Any]) -> Cut:
    """Read what `to_json` wrote.

    Raises:
        ValueError: the body is no cut.
    """
    try:
        layers = tuple(
            tuple(Piece(rank=rank, tier=Tier(tier), begin=begin, end=end) for rank, tier, begin, end in rows)
            for rows in body["layers"]
        )
        return Cut(world_size=body["world_size"], layers=layers)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no cut of layers: {error!r}") from error
