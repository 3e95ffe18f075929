"""What sparse gradients take in a world: bytes, seconds on the links, seconds of the device, memory.

Bytes are exact (`compression`). Links are those that the dense all-reduce is reckoned with: bus rates of the library's
all-gather over the wires of the machine, and of one inside an island. A collective among all ranks passes the port of
a host, or of an island, once for all its ranks; packets sent directly to their owners pass it for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orchestrator.config import Compress, CompressConfig, CompressExchange
from orchestrator.estimate.calibration import DDP_BUCKET_BYTES, GLOO_ALPHA_SECONDS, Constant
from orchestrator.estimate.setting import Machine, Sparse
from orchestrator.planner.compression import (
    CHUNK,
    HEADER_BYTES,
    Codec,
    Exchange,
    Pattern,
    Sent,
    SparseSeconds,
    chunks_of,
    codec_of,
    dense_sent_bytes,
)
from orchestrator.planner.rates import CPU_LINK_RATES
from orchestrator.planner.world import World
from orchestrator.workload.adapter import AdapterShape
from topology.units import MIB

_FP32: Final = 4
_FIRST_BUCKET_BYTES: Final = MIB  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
_TWO: Final = 2


def _constant(value: float, unit: str, source: str) -> Constant:
    return Constant(value=value, unit=unit, source=source)


_CPU: Final = "measured, torch 2.13 on one busy AVX-512 core, 2M elements, density 1%, int8: the least of 12 runs"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """Ranks that follow each other and are joined by faster links than all ranks."""

    ranks: int
    bytes_per_second: float
    alpha_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What joins the ranks.

    Attributes:
        ranks, hosts: of the world; one host where NVLink joins all.
        bytes_per_second: bus rate of an all-gather over all ranks.
        alpha_seconds: latency of one collective over all ranks.
        islands: to sum in densely first.
    """

    ranks: int
    hosts: int
    bytes_per_second: float
    alpha_seconds: float
    islands: tuple[Island, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to exchange sparse gradients, with what it takes.

    Attributes:
        pattern: who sends to whom.
        codec: of the packets.
        load: what is exchanged.
        seconds: of a step, piece by piece.
        sent_bytes: by rank 0 in a step.
        dense_bytes: that a dense all-reduce sends at least.
        bus_bytes: of `sent_bytes`, what counts against the bus rate of all ranks.
        cost: the same for the estimate.
    """

    pattern: Pattern
    codec: Codec
    load: Load
    seconds: SparseSeconds
    sent_bytes: int
    dense_bytes: int
    bus_bytes: float
    cost: Sparse

    def break_even(self, dense_seconds: float, wire: Wire) -> float | None:
        """Bus rate in bytes per second below which this is sooner done than dense sums; None: at any rate.

        Both exchanges are compared with nothing hidden; what does not depend on the rate of all ranks stays.
        """
        dense_fixed = max(0.0, dense_seconds - self.dense_bytes / wire.bytes_per_second)
        own_fixed = self.seconds.total - self.bus_bytes / wire.bytes_per_second
        if self.bus_bytes >= self.dense_bytes:
            return 0.0
        if own_fixed <= dense_fixed:
            return None
        return (self.dense_bytes - self.bus_bytes) / (own_fixed - dense_fixed)


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


def wire_of(world: World, machine: Machine) -> Wire:
    """What joins the ranks of a world."""
    hosts = 1 if world.one_fabric else len(world.hosts)
    alpha = machine.gather_alpha_seconds
    if alpha is None:
        alpha = (world.size - 1) * machine.link_alpha_seconds
    islands = [
        Island(ranks=group.ranks, bytes_per_second=group.bytes_per_second, alpha_seconds=group.alpha_seconds)
        for group in world.groups
    ]
    per_host = world.processes_per_node
    if not world.is_gpu and hosts > 1 and per_host > 1:
        latency = (per_host - 1) * GLOO_ALPHA_SECONDS.value
        islands.append(Island(ranks=per_host, bytes_per_second=CPU_LINK_RATES[1], alpha_seconds=latency))
    return Wire(
        ranks=world.size,
        hosts=hosts,
        bytes_per_second=machine.gather_bytes_per_second,
        alpha_seconds=alpha,
        islands=tuple(islands),
    )


def best_offer(config: CompressConfig, load: Load, wire: Wire, machine: Machine) -> Offer | None:
    """The exchange that takes the least time of those that the user leaves open; None where none is possible.

    Args:
        config: density, values, and the exchange if it is given.
        load: what is exchanged.
        wire: what joins the ranks.
        machine: the slowest device.
    """
    if config.name is Compress.none or wire.ranks == 1:
        return None
    codec = codec_of(config.density, config.values)
    found = [_offer(pattern, island, codec, load, wire, machine) for pattern, island in _open(config, wire)]
    return min(found, key=lambda offer: offer.seconds.total, default=None)


def _open(config: CompressConfig, wire: Wire) -> Iterator[tuple[Pattern, Island | None]]:
    """Patterns to weigh, the simplest first; a slower one of the same time is not taken."""
    wanted = config.exchange
    if wanted is CompressExchange.gather or (wanted is CompressExchange.auto and wire.ranks == _TWO):
        yield Pattern(exchange=Exchange.gather, ranks=wire.ranks), None
    if wanted is CompressExchange.split or (wanted is CompressExchange.auto and wire.ranks > _TWO):
        yield Pattern(exchange=Exchange.split, ranks=wire.ranks), None
    if wanted is CompressExchange.threshold:
        yield Pattern(exchange=Exchange.threshold, ranks=wire.ranks), None
    if wanted in (CompressExchange.auto, CompressExchange.hierarchical):
        for island in wire.islands:
            if 1 < island.ranks < wire.ranks:
                yield Pattern(exchange=Exchange.hierarchical, ranks=wire.ranks, island=island.ranks), island


def _offer(pattern: Pattern, island: Island | None, codec: Codec, load: Load, wire: Wire, machine: Machine) -> Offer:
    sent = load.sent(pattern, codec)
    bus_bytes = _bus_bytes(pattern, codec, load, wire)
    on_wire = bus_bytes / wire.bytes_per_second + load.buckets * _latency(pattern, island, wire)
    if island is not None:
        on_wire += sent.inside_bytes / island.bytes_per_second
    seconds = _device_seconds(pattern, codec, load, machine, on_wire)
    residual = 2 * (-(-load.chunks // pattern.island)) * CHUNK * _FP32
    buffers = _buffer_bytes(pattern, codec, load)
    return Offer(
        pattern=pattern,
        codec=codec,
        load=load,
        seconds=seconds,
        sent_bytes=sent.total_bytes,
        dense_bytes=dense_sent_bytes(load.dense_bytes, wire.ranks),
        bus_bytes=bus_bytes,
        cost=Sparse(
            wire_seconds=on_wire,
            codec_seconds=seconds.total - on_wire,
            sent_bytes=sent.total_bytes,
            residual_bytes=residual,
            count_bytes=load.elements * _FP32,
            buffer_bytes=buffers,
        ),
    )


def _bus_bytes(pattern: Pattern, codec: Codec, load: Load, wire: Wire) -> float:
    """Bytes through the port that limits all ranks: a rank's link, a host's ports, or those of an island."""
    ranks, whole = pattern.ranks, load.message_bytes(codec)
    if pattern.exchange is Exchange.gather:
        return (ranks - 1) * whole
    if pattern.exchange is Exchange.hierarchical:
        islands = ranks // pattern.island
        return 2 * (islands - 1) / islands * whole
    around = (ranks - 1) / ranks * whole
    direct = around
    if wire.hosts > 1:
        per_host = ranks // wire.hosts
        direct = per_host * (ranks - per_host) / ranks * whole
    if pattern.exchange is Exchange.threshold:
        words = load.sent(pattern, codec).across_bytes
        return words * direct / around
    return direct + around


def _latency(pattern: Pattern, island: Island | None, wire: Wire) -> float:
    """Of one bucket's exchange: each phase waits for the one before."""
    if pattern.exchange is Exchange.gather:
        return wire.alpha_seconds
    if pattern.exchange is Exchange.threshold:
        return 3 * wire.alpha_seconds
    inside = 0.0 if island is None else 2 * island.alpha_seconds
    return 2 * wire.alpha_seconds + inside


def _device_seconds(pattern: Pattern, codec: Codec, load: Load, machine: Machine, on_wire: float) -> SparseSeconds:
    """What the device does: the own elements, then the part whose sum it selects from, then the result."""
    own = load.chunks * CHUNK // pattern.island
    again = 0 if pattern.exchange is Exchange.gather else own * pattern.island // pattern.ranks
    sets = pattern.ranks if pattern.exchange is Exchange.gather else 1 + 1 / pattern.island
    kept = sets * load.chunks * codec.kept
    selected, whole = own + again, load.chunks * CHUNK
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


def _buffer_bytes(pattern: Pattern, codec: Codec, load: Load) -> int:
    """Of one bucket: packets sent and received."""
    message = codec.message_bytes(load.bucket_chunks)
    received = pattern.ranks if pattern.exchange is Exchange.gather else 2
    return (1 + received) * message
