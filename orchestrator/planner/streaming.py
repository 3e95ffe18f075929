"""The cut of a point of engine `streamed`: each rank's part of the layers, layers held whole, the window, and its pace.

The room for parts is what the rest of training (or loading) leaves of each rank's device. What has no room there waits
in pinned host memory, as little as must, then on the drive. Where fetching a layer takes longer than computing one,
layers are held whole on every rank until it does not, as far as there is room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.estimate import calibration as c
from orchestrator.estimate.extents import resident_indices, slot_bytes
from orchestrator.estimate.setting import Machine
from orchestrator.estimate.streamed_share import StreamedShare
from orchestrator.planner.evaluate import Job, Point
from orchestrator.planner.streamed_plan import TierBytes
from orchestrator.planner.streaming_cut import Streaming, cut_island
from orchestrator.planner.streaming_ground import Ground, ground_of
from topology.units import MIB

_SMALL_WINDOW: Final = 2
_LARGE_WINDOW: Final = 4
_MOST_WINDOW: Final = 8  # more layers ahead hide no wait that a run should have
_UNLIKE: Final = 1.1  # layers of sizes this far apart arrive unevenly


def streaming_of(job: Job, point: Point, seconds: float) -> Streaming:
    """Cut the layers for a point.

    Args:
        job: what all points share.
        point: of engine streamed, without a cut.
        seconds: of one pass over one layer, where nothing is fetched.
    """
    ground = ground_of(job, point, seconds)
    found = _cut(ground, ground.window, 0)
    if job.config.engine.window is None:
        found = _windowed(ground, found)
    late = found.fetch_seconds > seconds and ground.island > 1
    if late and not found.tiered and not ground.is_part:
        found = _with_residents(ground, found)
    return found.made(ground)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A cut on trial.

    Attributes:
        window: layers.
        residents: layers held whole.
        islands: bytes of each rank, for each kind of island.
        gather_seconds, copy_seconds: of one fetched layer, at the slowest.
        spare: bytes that the fullest device has left; below 0 where it lacks them.
    """

    window: int
    residents: int
    islands: tuple[tuple[TierBytes, ...], ...]
    gather_seconds: float
    copy_seconds: float
    shares_path: bool
    spare: int

    @property
    def tiered(self) -> bool:
        """Whether anything waits off the devices."""
        return any(share.host or share.nvme for island in self.islands for share in island)

    @property
    def fetch_seconds(self) -> float:
        """Of one layer: links and host copies at once, or one after the other on the same link."""
        both = (self.gather_seconds, self.copy_seconds)
        return sum(both) if self.shares_path else max(both)

    def made(self, ground: Ground) -> Streaming:
        """The cut with what each class of ranks holds."""
        sizes = ground.sizes
        whole = resident_indices(sizes, self.residents)
        streamed = tuple(size for at, size in enumerate(sizes) if at not in whole)
        fetched = max(0, len(streamed) - self.window)
        part = fetched / len(streamed) if streamed else 0.0
        held: dict[int, TierBytes] = {}
        for members, island in zip(ground.island_classes, self.islands, strict=True):
            for at, share in zip(members, island, strict=True):
                held[at] = share if at not in held else max(held[at], share, key=lambda x: (x.device, x.host))
        total = sum(streamed)
        shares = tuple(
            StreamedShare(
                device_bytes=held[at].device,
                host_bytes=held[at].host,
                nvme_bytes=held[at].nvme,
                resident_bytes=sum(sizes) - total,
                window_bytes=slot_bytes(streamed, self.window),
                window=self.window,
                layers=len(streamed),
                ranks=ground.island,
                fetched_layers=fetched,
                gather_seconds=self.gather_seconds,
                copy_seconds=self.copy_seconds,
                gathered_bytes=part * (total - held[at].total) if ground.island > 1 else 0.0,
                copied_bytes=part * (held[at].host + held[at].nvme),
                landed_bytes=part * held[at].device,
                shares_path=self.shares_path,
            )
            for at in range(len(ground.place.classes))
        )
        most = self.window
        if ground.engine.window is None and not self.tiered:
            most = min(_MOST_WINDOW, max(1, len(streamed)), self.window + max(0, self.spare) // max(sizes))
        return Streaming(
            classes=shares,
            islands=dict(zip(ground.island_classes, self.islands, strict=True)),
            island=ground.island,
            residents=self.residents,
            resident_bytes=sum(sorted(sizes, reverse=True)[: self.residents]),
            window=self.window,
            most_window=max(self.window, most),
            layer_seconds=ground.seconds,
            largest_bytes=max(sizes),
        )


def _cut(ground: Ground, window: int, residents: int) -> _Found:
    sizes, engine, classes = ground.sizes, ground.engine, ground.place.classes
    whole = resident_indices(sizes, residents)
    resident_bytes = sum(sizes[at] for at in whole)
    streamed, total = len(sizes) - len(whole), ground.total - resident_bytes
    more = slot_bytes([size for at, size in enumerate(sizes) if at not in whole], window)
    taken = resident_bytes + more - slot_bytes(sizes, ground.window)
    rooms = [replace(room, device=room.device - taken) for room in ground.rooms]
    islands = tuple(
        cut_island(
            total,
            [rooms[at] for at in members],
            [classes[at].weight for at in members] if engine.shards else (),
            engine.host_share if ground.place.world.is_gpu else 0.0,
        )
        for members in ground.island_classes
    )
    pairs = [pair for some in zip(ground.island_classes, islands, strict=True) for pair in zip(*some, strict=True)]
    each = max(1, streamed)
    return _Found(
        window=window,
        residents=residents,
        islands=islands,
        gather_seconds=max(_gather_seconds(ground, shares) for shares in islands) / each
        + _latency(ground, total // each),
        copy_seconds=max(_copy_seconds(ground, classes[at].machine, share) for at, share in pairs) / each,
        shares_path=ground.island > 1 and not ground.place.world.nvlink,
        spare=min(rooms[at].device - share.device for at, share in pairs),
    )


def _gather_seconds(ground: Ground, shares: Sequence[TierBytes]) -> float:
    """Of all layers: every rank receives what it does not hold, and all wait for the one that receives the most."""
    if ground.island == 1:
        return 0.0
    parts = [share.total for share in shares]
    rate = min(machine.gather_bytes_per_second for machine in ground.machines)
    if ground.group is not None and ground.group.bytes_per_second:
        rate = ground.group.bytes_per_second
    return (sum(parts) - min(parts)) / rate


def _latency(ground: Ground, size_bytes: int) -> float:
    """Of one layer: a gather for each chunk, which on CPUs is a broadcast of each rank's piece."""
    if ground.island == 1:
        return 0.0
    chunks = max(1, -(-size_bytes // (ground.engine.chunk_mib * MIB)))
    machine = ground.machines[0]
    if not machine.is_gpu:
        return chunks * ground.island * machine.link_alpha_seconds
    alpha = machine.link_alpha_seconds if machine.gather_alpha_seconds is None else machine.gather_alpha_seconds
    if ground.group is not None and ground.group.bytes_per_second:
        alpha = ground.group.alpha_seconds
    return chunks * alpha


def _copy_seconds(ground: Ground, machine: Machine, share: TierBytes) -> float:
    """Of all layers; the ranks of a host read from one drive."""
    drive = min(machine.h2d_bytes_per_second, c.NVME_BYTES.value / ground.place.world.processes_per_node)
    return share.host / machine.h2d_bytes_per_second + share.nvme / drive


def _windowed(ground: Ground, usual: _Found) -> _Found:
    """A smaller window where only that keeps all layers on the devices, a larger one where layers differ in size."""
    if usual.tiered or usual.spare < 0:
        if ground.window <= _SMALL_WINDOW:
            return usual
        small = _cut(ground, _SMALL_WINDOW, 0)
        return usual if small.tiered or small.spare < 0 else small
    if max(ground.sizes) > _UNLIKE * min(ground.sizes) and len(ground.sizes) > _LARGE_WINDOW:
        large = _cut(ground, _LARGE_WINDOW, 0)
        return usual if large.tiered or large.spare < 0 else large
    return usual


def _with_residents(ground: Ground, found: _Found) -> _Found:
    """As many layers held whole as hide the fetching of the others, or as there is room for.

    A layer held whole takes the room of all but one of the ranks' parts of it.
    """
    layers, largest = len(ground.sizes), max(ground.sizes)
    wanted = min(layers - 1, math.ceil(layers * (1 - ground.seconds / found.fetch_seconds)))
    low, high = 0, min(wanted, max(0, found.spare) // largest)
    best = found
    while low < high:
        middle = (low + high + 1) // 2
        tried = _cut(ground, found.window, middle)
        if tried.tiered or tried.spare < 0:
            high = middle - 1
        else:
            low, best = middle, tried
    return best
