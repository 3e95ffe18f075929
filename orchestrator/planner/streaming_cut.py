"""Bytes of each rank's part of the layers: as equal as their room allows, the rest in host memory, then on a drive.

All ranks of an island gather over the same links, so a gather takes as long as the smallest part leaves to receive:
equal parts are the fastest, and where room differs, the cut whose parts are raised together until each is full. This is
the optimum of the program in `assign` where links and host memories are alike (a test holds the two against each
other), and takes no solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from orchestrator.estimate.streamed_share import StreamedShare
from orchestrator.planner.streamed_plan import TierBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that a rank has left for its part of the layers; below 0 where even the rest does not fit."""

    device: int
    host: int = 0
    nvme: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How a point streams its layers.

    Attributes:
        classes: what a rank of each class holds and fetches.
        islands: bytes of each rank of an island by tier, for each kind of island: the classes of its ranks.
        island: ranks that hold one copy.
        residents: layers held whole on every rank.
        resident_bytes: room for them, as the engine is told.
        window, most_window: layers, at first and at most.
        layer_seconds: of one pass over one layer.
        largest_bytes: of a layer.
    """

    classes: tuple[StreamedShare, ...]
    islands: Mapping[tuple[int, ...], tuple[TierBytes, ...]] = field(default_factory=dict)
    island: int = 1
    residents: int = 0
    resident_bytes: int = 0
    window: int = 1
    most_window: int = 1
    layer_seconds: float = 0.0
    largest_bytes: int = 0

    @property
    def tier_share(self) -> float:
        """Part of the streamed bytes that waits off the devices."""
        shares = [share for island in self.islands.values() for share in island]
        total = sum(share.total for share in shares)
        return sum(share.host + share.nvme for share in shares) / total if total else 0.0


def level(total_bytes: int, rooms: Sequence[int]) -> list[int]:
    """Share bytes as equally as the rooms allow, the first ranks one byte more; what has no room is shared equally."""
    rooms = [max(0, room) for room in rooms]
    lack = total_bytes - sum(rooms)
    if lack >= 0:
        return [room + more for room, more in zip(rooms, _equal(lack, len(rooms)), strict=True)]
    shares, left = [0] * len(rooms), total_bytes
    waiting = sorted(range(len(rooms)), key=lambda at: rooms[at])
    for done, at in enumerate(waiting):
        each = left // (len(rooms) - done)
        if rooms[at] > each:  # so have all that follow
            rest = sorted(waiting[done:])
            for rank, share in zip(rest, _equal(left, len(rest)), strict=True):
                shares[rank] = share
            return shares
        shares[at] = rooms[at]
        left -= rooms[at]
    return shares


def _equal(total_bytes: int, count: int) -> list[int]:
    each, more = divmod(total_bytes, count)
    return [each + (at < more) for at in range(count)]


def by_weight(total_bytes: int, weights: Sequence[float]) -> list[int]:
    """Cut bytes in proportion to weights, summing exactly."""
    ends = [round(total_bytes * end / sum(weights)) for end in accumulate(weights)]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def cut_island(
    total_bytes: int, rooms: Sequence[Room], weights: Sequence[float] = (), host_share: float | None = None
) -> tuple[TierBytes, ...]:
    """Bytes of each rank of an island by tier; they sum to `total_bytes`.

    Args:
        total_bytes: of the layers that stream.
        rooms: of each rank. What no tier has room for is put on the devices, where the estimate will find it missing.
        weights: of the ranks' parts, wherever they lie; empty for as equal as can be.
        host_share: part of the layers that waits in host memory; None for as little as must.
    """
    if weights:
        parts = by_weight(total_bytes, weights)
        return tuple(_stacked(part, room, host_share) for part, room in zip(parts, rooms, strict=True))
    devices, hosts, drives = ([max(0, getattr(x, tier)) for x in rooms] for tier in ("device", "host", "nvme"))
    if host_share is not None:
        on_device, on_host, on_drive = _split(total_bytes, host_share)
    else:
        on_device = min(total_bytes, sum(devices))
        on_host = min(total_bytes - on_device, sum(hosts))
        on_drive = min(total_bytes - on_device - on_host, sum(drives))
        on_device = total_bytes - on_host - on_drive
    return tuple(
        TierBytes(device=device, host=host, nvme=drive)
        for device, host, drive in zip(
            level(on_device, devices), level(on_host, hosts), level(on_drive, drives), strict=True
        )
    )


def _split(total_bytes: int, host_share: float) -> tuple[int, int, int]:
    on_host = round(total_bytes * host_share)
    return total_bytes - on_host, on_host, 0


def _stacked(part: int, room: Room, host_share: float | None) -> TierBytes:
    """One rank's part: on the device what has room there, then in host memory, then on the drive."""
    if host_share is not None:
        device, host, drive = _split(part, host_share)
        return TierBytes(device=device, host=host, nvme=drive)
    device = min(part, max(0, room.device))
    host = min(part - device, max(0, room.host))
    drive = min(part - device - host, max(0, room.nvme))
    return TierBytes(device=part - host - drive, host=host, nvme=drive)
