"""Packets of the largest elements of each chunk: encode, decode, and encode with what is left over.

A tensor is cut into chunks of 4,096 elements. Each chunk becomes a packet of `Codec.chunk_bytes` bytes, whatever it
holds, so that sizes are known beforehand and nothing waits for the device:

    places   12 bits each, ascending, two in three bytes: the bytes of `first | second << 12`, lowest byte first.
             Left out where everything is kept; values are then those of the chunk in order.
    values   in the order of the places: fp32 or bf16, lowest byte first; int8; or 4 bits, two in a byte, the first in
             the low half. See `orchestrator.compress.values` for their levels.
    scale    4 bytes, for int8 and int4 only.

Kept are the `kept` elements with the largest magnitudes; of equal magnitudes the one at the lower place goes first.
Magnitudes are compared as bits without the sign: an infinity is above all numbers and a NaN above infinities, so one
that is in a chunk is always in its packet, and the few kept values say whether the whole input was finite.

`orchestrator.compress.reference` says the same slowly, in numpy. The 12-bit places follow SparseLoCo
(arXiv 2508.15706).
"""

from __future__ import annotations

from typing import Final

import torch

from orchestrator.compress.select import largest
from orchestrator.compress.values import from_bytes, to_bytes
from orchestrator.errors import Problem, RunFailed
from orchestrator.planner.compression import CHUNK, Codec, chunks_of

_PLACE_BITS: Final = 12
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1


def encode(x: torch.Tensor, codec: Codec) -> torch.Tensor:
    """Packets of x; never waits for the device, and looks at nothing but magnitudes: see `refuse_non_finite`.

    Args:
        x: fp32 [chunks, 4096].
        codec: how many values of a chunk, in which format.

    Returns:
        uint8 [chunks, chunk_bytes].
    """
    return encode_with_flag(x, codec)[0]


def encode_residual(x: torch.Tensor, codec: Codec) -> torch.Tensor:
    """Packets of x, and x becomes what they do not say: x - decode(packets).

    Exact for fp32 and bf16 values. For int8 and int4 the difference is rounded once, as fp32.

    Args:
        x: fp32 [chunks, 4096]; changed in place.
        codec: how many values of a chunk, in which format.

    Returns:
        uint8 [chunks, chunk_bytes].
    """
    return encode_residual_with_flag(x, codec)[0]


def encode_with_flag(x: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
    """Packets as of `encode`, and a bool tensor without dimensions: whether all of x is finite; nothing is raised.

    Packets of a tensor that is not finite hold no useful values.
    """
    packets, finite, _ = _encoded(x, places_of(x, codec), codec)
    return packets, finite


def encode_residual_with_flag(x: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
    """Packets as of `encode_residual`, and whether x was finite before: where it was not, x is spoilt."""
    return take_out(x, places_of(x, codec), codec)


def places_of(x: torch.Tensor, codec: Codec) -> torch.Tensor | None:
    """Places of what is kept of each chunk, ascending; None where everything is."""
    return None if codec.kept == CHUNK else largest(x, codec.kept)


def take_out(x: torch.Tensor, places: torch.Tensor | None, codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
    """The second part of `encode_residual_with_flag`, after `places_of`."""
    packets, finite, left = _encoded(x, places, codec)
    if places is None:
        x.copy_(left)
    else:
        x.scatter_(1, places, left)
    return packets, finite


def _encoded(
    x: torch.Tensor, places: torch.Tensor | None, codec: Codec
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packets of what is at the places, whether all was finite, and what is left there."""
    values = x.clone() if places is None else x.gather(1, places)  # packets never share memory with x
    finite = all_finite(values)
    coded, sent = to_bytes(values, codec)
    packets = coded if places is None else torch.cat((_packed(places), coded), dim=1)
    return packets, finite, values - sent


def decode(packets: torch.Tensor, codec: Codec, out: torch.Tensor | None = None, *, add: bool = False) -> torch.Tensor:
    """What packets say, zero elsewhere; never waits for the device.

    Args:
        packets: uint8 [chunks, chunk_bytes].
        codec: that they were made with.
        out: fp32 [chunks, 4096] to write to; a new one if None.
        add: add to `out` in place of overwriting it.

    Returns:
        fp32 [chunks, 4096]: `out` where it was given.
    """
    values = from_bytes(packets[:, codec.index_bytes :], codec)
    if codec.kept == CHUNK:
        if out is None:
            return values
        return out.add_(values) if add else out.copy_(values)
    places = _unpacked(packets[:, : codec.index_bytes])
    if out is None:
        return packets.new_zeros((len(packets), CHUNK), dtype=torch.float32).scatter_(1, places, values)
    if add:
        return out.scatter_add_(1, places, values)  # no place twice in a chunk: the order of adding does not matter
    return out.zero_().scatter_(1, places, values)


def pack(x: torch.Tensor, codec: Codec, where: str = "x") -> torch.Tensor:
    """Packets of a flat tensor of any length, the last chunk filled up with zeros.

    Args:
        x: fp32 [numel]; also empty.
        codec: how many values of a chunk, in which format.
        where: what the tensor is called in an error.

    Returns:
        uint8 [chunks_of(numel), chunk_bytes].

    Raises:
        RunFailed: an element is not finite.
    """
    refuse_non_finite(x, where)
    whole = x.new_zeros(chunks_of(x.numel()) * CHUNK, dtype=torch.float32)
    whole[: x.numel()] = x
    return encode(whole.view(-1, CHUNK), codec)


def unpack(packets: torch.Tensor, numel: int, codec: Codec) -> torch.Tensor:
    """What `pack` was given, as far as its packets say: fp32 [numel]."""
    return decode(packets, codec).view(-1)[:numel]


def all_finite(x: torch.Tensor) -> torch.Tensor:
    """Whether all elements are numbers, as a bool tensor without dimensions; does not wait for the device."""
    if not x.numel():
        return torch.ones((), dtype=torch.bool, device=x.device)
    low, high = torch.aminmax(x)  # both are NaN where one element is; one pass, no copy
    return low.isfinite() & high.isfinite()


def refuse_non_finite(x: torch.Tensor, where: str) -> None:
    """Raise where x holds an infinity or a NaN. Waits for the device.

    Raises:
        RunFailed: says where, how many, and the first.
    """
    if bool(all_finite(x)):
        return
    bad = (~x.isfinite()).view(-1).nonzero().view(-1)
    first = int(bad[0])
    found = (
        f"{len(bad)} of {x.numel()} elements are not finite, the first of them {x.view(-1)[first].item()} at {first}"
    )
    remedy = "Only finite values can be compressed; look for an overflow before this step, or set compress=none."
    raise RunFailed(Problem(where=where, found=found, remedy=remedy))


def _packed(places: torch.Tensor) -> torch.Tensor:
    """Ascending places [chunks, kept] as uint8 [chunks, index_bytes]."""
    place = places.to(torch.int32)
    word = place[:, ::2] | place[:, 1::2] << _PLACE_BITS
    rows, pairs = word.shape
    return word.view(torch.uint8).view(rows, pairs, 4)[:, :, :3].reshape(rows, 3 * pairs)


def _unpacked(coded: torch.Tensor) -> torch.Tensor:
    """Places [chunks, kept] as int64."""
    rows, pairs = len(coded), coded.shape[1] // 3
    word = torch.zeros((rows, pairs, 4), dtype=torch.uint8, device=coded.device)
    word[:, :, :3] = coded.reshape(rows, pairs, 3)
    word = word.view(torch.int32)
    return torch.cat((word & _PLACE_MASK, word >> _PLACE_BITS), dim=2).view(rows, 2 * pairs).to(torch.int64)
