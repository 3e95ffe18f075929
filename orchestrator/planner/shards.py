"""Uneven shards of the frozen base: who holds what, how long a gather of it takes, and that in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from topology.units import format_bytes, format_rate, format_seconds

_FULL = 0.99
_NOTHING = 0.005


class Gather(Enum):
    """How ranks with shards of different size bring them together.

    `padded` is one all-gather of equal slots, as large as the largest shard; `broadcast` sends each shard as it is,
    all ranks at once.
    """

    padded = "padded all-gather"
    broadcast = "grouped broadcast"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRank:
    """What one rank can hold and move.

    Attributes:
        name: for the explanation.
        device_bytes: room for shards in its device memory.
        host_bytes: room for shards in pinned host memory.
        out_bytes_per_second, in_bytes_per_second: of its links to the others.
        host_bytes_per_second: from its host memory to the device.
        window_bytes: what prefetching may move through its device memory per pass over the base: headroom x memory
            bandwidth x seconds of a pass.
        shares_path: host memory and the other ranks are reached over one link (PCIe without NVLink).
    """

    name: str
    device_bytes: int
    host_bytes: int
    out_bytes_per_second: float
    in_bytes_per_second: float
    host_bytes_per_second: float
    window_bytes: int
    shares_path: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Bytes of the base per rank: in device memory, and in host memory; they sum to the whole base."""

    device: tuple[int, ...]
    host: tuple[int, ...]
    gather: Gather
    seconds: float

    @property
    def shards(self) -> tuple[int, ...]:
        """Bytes of each rank, wherever they lie."""
        return tuple(device + host for device, host in zip(self.device, self.host, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """No cut exists: what is missing, in bytes, and where."""

    missing_bytes: int
    reason: str


def gather_seconds(ranks: Sequence[ShardRank], device: Sequence[int], host: Sequence[int], gather: Gather) -> float:
    """Seconds of one gather of everything, under a cut in bytes."""
    shards = [one + other for one, other in zip(device, host, strict=True)]
    total = sum(shards)
    slot = (len(ranks) - 1) * max(shards) / slowest_link(ranks)
    worst = 0.0
    for rank, shard, kept in zip(ranks, shards, host, strict=True):
        link = slot
        if gather is Gather.broadcast:
            link = (total - shard) / rank.in_bytes_per_second
            worst = max(worst, shard / rank.out_bytes_per_second)
        copies = kept / rank.host_bytes_per_second
        worst = max(worst, link + copies if rank.shares_path else max(link, copies))
    return worst


def equal_cut(ranks: Sequence[ShardRank], total_bytes: int) -> Cut | None:
    """The cut that frameworks make: equal shards, in host memory what the device has no room for; None: no room."""
    each, rest = divmod(total_bytes, len(ranks))
    shards = [each + (at < rest) for at in range(len(ranks))]
    device = tuple(min(shard, rank.device_bytes) for rank, shard in zip(ranks, shards, strict=True))
    host = tuple(shard - kept for shard, kept in zip(shards, device, strict=True))
    if any(kept > host_room(rank, total_bytes) for rank, kept in zip(ranks, host, strict=True)):
        return None
    gather = min(Gather, key=lambda one: gather_seconds(ranks, device, host, one))
    return Cut(device=device, host=host, gather=gather, seconds=gather_seconds(ranks, device, host, gather))


def explain_cut(ranks: Sequence[ShardRank], cut: Cut) -> str:
    """The cut in words: each rank's bytes, what limits the gather, and what equal shards would take."""
    total = sum(cut.shards)
    lines = [
        f"{format_bytes(total)} of frozen weights over {len(ranks)} ranks, {cut.gather.value}, {_time(cut)} a gather"
    ]
    alike = Counter(_held(*rank, total) for rank in zip(ranks, cut.device, cut.host, strict=True))
    lines += [f"  {f'{count} x ' if count > 1 else ''}{text}" for text, count in alike.items()]
    equal = equal_cut(ranks, total)
    if equal is None:
        lines.append("  Equal shards do not fit.")
    else:
        times = equal.seconds / cut.seconds if cut.seconds else 1.0
        told = f"Equal shards would take {_time(equal)}, {times:.2f} times as long."
        lines.append(
            f"  {told if times > 1 + _NOTHING else 'Equal shards are as fast: nothing is gained by uneven ones.'}"
        )
    return "\n".join(lines)


def _held(rank: ShardRank, device: int, host: int, total: int) -> str:
    full = " (full)" if device > _FULL * rank.device_bytes else ""
    text = f"{rank.name}: {format_bytes(device)} of {format_bytes(rank.device_bytes)} on the device{full}"
    if host:
        text += f", {format_bytes(host)} in host memory at {format_rate(rank.host_bytes_per_second)}"
    budget = f"{format_bytes(total + host)} of {format_bytes(rank.window_bytes)} a pass through its memory"
    return f"{text}, links {format_rate(rank.out_bytes_per_second)}, {budget}"


def _time(cut: Cut) -> str:
    return format_seconds(cut.seconds)


def slowest_link(ranks: Sequence[ShardRank]) -> float:
    """Bytes per second of the slowest direction of any rank."""
    return min(min(rank.out_bytes_per_second, rank.in_bytes_per_second) for rank in ranks)


def host_room(rank: ShardRank, total_bytes: int) -> int:
    """Bytes that may lie in host memory: all of the base lands in the window, and these are sent on, too."""
    return max(0, min(rank.host_bytes, rank.window_bytes - total_bytes))
