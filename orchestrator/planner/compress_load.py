"""Sparse gradients of a model: elements, chunks and buckets of its adapters, and what they take of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.estimate.calibration import DDP_BUCKET_BYTES, Constant
from orchestrator.estimate.setting import Machine
from orchestrator.planner.compress_format import (
    CHUNK,
    HEADER_BYTES,
    WHOLE_TILE_CHUNKS,
    Codec,
    Exchange,
    Pattern,
    Sent,
    chunks_of,
)
from orchestrator.planner.compression import SparseSeconds
from orchestrator.workload.adapter import AdapterShape
from topology.units import MIB

_FIRST_BUCKET_BYTES: Final = MIB  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES


def _constant(value: float, unit: str, source: str) -> Constant:
    return Constant(value=value, unit=unit, source=source)


_CPU: Final = "measured, torch 2.13 on one busy AVX-512 core, 2M elements, density 1%, int8: the least of 12 runs"
_CPU_WHOLE: Final = "measured likewise, int4, processor time beside other work: the least of 400 runs"
SELECT_BYTES: Final = _constant(24, "bytes of memory traffic per element", "prior: a few passes of a selection")
ENCODE_BYTES: Final = _constant(
    12, "bytes of memory traffic per element", "counted: sum and residual, read and written"
)
DECODE_BYTES: Final = _constant(8, "bytes of memory traffic per element", "counted: zeroed, read and rounded once")
KEPT_BYTES: Final = _constant(
    64, "bytes of memory traffic per kept element", "prior: a scattered sum touches two lines"
)
LAUNCH_SECONDS: Final = _constant(4e-4, "seconds per bucket", "prior: some thirty kernels from Python")
CPU_SELECT_SECONDS: Final = _constant(1.6e-9, "seconds per element and core", _CPU)
CPU_ENCODE_SECONDS: Final = _constant(0.5e-9, "seconds per element and core", _CPU)
CPU_DECODE_SECONDS: Final = _constant(0.3e-9, "seconds per element and core", _CPU)
CPU_KEPT_SECONDS: Final = _constant(2.5e-8, "seconds per kept element and core", _CPU)
WHOLE_ENCODE_BYTES: Final = _constant(
    90, "bytes of memory traffic per element", "prior: a dozen operations of which each reads and writes"
)
WHOLE_DECODE_BYTES: Final = _constant(
    30, "bytes of memory traffic per element and packet", "prior: bytes parted, scaled, signed and added"
)
WHOLE_SCRATCH_BYTES: Final = _constant(
    24, "bytes per element at work", "counted: six of it in fp32, while it is coded or read"
)
CPU_WHOLE_ENCODE_SECONDS: Final = _constant(8e-9, "seconds per element and core", _CPU_WHOLE)
CPU_WHOLE_DECODE_SECONDS: Final = _constant(2.3e-9, "seconds per element, packet and core", _CPU_WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is exchanged in a step.

    Attributes:
        elements: of the adapters.
        chunks: of them.
        buckets: that they travel in.
        element_bytes: of a gradient.
    """

    elements: int
    chunks: int
    buckets: int
    element_bytes: int

    @property
    def bucket_chunks(self) -> int:
        """Chunks of one bucket, at most."""
        return -(-self.chunks // self.buckets)

    @property
    def bucket_sizes(self) -> tuple[tuple[int, int], ...]:
        """Chunks of a bucket, and how many buckets have as many."""
        each, more = divmod(self.chunks, self.buckets)
        return tuple((size, count) for size, count in ((each + 1, more), (each, self.buckets - more)) if count)

    def sent(self, pattern: Pattern, codec: Codec) -> Sent:
        """What rank 0, which sends the most, sends in a step."""
        found = [
            (pattern.sent(codec, size, 0, dense_bytes=self.element_bytes), count) for size, count in self.bucket_sizes
        ]
        return Sent(
            inside_bytes=sum(sent.inside_bytes * count for sent, count in found),
            across_bytes=sum(sent.across_bytes * count for sent, count in found),
            phases=sum(sent.phases * count for sent, count in found),
            messages=sum(sent.messages * count for sent, count in found),
        )

    def message_bytes(self, codec: Codec) -> int:
        """Bytes of all chunks, with a header for each bucket."""
        return codec.wire_bytes(self.chunks) + self.buckets * HEADER_BYTES

    @property
    def dense_bytes(self) -> int:
        """Of all gradients."""
        return self.elements * self.element_bytes


def load_of(adapter: AdapterShape, element_bytes: int) -> Load:
    """Elements, chunks and buckets of a model's adapters."""
    chunks = sum(
        piece.count * (chunks_of(piece.rank * piece.in_features) + chunks_of(piece.rank * piece.out_features))
        for piece in adapter.all_pieces
    )
    # DistributedDataParallel makes its first bucket small, so that its exchange begins early.
    rest = max(0, adapter.params * element_bytes - _FIRST_BUCKET_BYTES)
    buckets = 1 + -(-rest // DDP_BUCKET_BYTES)
    return Load(elements=adapter.params, chunks=chunks, buckets=buckets, element_bytes=element_bytes)


def device_seconds(pattern: Pattern, codec: Codec, load: Load, machine: Machine, on_wire: float) -> SparseSeconds:
    """What the device does: the own elements, then the part whose sum it selects from, then the result."""
    own = load.chunks * CHUNK // pattern.island
    again = 0 if pattern.exchange is Exchange.gather else own * pattern.island // pattern.ranks
    sets = pattern.ranks if pattern.exchange is Exchange.gather else 1 + 1 / pattern.island
    selected, whole = own + again, load.chunks * CHUNK
    kept = sets * load.chunks * codec.kept
    if codec.kept == CHUNK:
        return _of_everything(load, machine, on_wire, encoded=selected, decoded=kept)
    if machine.is_gpu:
        rate = machine.memory_bytes_per_second
        return SparseSeconds(
            select=load.buckets * LAUNCH_SECONDS.value + SELECT_BYTES.value * selected / rate,
            encode=ENCODE_BYTES.value * selected / rate,
            wire=on_wire,
            decode=(DECODE_BYTES.value * whole + KEPT_BYTES.value * kept) / rate,
        )
    cores = max(1.0, machine.cores)
    return SparseSeconds(
        select=CPU_SELECT_SECONDS.value * selected / cores,
        encode=CPU_ENCODE_SECONDS.value * selected / cores,
        wire=on_wire,
        decode=(CPU_DECODE_SECONDS.value * whole + CPU_KEPT_SECONDS.value * kept) / cores,
    )


def _of_everything(load: Load, machine: Machine, on_wire: float, *, encoded: float, decoded: float) -> SparseSeconds:
    """Where all elements travel there is nothing to select, and more to pack and unpack."""
    if machine.is_gpu:
        rate = machine.memory_bytes_per_second
        return SparseSeconds(
            select=0.0,
            encode=load.buckets * LAUNCH_SECONDS.value + WHOLE_ENCODE_BYTES.value * encoded / rate,
            wire=on_wire,
            decode=WHOLE_DECODE_BYTES.value * decoded / rate,
        )
    cores = max(1.0, machine.cores)
    return SparseSeconds(
        select=0.0,
        encode=CPU_WHOLE_ENCODE_SECONDS.value * encoded / cores,
        wire=on_wire,
        decode=CPU_WHOLE_DECODE_SECONDS.value * decoded / cores,
    )


def buffer_bytes(pattern: Pattern, codec: Codec, load: Load) -> int:
    """Of one bucket: packets sent and received, and where all elements travel what is at work on some of them."""
    message = codec.message_bytes(load.bucket_chunks)
    received = pattern.ranks if pattern.exchange is Exchange.gather else 2
    scratch = WHOLE_SCRATCH_BYTES.value * CHUNK * min(WHOLE_TILE_CHUNKS, load.bucket_chunks)
    return (1 + received) * message + (int(scratch) if codec.kept == CHUNK else 0)
