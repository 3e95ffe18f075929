"""What sparse gradients take in a world: bytes, seconds on the links, seconds of the device, memory.

Bytes are exact (`compress_format`). Links are those that the dense all-reduce is reckoned with: bus rates of the
library's all-gather over the wires of the machine, and of one inside an island. A collective among all ranks passes the
port of a host, or of an island, once for all its ranks; packets sent directly to their owners pass it for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Final

from orchestrator.config import Compress, CompressConfig, CompressExchange
from orchestrator.estimate.calibration import GLOO_ALPHA_SECONDS
from orchestrator.estimate.setting import Machine, Sparse
from orchestrator.planner.compress_format import CHUNK, Codec, Exchange, Pattern, codec_of, dense_sent_bytes
from orchestrator.planner.compress_load import Load, buffer_bytes, device_seconds
from orchestrator.planner.compression import SparseSeconds
from orchestrator.planner.rates import CPU_LINK_RATES
from orchestrator.planner.world import World

_FP32: Final = 4
_TWO: Final = 2


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
        counts: ranks of each host.
        bytes_per_second: bus rate of an all-gather over all ranks.
        alpha_seconds: latency of one collective over all ranks.
        islands: to sum in densely first.
    """

    ranks: int
    hosts: int
    counts: tuple[int, ...]
    bytes_per_second: float
    alpha_seconds: float
    islands: tuple[Island, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one kind of step takes: with the largest elements alone, or with all of them.

    Attributes:
        seconds: piece by piece.
        sent_bytes: by rank 0, which sends the most.
        buffer_bytes: of a bucket's packets.
    """

    seconds: SparseSeconds
    sent_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to exchange sparse gradients, with what it takes.

    Attributes:
        pattern: who sends to whom.
        island: what it is inside; None without islands.
        codec: of the packets.
        load: what is exchanged.
        share: of the compressed steps, in which all elements travel.
        topk, refresh: the two kinds of steps.
        dense_bytes: that a dense all-reduce sends at least.
    """

    pattern: Pattern
    island: Island | None
    codec: Codec
    load: Load
    share: float
    topk: Part
    refresh: Part
    dense_bytes: int

    @property
    def seconds(self) -> SparseSeconds:
        """Of a step, the mean over both kinds."""
        few, whole = self.topk.seconds, self.refresh.seconds
        return SparseSeconds(
            select=self._mean(few.select, whole.select),
            encode=self._mean(few.encode, whole.encode),
            wire=self._mean(few.wire, whole.wire),
            decode=self._mean(few.decode, whole.decode),
        )

    @property
    def sent_bytes(self) -> int:
        """By rank 0 in a step, the mean over both kinds."""
        return round(self._mean(self.topk.sent_bytes, self.refresh.sent_bytes))

    @property
    def cost(self) -> Sparse:
        """The same for the estimate. Bytes and seconds are means; memory is that of the larger kind of step."""
        seconds = self.seconds
        buffers = max(self.topk.buffer_bytes, self.refresh.buffer_bytes) if self.share else self.topk.buffer_bytes
        return Sparse(
            wire_seconds=seconds.wire,
            codec_seconds=seconds.total - seconds.wire,
            sent_bytes=self.sent_bytes,
            residual_bytes=2 * (-(-self.load.chunks // self.pattern.island)) * CHUNK * _FP32,
            count_bytes=self.load.elements * _FP32,
            buffer_bytes=buffers,
        )

    def at(self, wire: Wire, machine: Machine) -> Offer:
        """The same exchange on other links or devices."""
        return _offer(self.pattern, self.island, self.codec, self.load, self.share, wire, machine)

    def _mean(self, few: float, whole: float) -> float:
        return few + self.share * (whole - few)


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
    per_host = gcd(*world.ranks_per_host)  # islands are ranks that follow each other, all equally many
    if not world.is_gpu and hosts > 1 and per_host > 1:
        latency = (per_host - 1) * GLOO_ALPHA_SECONDS.value
        islands.append(Island(ranks=per_host, bytes_per_second=CPU_LINK_RATES[1], alpha_seconds=latency))
    return Wire(
        ranks=world.size,
        hosts=hosts,
        counts=(world.size,) if hosts == 1 else world.ranks_per_host,
        bytes_per_second=machine.gather_bytes_per_second,
        alpha_seconds=alpha,
        islands=tuple(islands),
    )


def best_offer(config: CompressConfig, load: Load, wire: Wire, machine: Machine, share: float = 0.0) -> Offer | None:
    """The exchange that takes the least time of those that the user leaves open; None where none is possible.

    Args:
        config: density, values, and the exchange if it is given.
        load: what is exchanged.
        wire: what joins the ranks.
        machine: the slowest device.
        share: of the compressed steps, in which all elements travel.
    """
    if config.name is Compress.none or wire.ranks == 1:
        return None
    codec = codec_of(config.density, config.values)
    found = [_offer(pattern, island, codec, load, share, wire, machine) for pattern, island in _open(config, wire)]
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


def _offer(
    pattern: Pattern, island: Island | None, codec: Codec, load: Load, share: float, wire: Wire, machine: Machine
) -> Offer:
    topk, refresh = (
        _part(kind, island, form, load, wire, machine)
        for kind, form in ((pattern, codec), (pattern.whole, codec.whole))
    )
    dense_bytes = dense_sent_bytes(load.dense_bytes, wire.ranks)
    return Offer(
        pattern=pattern,
        island=island,
        codec=codec,
        load=load,
        share=share,
        topk=topk,
        refresh=refresh,
        dense_bytes=dense_bytes,
    )


def _part(pattern: Pattern, island: Island | None, codec: Codec, load: Load, wire: Wire, machine: Machine) -> Part:
    sent = load.sent(pattern, codec)
    on_wire = _bus_bytes(pattern, codec, load, wire) / wire.bytes_per_second
    on_wire += load.buckets * _latency(pattern, island, wire)
    if island is not None:
        on_wire += sent.inside_bytes / island.bytes_per_second
    return Part(
        seconds=device_seconds(pattern, codec, load, machine, on_wire),
        sent_bytes=sent.total_bytes,
        buffer_bytes=buffer_bytes(pattern, codec, load),
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
        direct = max(count * (ranks - count) for count in set(wire.counts)) / ranks * whole
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
