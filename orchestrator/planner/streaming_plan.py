"""A cut with every rank spelled out, and how fast its layers may be fetched: what the engine is told."""

from __future__ import annotations

from typing import Final

from orchestrator.config import EngineConfig
from orchestrator.estimate.bandwidth import common_window_bytes, window_bytes
from orchestrator.planner.evaluate import Place
from orchestrator.planner.streamed_plan import StreamedPlan, TierBytes
from orchestrator.planner.streaming_cut import Streaming
from orchestrator.planner.world import RankClass
from topology.units import MIB

# Of the memory bandwidth during a layer, what fetching may take: unpacking and products read and write beside it.
HEADROOM: Final = 0.25


def streamed_plan(place: Place, streaming: Streaming, engine: EngineConfig, told: tuple[str, ...] = ()) -> StreamedPlan:
    """The cut with every rank spelled out."""
    shares = shares_of(place, streaming)
    pace: tuple[int | None, ...] = ()
    gathers: int | None = None
    chunk = engine.chunk_mib * MIB
    if place.world.is_gpu:
        each = [_pace(ranks, streaming, chunk) for ranks in place.classes]
        gathers = common_window_bytes(each)
        pace = tuple(each[at] for at in place.class_of_ranks)
    return StreamedPlan(
        shares=shares,
        island_size=streaming.island,
        resident_bytes=streaming.resident_bytes,
        window=streaming.window,
        most_window=streaming.most_window,
        chunk_bytes=chunk,
        gather_window_bytes=gathers,
        window_bytes=pace,
        nvme_path=engine.nvme_path if any(share.nvme for share in shares) else "",
        told=told,
    )


def shares_of(place: Place, streaming: Streaming) -> tuple[TierBytes, ...]:
    """Bytes of each rank by tier, in rank order."""
    size, classes = streaming.island, place.class_of_ranks
    return tuple(
        share for at in range(0, place.world.size, size) for share in streaming.islands[classes[at : at + size]]
    )


def _pace(ranks: RankClass, streaming: Streaming, chunk: int) -> int:
    """Bytes that may be fetched while a layer computes: the headroom's, but never less than the next layer."""
    allowed = window_bytes(HEADROOM, ranks.machine.memory_bytes_per_second, streaming.layer_seconds, chunk)
    return max(allowed, -(-streaming.largest_bytes // chunk) * chunk)
