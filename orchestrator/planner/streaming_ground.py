"""What a cut of streamed layers is made from: their sizes, the ranks, and the room that the rest leaves on each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from orchestrator.config import EngineConfig
from orchestrator.estimate.extents import Stored, layer_bytes, slot_bytes
from orchestrator.estimate.setting import DTYPE_BYTES, Machine
from orchestrator.estimate.streamed_share import StreamedShare
from orchestrator.estimate.values import Memory
from orchestrator.planner.evaluate import Job, Place, Point, memory_of
from orchestrator.planner.fits import device_limit_bytes, host_limit_bytes
from orchestrator.planner.groups import Group
from orchestrator.planner.streaming_cut import Room, Streaming
from orchestrator.planner.world import RankClass

WINDOW: Final = 3  # the layer at work, the next one, and one whose slot is free to be filled meanwhile
_DRIVE_BYTES: Final = 2**50  # a drive's room is not known
_ROUNDING_BYTES: Final = 4096  # the slack is known from rounded sums, and a cut must not fail for a byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a cut is made from.

    Attributes:
        engine: what the user wants.
        place: with the ranks.
        sizes: of each layer.
        seconds: of one pass over one layer.
        island: ranks that hold one copy.
        group: how they are joined; None for all ranks.
        window: usual, or the user's.
        rooms: of each class, beside such a window.
        island_classes: of each kind of island: the class of each of its ranks.
        is_part: the planner has some layers recomputed, to fit on the devices: then all layers lie there, and none is
            held whole. Otherwise neither memory nor time would follow the number of layers, which is searched for.
    """

    engine: EngineConfig
    place: Place
    sizes: tuple[int, ...]
    seconds: float
    island: int
    group: Group | None
    window: int
    rooms: tuple[Room, ...]
    island_classes: tuple[tuple[int, ...], ...]
    is_part: bool = False

    @property
    def total(self) -> int:
        """Bytes of all layers."""
        return sum(self.sizes)

    @property
    def machines(self) -> list[Machine]:
        """Of each class."""
        return [ranks.machine for ranks in self.place.classes]


def ground_of(job: Job, point: Point, seconds: float) -> Ground:
    """Look at a point; `seconds` are those of one pass over one layer."""
    engine, place = job.config.engine, point.place
    stored = Stored(
        quant=job.config.base.quant,
        double_quant=job.config.base.double_quant,
        load_bytes=DTYPE_BYTES[place.precision],
    )
    sizes = layer_bytes(job.model, stored)
    group = None if point.way.residency is None else point.way.residency.island
    island = place.world.size if group is None else group.ranks
    window = min(engine.window or WINDOW, len(sizes))
    empty = StreamedShare(
        device_bytes=0,
        window_bytes=slot_bytes(sizes, window),
        window=window,
        layers=len(sizes),
        ranks=island,
        fetched_layers=0,
    )
    bare = replace(point, streaming=Streaming(classes=(empty,) * len(place.classes)))
    part = point.way.recomputed is not None and job.config.checkpointing_layers is None
    rooms = tuple(
        _room(ranks, memory_of(job, bare, at), engine, is_gpu=place.world.is_gpu, staging=max(sizes), tiers=not part)
        for at, ranks in enumerate(place.classes)
    )
    return Ground(
        engine=engine,
        place=place,
        sizes=sizes,
        seconds=seconds,
        island=island,
        group=group,
        window=window,
        rooms=rooms,
        island_classes=_island_classes(place, island),
        is_part=part,
    )


def _island_classes(place: Place, island: int) -> tuple[tuple[int, ...], ...]:
    if len(place.classes) == 1:
        return ((0,) * island,)
    classes = place.class_of_ranks
    return tuple(dict.fromkeys(classes[at : at + island] for at in range(0, len(classes), island)))


def _room(ranks: RankClass, memory: Memory, engine: EngineConfig, *, is_gpu: bool, staging: int, tiers: bool) -> Room:
    """What training and loading leave of a rank's device, and of its host's memory.

    Args:
        ranks: of one class.
        memory: of one of them, without its part of the layers.
        engine: what the user wants.
        is_gpu: whether device and host are two memories.
        staging: bytes that a drive's layers pass through.
        tiers: whether anything may wait off the device.
    """
    phases = (("load", memory.load), ("train", memory.train))
    device = min(
        int((limit - phase.device_bytes) * phase.allocated_bytes / max(1, phase.reserved_bytes))
        for limit, phase in ((device_limit_bytes(ranks, name), phase) for name, phase in phases)
    )
    device -= _ROUNDING_BYTES
    if not is_gpu:
        if ranks.budget_bytes is not None:
            device = min(device, *(ranks.budget_bytes - phase.allocated_bytes for _, phase in phases))
        return Room(device=device)
    if not tiers:
        return Room(device=device)
    held = (*phases, ("save", memory.save))
    host = min(host_limit_bytes(ranks, name) - phase.host_bytes for name, phase in held)
    if not engine.nvme_path:
        return Room(device=device, host=host)
    return Room(device=device, host=host - staging, nvme=_DRIVE_BYTES)
