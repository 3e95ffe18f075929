"""What memory costs in time: changes of the chosen strategy, each evaluated, best bargain first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.config import Checkpointing, Engine, Offload, Optimizer
from orchestrator.planner.evaluate import Job, Point, fit_of, time_of
from orchestrator.planner.plan import Trade
from orchestrator.planner.points import points_of, with_knobs
from orchestrator.planner.solve import Asked, job_of, solve
from orchestrator.planner.ways import Residency, Way, conflict_of
from orchestrator.planner.ways_out import first_that_fits, small_changes

_LEAST_PERCENT = 0.1  # below this a change of time is noise of the estimate
_LEAST_SHARE = 0.005  # of the memory: what saves less is not worth a line


def trades_of(asked: Asked, job: Job, point: Point) -> tuple[Trade, ...]:
    """Evaluate each change by itself; what saves most bytes per percent of time comes first.

    Changes that need more memory follow, the fastest first.
    """
    before_bytes = fit_of(job, point).memory.train.device_bytes
    before_seconds = time_of(job, point).step_seconds / _tokens(job, point)
    found = []
    for change, other_job, other in _changes(asked, job, point):
        fit, time = fit_of(other_job, other), time_of(other_job, other)
        found.append(
            Trade(
                change=change,
                saved_bytes=before_bytes - fit.memory.train.device_bytes,
                step_seconds=time.step_seconds,
                time_percent=(time.step_seconds / _tokens(other_job, other) / before_seconds - 1) * 100,
                fits=fit.misfit is None,
            )
        )
    found += _whole_copies(asked, point, before_bytes, before_seconds)
    least_bytes = _LEAST_SHARE * before_bytes
    useful = (trade for trade in found if trade.saved_bytes > least_bytes or trade.time_percent < -_LEAST_PERCENT)
    return tuple(sorted(useful, key=_bargain))


def _whole_copies(asked: Asked, point: Point, before_bytes: int, before_seconds: float) -> Iterator[Trade]:
    """Yield small changes that would let a whole copy of the base fit each device, where it must be partitioned now."""
    if point.way.residency is None or not point.place.world.is_gpu or asked.config.engine.name is not Engine.auto:
        return
    copies = replace(asked, config=replace(asked.config, engine=replace(asked.config.engine, name=Engine.ddp)))
    if solve(copies).found.best is not None:
        return
    for change in small_changes(copies):
        out = first_that_fits(change)
        if out is not None:
            estimate = out.choice.estimate
            yield Trade(
                change=f"a whole copy on each device (engine=ddp {out.text})",
                saved_bytes=before_bytes - estimate.memory.train.device_bytes,
                step_seconds=estimate.step_seconds,
                time_percent=(1 / estimate.tokens_per_second / before_seconds - 1) * 100,
                fits=True,
            )


def _bargain(trade: Trade) -> tuple[int, float]:
    """What costs no time first, by the bytes it saves; then by bytes per percent; then what needs more memory."""
    if trade.saved_bytes <= 0:
        return 2, trade.time_percent
    if trade.time_percent < _LEAST_PERCENT:
        return 0, -trade.saved_bytes
    return 1, -trade.saved_bytes / trade.time_percent


def _tokens(job: Job, point: Point) -> float:
    return sum(point.place.rows) * job.batch.real_tokens_per_row


def _changes(asked: Asked, job: Job, point: Point) -> Iterator[tuple[str, Job, Point]]:
    """Yield changes of one thing each: what it is called, and what would run."""
    for name, way in _other_ways(point.way, is_gpu=point.place.world.is_gpu):
        if conflict_of(job.config, point.place.world, way, point.place.precision) is None:
            yield name, job, with_knobs(job, replace(point, way=way, zero3=None, extras=None))
    points = list(points_of(job.config, point.place, point.way))
    at = next((index for index, other in enumerate(points) if other.micro == point.micro), 0)
    for index, word in ((at - 1, "smaller"), (at + 1, "larger")):
        if 0 <= index < len(points):
            rows = max(points[index].micro)
            name = f"{word} micro-batch ({rows} row{'s' if rows > 1 else ''} at a time)"
            yield name, job, with_knobs(job, points[index])
    config = asked.config
    rank = config.adapter.rank // 2
    if rank >= 1:
        smaller = replace(asked, config=replace(config, adapter=replace(config.adapter, rank=rank)))
        yield f"smaller adapter (adapter.rank={rank})", job_of(smaller), point
    if config.optimizer.name is Optimizer.adamw and point.way.engine is Engine.ddp and point.place.world.is_gpu:
        named = replace(config, optimizer=replace(config.optimizer, name=Optimizer.adamw_8bit))
        yield "moments in 8 bits (optimizer=adamw_8bit)", replace(job, config=named), point
    if not config.data.packing and not config.data.group_by_length:
        packed = replace(asked, config=replace(config, data=replace(config.data, packing=True)))
        yield "rows joined into full ones (data.packing=true)", job_of(packed), point


def _other_ways(way: Way, *, is_gpu: bool) -> Iterator[tuple[str, Way]]:
    modes = {
        Checkpointing.full: "recompute each layer (checkpointing=full)",
        Checkpointing.selective: "recompute the frozen part (checkpointing=selective)",
        Checkpointing.none: "keep all activations (checkpointing=none)",
    }
    for mode, name in modes.items():
        if mode is not way.checkpointing:
            yield name, replace(way, checkpointing=mode)
    place = way.residency
    if not is_gpu:
        return  # device and host are one memory
    if place is None:
        for target, name in ((Offload.none, "partition the base"), (Offload.cpu, "partition and offload the base")):
            sharded = Residency(param=target, optimizer=target)
            text = f"{name} (engine=zero3 engine.offload_param={target.value})"
            yield text, replace(way, engine=Engine.zero3, residency=sharded)
        return
    for key in ("param", "optimizer"):
        for target in (Offload.none, Offload.cpu):
            if getattr(place, key) is not target:
                what = "the base" if key == "param" else "the optimizer's state"
                where = "on the device" if target is Offload.none else "in host memory"
                copies = place.second_copy and key != "param"  # offloaded, there is nothing to copy
                moved = replace(place, **{key: target}, second_copy=copies)
                yield f"{what} {where} (engine.offload_{key}={target.value})", replace(way, residency=moved)
