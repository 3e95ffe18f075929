"""Sums compressed gradients over the ranks: the same bits on all of them, and a residual of all that was not said.

Three ways. Gather: everybody gets all packets. Split: each rank owns a range of chunks, sums what comes for it, selects
anew and hands the result to all; what the second selection drops stays in the owner's residual. Hierarchical: dense
sums inside an island, each rank for its part; one of the others across the islands; packets handed round inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from orchestrator.compress.clock import Clock
from orchestrator.compress.error_feedback import OwnRows, Step
from orchestrator.compress.packets import mean_into, seal, slices, sum_into, take_out, tiles, unseal
from orchestrator.compress.transport import Library, Transport
from orchestrator.planner.compression import Codec, parts_of

Shared = tuple[list[torch.Tensor], torch.Tensor]  # packets to be summed, each of all chunks; whether one was not finite


class Across(Protocol):
    """Exchanges packets of the same chunks among ranks."""

    transport: Transport

    @property
    def num_sets(self) -> int:
        """How many packets of each chunk come out."""
        ...

    def share(self, packets: torch.Tensor, residual: torch.Tensor, bad: torch.Tensor) -> Shared:
        """Exchange them; what is not said in the end is added to `residual`."""
        ...


class Gather:
    """Everybody gets all packets."""

    def __init__(self, transport: Transport, codec: Codec, clock: Clock) -> None:
        """Take what moves the bytes, their format, and who counts the time."""
        self.transport, self._codec, self._clock = transport, codec, clock

    @property
    def num_sets(self) -> int:
        """One of each rank."""
        return self.transport.size

    def share(self, packets: torch.Tensor, residual: torch.Tensor, bad: torch.Tensor) -> Shared:
        """Hand the packets round."""
        parts = [len(packets)] * self.transport.size
        with self._clock.phase("wire"):
            message = seal(packets, parts[:1], bad, self._codec)
            came = self.transport.all_gather(message, [message.numel()] * self.transport.size)
        return unseal(came, parts, self._codec)


class Split:
    """Each rank sums and selects for its range of chunks."""

    num_sets = 1

    def __init__(self, transport: Transport, codec: Codec, clock: Clock) -> None:
        """Take what moves the bytes, their format, and who counts the time."""
        self.transport, self._codec, self._clock = transport, codec, clock

    def share(self, packets: torch.Tensor, residual: torch.Tensor, bad: torch.Tensor) -> Shared:
        """Send packets to the owners of their chunks, sum, select anew, and hand that round."""
        size, rank, codec = self.transport.size, self.transport.rank, self._codec
        parts = parts_of(len(packets), size)
        counts = [codec.message_bytes(part) for part in parts]
        with self._clock.phase("wire"):
            came = self.transport.all_to_all(seal(packets, parts, bad, codec), counts)
        sets, bad = unseal(came.view(-1), [parts[rank]] * size, codec)
        own = self._select_anew(sets, residual[slices(parts)[rank]])
        with self._clock.phase("wire"):
            whole = self.transport.all_gather(seal(own, parts[rank : rank + 1], bad, codec), counts)
        selected, bad = unseal(whole, parts, codec)
        return [torch.cat(selected)], bad

    def _select_anew(self, sets: Sequence[torch.Tensor], residual: torch.Tensor) -> torch.Tensor:
        """Packets of the sum; what they do not say of it is added to the owner's residual."""
        selected = torch.empty_like(sets[0])
        for rows in tiles(len(residual), residual.device, self._codec):
            with self._clock.phase("decode"):
                total = torch.empty_like(residual[rows])
                sum_into([packets[rows] for packets in sets], self._codec, total)
            take_out(total, self._codec, selected[rows], self._clock)
            with self._clock.phase("encode"):
                residual[rows].add_(total)
        return selected


class Flat(OwnRows):
    """One exchange among all ranks."""

    def __init__(self, across: Across, codec: Codec, clock: Clock) -> None:
        """Take the exchange."""
        self._across, self._codec, self._clock = across, codec, clock

    def reduce(self, step: Step) -> torch.Tensor:
        """Write the mean over the ranks to `out`, and the new residual to `candidate`; see `Reducer`."""
        packets, bad = _encode([step.gradients], step, self._codec, self._clock)
        sets, bad = self._across.share(packets, step.candidate, bad)
        with self._clock.phase("decode"):
            return bad | mean_into(sets, self._codec, step.out, self._across.transport.size / step.scale)


class Hierarchical:
    """Dense inside an island, sparse across islands; ranks of an island follow each other in rank order."""

    def __init__(self, dense: Library, inside: Transport, across: Across, codec: Codec, clock: Clock) -> None:
        """Take what moves gradients in the island, what moves packets there, and the exchange across islands.

        Args:
            dense: among the ranks of the island, in their order.
            inside: likewise, in a group of its own.
            across: among the ranks of the same place in all islands.
            codec: of the packets.
            clock: counts the time.
        """
        self._dense, self._inside, self._across = dense, inside, across
        self._codec, self._clock = codec, clock

    def own(self, num_chunks: int) -> slice:
        """This rank's part of the island's sum."""
        return slices(parts_of(num_chunks, self._dense.size))[self._dense.rank]

    def adopt(self, whole: torch.Tensor) -> torch.Tensor:
        """Sum of the own rows over the island."""
        pieces = self._collect(whole)
        return torch.stack(pieces).sum(0) if len(pieces) > 1 else pieces[0].clone()

    def reduce(self, step: Step) -> torch.Tensor:
        """Write the mean over the ranks to `out`, and the new residual of the own rows to `candidate`; as `Flat`."""
        codec, parts = self._codec, parts_of(len(step.gradients), self._dense.size)
        with self._clock.phase("dense"):
            pieces = self._collect(step.gradients)
        packets, bad = _encode(pieces, step, codec, self._clock)
        own, bad = self._across.share(packets, step.candidate, bad)
        with self._clock.phase("wire"):
            message = seal(torch.cat(own), (sum(map(len, own)),), bad, codec)
            held = [part * self._across.num_sets for part in parts]
            whole = self._inside.all_gather(message, [codec.message_bytes(each) for each in held])
        with self._clock.phase("decode"):
            packed, bad = unseal(whole, held, codec)
            ranks = self._dense.size * self._across.transport.size
            for part, rows in zip(packed, slices(parts), strict=True):
                sets = part.tensor_split(self._across.num_sets)
                bad = bad | mean_into(sets, codec, step.out[rows], ranks / step.scale)
        return bad

    def _collect(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The own part of all ranks of the island, in their order."""
        return self._dense.swap([rows[part] for part in slices(parts_of(len(rows), self._dense.size))])


def _encode(
    pieces: Sequence[torch.Tensor], step: Step, codec: Codec, clock: Clock
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packets of residual and gradients; what they do not say is left in `candidate`.

    Returns:
        The packets, and whether something was not finite.
    """
    base, scale = step.base, step.scale
    packets = torch.empty((len(base), codec.chunk_bytes), dtype=torch.uint8, device=base.device)
    finite = [torch.ones((), dtype=torch.bool, device=base.device)]
    for rows in tiles(len(base), base.device, codec):
        accumulated = step.candidate[rows]
        with clock.phase("encode"):
            torch.add(base[rows], pieces[0][rows], alpha=1 / scale, out=accumulated)
            for piece in pieces[1:]:
                accumulated.add_(piece[rows], alpha=1 / scale)
        finite.append(take_out(accumulated, codec, packets[rows], clock))
    return packets, torch.stack(finite).all().logical_not()
