"""Points of the search: rows, micro-batches and knobs of a way at a place, and the strategy a point stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.config import Checkpointing, Engine, RunConfig
from orchestrator.estimate.recomputed import mode_text
from orchestrator.estimate.time import estimate_time
from orchestrator.planner.assign import forced_micro, micro_options, share_rows
from orchestrator.planner.compress_choice import compression_of
from orchestrator.planner.dtypes import adapter_dtype, choose_precision, quant_storage
from orchestrator.planner.evaluate import Job, Place, Point, allocator_of, layer_seconds, setting_of
from orchestrator.planner.knobs import Ground, Knob, derive
from orchestrator.planner.strategy import (
    SPARSE_LABEL,
    Recomputed,
    Strategy,
    cut_label,
    micro_label,
    options_label,
    ranks_label,
)
from orchestrator.planner.streamed_plan import StreamedPlan
from orchestrator.planner.streaming import streaming_of
from orchestrator.planner.streaming_plan import shares_of, streamed_plan
from orchestrator.planner.ways import ENGINES, Way
from orchestrator.planner.world import World, device_classes, machines, rank_classes

_FEW_ROWS = 4


def places_of(job: Job, world: World) -> Iterator[Place]:
    """Yield the world with each way to share the rows: by estimated speed, by peak rate, and evenly."""
    config = job.config
    precision = choose_precision(config, world).precision
    kinds, found = device_classes(world), machines(world, precision)

    def place(weights: Sequence[float]) -> Place:
        rows = share_rows(config.batch.global_, [weights[kind] for kind in kinds])
        classes = rank_classes(world, kinds, found, rows)
        return Place(world=world, precision=precision, kinds=kinds, rows=rows, classes=classes)

    even = place([1.0] * len(found))
    if len(found) == 1:
        yield even
        return
    options = (place(_speeds(job, even, len(found))), place([machine.flops_per_second for machine in found]), even)
    yield from {option.rows: option for option in options}.values()


def _speeds(job: Job, even: Place, num_kinds: int) -> list[float]:
    """Rows per second of each kind of rank, where nothing is sharded and a few rows run at a time."""
    way = Way(engine=next(iter(ENGINES)), checkpointing=Checkpointing.full)
    micro = tuple(min(_FEW_ROWS, ranks.rows) for ranks in even.classes)
    passes = max(-(-ranks.rows // rows) for ranks, rows in zip(even.classes, micro, strict=True))
    point = Point(place=even, way=way, micro=micro, accumulation=passes)
    speeds = [1.0] * num_kinds
    for at, ranks in enumerate(even.classes):
        alone = replace(setting_of(job, point, at), accumulation=-(-ranks.rows // micro[at]))
        speeds[even.kinds[ranks.rank]] = ranks.rows / estimate_time(alone).step_seconds
    return speeds


def points_of(config: RunConfig, place: Place, way: Way) -> Iterator[Point]:
    """Yield a point for each micro-batch, smallest first, without knobs."""
    rows = tuple(ranks.rows for ranks in place.classes)
    wanted = config.batch.micro
    options = micro_options(rows) if wanted is None else (forced_micro(rows, wanted),)
    for micro, accumulation in options:
        yield Point(place=place, way=way, micro=micro, accumulation=accumulation)


def with_knobs(job: Job, point: Point, seconds: float | None = None) -> Point:
    """Add the knobs of an engine that has some.

    Args:
        job: what all points share.
        point: with or without knobs.
        seconds: of a layer (`bare_layer_seconds`), if that is known.
    """
    if point.way.residency is None:
        return replace(point, zero3=None, extras=None, streaming=None)
    if point.way.engine is Engine.streamed:
        seconds = bare_layer_seconds(job, point) if seconds is None else seconds
        return replace(point, zero3=None, extras=None, streaming=streaming_of(job, point, seconds))
    zero3, extras, _ = derive(job.config, job.model, job.adapter, _ground(job, point, seconds))
    return replace(point, zero3=zero3, extras=extras, streaming=None)


def derivation_of(job: Job, point: Point) -> tuple[Knob, ...]:
    """How the knobs of a point came about; none for an engine without."""
    if point.way.residency is None or point.way.engine is Engine.streamed:
        return ()
    return derive(job.config, job.model, job.adapter, _ground(job, point, None))[2]


def bare_layer_seconds(job: Job, point: Point) -> float:
    """Seconds of a layer where nothing is gathered: the same for every residency, and for a part of the layers."""
    plain = replace(point.way, engine=next(iter(ENGINES)), residency=None, recomputed=None)
    return layer_seconds(job, replace(point, zero3=None, extras=None, streaming=None, way=plain))


def _ground(job: Job, point: Point, seconds: float | None) -> Ground:
    if point.way.residency is None:
        msg = "an engine without residency has no knobs"
        raise ValueError(msg)
    return Ground(
        world=point.place.world,
        residency=point.way.residency,
        machine=point.place.classes[0].machine,
        layer_seconds=bare_layer_seconds(job, point) if seconds is None else seconds,
        compute_dtype=point.place.precision,
    )


def label_of(job: Job, point: Point) -> str:
    """The strategy's label, without making it for every rank."""
    world = point.place.world
    copy = None if point.way.residency is None else point.way.residency.second_copy
    if point.way.residency is not None and point.way.residency.island is not None:
        copy = point.way.residency.island
    who = ranks_label(point.way.engine, point.zero3, world.ranks_per_host, copy_ranks=1 if copy is None else copy.ranks)
    if point.streaming is not None:
        who += f", {cut_label(shares_of(point.place, point.streaming), point.streaming.window)}"
    micro = micro_label(point.micro, point.accumulation)
    end = options_label(packing=bool(job.config.data.packing), optimizer=job.config.optimizer.name)
    end += "" if point.sparse is None else SPARSE_LABEL
    mode = mode_text(point.way.checkpointing, point.way.recomputed, job.model.layers)
    return f"{who}, {micro}, {mode}, {point.place.precision}{end}"


def streamed_of(job: Job, point: Point) -> StreamedPlan | None:
    """How the point's layers stream, every rank spelled out; None for other engines."""
    if point.streaming is None:
        return None
    return streamed_plan(point.place, point.streaming, job.config.engine)


def strategy_of(job: Job, point: Point) -> Strategy:
    """The point with every rank spelled out."""
    config, place, way = job.config, point.place, point.way
    at = {(place.kinds[ranks.rank], ranks.rows): micro for ranks, micro in zip(place.classes, point.micro, strict=True)}
    world = place.world
    return Strategy(
        engine=way.engine,
        world_size=world.size,
        processes_per_node=world.processes_per_node,
        num_nodes=len(world.hosts),
        uneven_ranks=world.uneven_ranks,
        uneven_threads=world.uneven_threads,
        device_ids=tuple(device.id for device in world.devices),
        shares=place.rows,
        micro=tuple(at[key] for key in zip(place.kinds, place.rows, strict=True)),
        accumulation=point.accumulation,
        precision=place.precision,
        adapter_dtype=adapter_dtype(config, way.engine, place.precision),
        compute_dtype=place.precision,
        load_dtype=place.precision,
        quant_storage=quant_storage(way.engine, place.precision),
        checkpointing=way.checkpointing,
        recomputed=None if way.recomputed is None else Recomputed(layers=way.recomputed, of=job.model.layers),
        allocator=allocator_of(config, world),
        threads_per_process=world.threads_per_process,
        zero3=point.zero3,
        streamed=streamed_of(job, point),
        optimizer=config.optimizer.name,
        packing=bool(config.data.packing),
        padding=config.data.padding,
        seq_len=job.seq_len,
        part=world.label,
        extras=point.extras,
        compression=None if point.sparse is None else compression_of(job, point, point.sparse, 0),
    )
