"""Messages of packets: a header that says whether the sender's gradients were finite, then its chunks' packets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

import torch

from orchestrator.compress import topk
from orchestrator.compress.clock import Clock
from orchestrator.planner.compression import CHUNK, HEADER_BYTES, WHOLE_TILE_CHUNKS, Codec

_TILE_CHUNKS: Final = 64  # 1 MiB of fp32: what is written by one operation is still in the cache for the next


def tiles(num_chunks: int, device: torch.device, codec: Codec) -> Iterator[slice]:
    """Cut rows of chunks into pieces that are worked on one after the other; on CUDA all at once, if few are kept."""
    step = _TILE_CHUNKS
    if device.type == "cuda":
        step = WHOLE_TILE_CHUNKS if codec.kept == CHUNK else max(1, num_chunks)
    for begin in range(0, num_chunks, step):
        yield slice(begin, min(num_chunks, begin + step))


def slices(counts: Sequence[int]) -> list[slice]:
    """Where parts that follow one another begin and end."""
    return [slice(begin, end) for begin, end in pairwise((0, *accumulate(counts)))]


def seal(packets: torch.Tensor, parts: Sequence[int], bad: torch.Tensor, codec: Codec) -> torch.Tensor:
    """Put the packets into one message for each part of the chunks, the messages one after the other.

    Args:
        packets: uint8 [chunks, chunk_bytes].
        parts: numbers of chunks.
        bad: whether a gradient of this rank was not finite.
        codec: of the packets.
    """
    flat = packets.new_empty(sum(map(codec.message_bytes, parts)))
    for message, rows in zip(_cut(flat, parts, codec), slices(parts), strict=True):
        message[:HEADER_BYTES].zero_()
        message[0] = bad
        message[HEADER_BYTES:].copy_(packets[rows].reshape(-1))
    return flat


def unseal(flat: torch.Tensor, parts: Sequence[int], codec: Codec) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Take messages apart.

    Returns:
        The packets of each, and whether any of the senders had a gradient that was not finite.
    """
    messages = list(_cut(flat, parts, codec))
    packets = [message[HEADER_BYTES:].view(-1, codec.chunk_bytes) for message in messages]
    return packets, torch.stack([message[0] != 0 for message in messages]).any()


def _cut(flat: torch.Tensor, parts: Sequence[int], codec: Codec) -> Iterator[torch.Tensor]:
    return (flat[place] for place in slices([codec.message_bytes(part) for part in parts]))


def take_out(accumulated: torch.Tensor, codec: Codec, packets: torch.Tensor, clock: Clock) -> torch.Tensor:
    """Fill `packets` with the largest of each chunk, and leave in `accumulated` what they do not say.

    Returns:
        Whether all of it was finite before.
    """
    with clock.phase("select"):
        places = topk.places_of(accumulated, codec)
    with clock.phase("encode"):
        made, finite = topk.take_out(accumulated, places, codec)
        packets.copy_(made)
    return finite


def sum_into(sets: Sequence[torch.Tensor], codec: Codec, out: torch.Tensor) -> None:
    """Write the sum of several packets of the same chunks, in their order, which is the same on all ranks."""
    for at, packets in enumerate(sets):
        topk.decode(packets, codec, out=out, add=at > 0)


def mean_into(sets: Sequence[torch.Tensor], codec: Codec, out: torch.Tensor, divisor: float) -> torch.Tensor:
    """Write the sum of the packets divided by `divisor`, rounded once to the type of `out` [chunks, CHUNK].

    Returns:
        Whether the type of `out` was too small for some of it, which only fp16 is.
    """
    scratch: torch.Tensor | None = None
    bad = torch.zeros((), dtype=torch.bool, device=out.device)
    for rows in tiles(len(out), out.device, codec):
        piece = out[rows]
        if out.dtype is torch.float32:
            exact = piece
        elif scratch is None or len(scratch) != len(piece):
            exact = scratch = torch.empty_like(piece, dtype=torch.float32)
        else:
            exact = scratch
        sum_into([packets[rows] for packets in sets], codec, exact)
        exact.div_(divisor)
        if exact is not piece:
            piece.copy_(exact)
        bad = bad | too_large(piece)
    return bad


def too_large(mean: torch.Tensor) -> torch.Tensor:
    """Whether a mean was rounded to infinity, which only fp16 is too small for; no host waits for it."""
    if mean.dtype is not torch.float16 or not mean.numel():
        return torch.zeros((), dtype=torch.bool, device=mean.device)
    return torch.stack(torch.aminmax(mean)).isfinite().all().logical_not()
