"""Uneven shards of the frozen base over devices that differ: what the budgets of memory and bandwidth allow."""

from __future__ import annotations

from typing import Final

from orchestrator.config import Checkpointing, Engine, Offload
from orchestrator.estimate.extents import layer_bytes, stored_of
from orchestrator.planner.assign import assign_shards
from orchestrator.planner.evaluate import Job, Place, Point, fits_of, layer_seconds, setting_of
from orchestrator.planner.fits import usable_bytes
from orchestrator.planner.points import places_of, points_of, with_knobs
from orchestrator.planner.shards import ShardRank, Shortage, explain_cut
from orchestrator.planner.streaming_plan import HEADROOM
from orchestrator.planner.ways import Residency, Way
from orchestrator.planner.world import World

_MOST_RANKS: Final = 16  # beyond these the text is no longer read
_LAYERS: Final = frozenset({"base_shard"})


def uneven_shards(job: Job, world: World) -> tuple[str, ...]:
    """Cut the base over all devices of a machine whose devices differ, in words; empty elsewhere.

    Rows are shared by speed and one row runs at a time, so that the room for shards is the largest there is.
    """
    if not world.is_gpu or not 1 < world.size <= _MOST_RANKS:
        return ()
    place = next(iter(places_of(job, world)))
    if len({place.kinds[ranks.rank] for ranks in place.classes}) == 1:
        return ()
    ranks, total_bytes = shard_ranks(job, place)
    cut = assign_shards(ranks, total_bytes)
    if isinstance(cut, Shortage):
        return (f"Uneven shards do not fit either: {cut.reason}",)
    return tuple(explain_cut(ranks, cut).splitlines())


def shard_ranks(job: Job, place: Place) -> tuple[tuple[ShardRank, ...], int]:
    """What each rank can hold and move while it trains with every layer recomputed, and the bytes to share.

    Room on the device is what training leaves of what may be filled. The window of a pass over the base is
    headroom x memory bandwidth x seconds of the pass on the slowest rank, for which all wait.
    """
    nowhere = Residency(param=Offload.none, optimizer=Offload.none)
    way = Way(engine=Engine.streamed, checkpointing=Checkpointing.full, residency=nowhere)
    point: Point = with_knobs(job, next(points_of(job.config, place, way)))
    pass_seconds = layer_seconds(job, point) * job.model.layers
    found: dict[tuple[int, int], ShardRank] = {}
    for at, (ranks, fit) in enumerate(zip(place.classes, fits_of(job, point), strict=True)):
        machine, train = setting_of(job, point, at).machine, fit.memory.train
        shards = sum(term.bytes for term in train.terms if term.name in _LAYERS)
        found[place.kinds[ranks.rank], ranks.rows] = ShardRank(
            name=ranks.device_name,
            device_bytes=max(0, usable_bytes(ranks) - (train.device_bytes - shards)),
            host_bytes=max(0, ranks.host_bytes - train.host_bytes),
            out_bytes_per_second=machine.gather_bytes_per_second,
            in_bytes_per_second=machine.gather_bytes_per_second,
            host_bytes_per_second=machine.h2d_bytes_per_second,
            window_bytes=int(HEADROOM * machine.memory_bytes_per_second * pass_seconds),
            shares_path=not place.world.nvlink,
        )
    each = tuple(found[key] for key in zip(place.kinds, place.rows, strict=True))
    return each, sum(layer_bytes(job.model, stored_of(setting_of(job, point, 0))))
