"""Decides whether gradients travel sparse: only where that is predicted to save more than 3% of a step, or as asked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from orchestrator.config import Compress, Engine, RunConfig
from orchestrator.estimate.setting import DTYPE_BYTES, Machine
from orchestrator.estimate.time_moves import moves_of
from orchestrator.estimate.time_practice import practice_of
from orchestrator.estimate.values import StepTime
from orchestrator.planner.compress_break_even import break_even
from orchestrator.planner.compress_costs import Offer, Wire, best_offer, wire_of
from orchestrator.planner.compress_load import load_of
from orchestrator.planner.compress_refresh import count_refreshes
from orchestrator.planner.compression import CHUNK, CompressionPlan, Kind, Values, codec_of
from orchestrator.planner.dtypes import adapter_dtype
from orchestrator.planner.evaluate import Job, Place, Point, setting_of, time_of
from orchestrator.planner.world import RankClass
from topology.units import MIB, format_bytes, format_rate, format_seconds

WORTH: Final = 0.03  # of a step: below that the gain is smaller than predictions err
_REDUCE, _GATHERS = "all_reduce", "gathers"
_LARGE: Final = 1024 * MIB
_HOOKED: Final = frozenset({Engine.ddp, Engine.streamed})  # both train adapters in DistributedDataParallel


def offer_of(job: Job, place: Place) -> Offer | None:
    """The best exchange of sparse gradients; None where the user wants none, or none is possible."""
    config = job.config
    if config.compress.name is Compress.none or place.world.size == 1:
        return None
    machine = _slowest(place)
    load = load_of(job.adapter, DTYPE_BYTES[adapter_dtype(config, Engine.ddp, place.precision)])
    return best_offer(config.compress, load, wire_of(place.world, machine), machine, _refresh_share(job))


def _refresh_share(job: Job) -> float:
    """The part of the run's compressed steps in which all elements travel; 0 where it is not known how many there are.

    Everything travels in every step anyway where the density is 1.
    """
    wanted = job.config.compress
    begin = warmup_steps(job.config, job.num_steps)
    if job.num_steps <= begin or codec_of(wanted.density, wanted.values).kept == CHUNK:
        return 0.0
    return count_refreshes(wanted.refresh, begin, job.num_steps) / (job.num_steps - begin)


def _slowest(place: Place) -> Machine:
    def speed(ranks: RankClass) -> tuple[float, float]:
        return ranks.machine.memory_bytes_per_second, ranks.machine.cores

    return min(place.classes, key=speed).machine


def sparse_first(job: Job, point: Point, offer: Offer | None) -> Point:
    """The point with sparse gradients, where the user asks for them whatever they cost."""
    if offer is None or job.config.compress.name is not Compress.topk or point.way.engine not in _HOOKED:
        return point
    return replace(point, sparse=offer)


def sparse_instead(job: Job, point: Point, dense: StepTime, offer: Offer | None) -> tuple[Point, StepTime] | None:
    """The point with sparse gradients and its time, where that saves more than 3% of a step with dense ones."""
    if offer is None or point.sparse is not None or point.way.engine not in _HOOKED:
        return None
    if job.config.compress.name is not Compress.auto or offer.sent_bytes >= offer.dense_bytes:
        return None
    # All that could be saved is what the dense ones add to the step, at most all of their work.
    if dense.reduce_seconds <= WORTH * dense.step_seconds:
        return None
    if _seconds(time_of(job, point), _REDUCE) <= WORTH * dense.step_seconds:
        return None
    sparse = replace(point, sparse=offer)
    time = time_of(job, sparse, terms=False)
    return (sparse, time) if dense.step_seconds - time.step_seconds > WORTH * dense.step_seconds else None


def conflict_of_sparse(job: Job, point: Point) -> str | None:
    """Why sparse gradients that were asked for cannot go with a way; `point` is of that way."""
    if job.config.compress.name is not Compress.topk:
        return None
    if point.place.world.size == 1:
        return "one rank sends no gradients: compress=topk needs more, or use compress=none"
    if point.way.engine in _HOOKED:
        if offer_of(job, point.place) is None:
            return "no islands of faster links to sum in: use compress.exchange=auto or split"
        return None
    return f"{_no_hook(job, point)}: use engine=ddp or compress=none"


def _no_hook(job: Job, point: Point) -> str:
    dense = replace(point, sparse=None)
    gradients, whole = _moved_bytes(job, dense)
    why = "DeepSpeed has no hook for gradients"
    return (
        f"{why}; compressing them would save at most {gradients / whole:.1%} of the "
        f"bytes that travel in a step ({_size(gradients)} of {format_bytes(whole)})"
    )


def _moved_bytes(job: Job, point: Point) -> tuple[int, int]:
    """Bytes of gradients, and of all that a rank of a sharded engine sends in a step."""
    setting = setting_of(job, point, 0)
    moves = moves_of(setting, practice_of(setting.stack))
    ranks = setting.world_size
    gradients = moves.reduced_bytes * moves.reduces * (ranks - 1) / ranks
    return round(gradients), max(1, round(gradients + moves.gathered_bytes * moves.passes * setting.accumulation))


def compression_of(job: Job, point: Point, offer: Offer | None, num_steps: int) -> CompressionPlan | None:
    """What the plan says of the chosen point: on or off, why, and all that was reckoned.

    Args:
        job: of the point.
        point: that was chosen.
        offer: the best exchange at its place (`offer_of`).
        num_steps: of the run; 0 for those of the job.

    Returns:
        None for one rank, and where the user wants none.
    """
    wanted = job.config.compress
    if wanted.name is Compress.none or point.place.world.size == 1:
        return None
    if point.way.engine not in _HOOKED:
        return CompressionPlan(kind=Kind.none, why=f"Compression: off, since {_no_hook(job, point)}.")
    if offer is None:
        why = "Compression: off, since there are no islands of faster links to sum in (compress.exchange=hierarchical)."
        return CompressionPlan(kind=Kind.none, why=why)
    dense, sparse = (time_of(job, replace(point, sparse=each)) for each in (None, offer))
    bare = _exposed(dense)
    machine = _slowest(point.place)
    wire = wire_of(point.place.world, machine)
    dense_seconds = _total(dense, _REDUCE)
    found = CompressionPlan(
        kind=Kind.none if point.sparse is None else Kind.topk,
        why="",
        codec=offer.codec,
        exchange=offer.pattern.exchange,
        island=offer.pattern.island,
        warmup_steps=warmup_steps(job.config, num_steps or job.num_steps),
        refresh_fraction=wanted.refresh,
        num_steps=num_steps or job.num_steps,
        chunks=offer.load.chunks,
        seconds=offer.seconds,
        dense_seconds=dense_seconds,
        exposed_seconds=max(0.0, sparse.step_seconds - (dense.step_seconds - bare)),
        dense_exposed_seconds=bare,
        step_seconds=dense.step_seconds,
        dense_bytes=offer.dense_bytes,
        sparse_bytes=offer.sent_bytes,
        topk_bytes=offer.topk.sent_bytes,
        refresh_bytes=offer.refresh.sent_bytes,
        break_even_bytes_per_second=break_even(job, point, offer, wire, machine),
        residual_bytes=offer.cost.residual_bytes,
        buffer_bytes=offer.cost.buffer_bytes,
    )
    return replace(found, why=_why(found, wire, forced=wanted.name is Compress.topk))


def with_warmup(found: CompressionPlan, config: RunConfig, num_steps: int) -> CompressionPlan:
    """The same for a run of `num_steps`."""
    if found.codec is None:
        return found
    return replace(found, warmup_steps=warmup_steps(config, num_steps), num_steps=num_steps)


def warmup_steps(config: RunConfig, num_steps: int) -> int:
    """Dense steps at the beginning of a run of `num_steps`."""
    return min(config.compress.max_warmup_steps, math.ceil(config.compress.warmup_fraction * num_steps))


def _exposed(time: StepTime) -> float:
    return _seconds(time, _REDUCE)


def _seconds(time: StepTime, name: str) -> float:
    return sum(term.seconds for term in time.terms if term.name == name)


def _total(time: StepTime, name: str) -> float:
    return sum(term.total_seconds for term in time.terms if term.name == name)


def _why(found: CompressionPlan, wire: Wire, *, forced: bool) -> str:
    """Two sentences: the decision with its numbers, and what it costs or would need."""
    assert found.seconds is not None  # noqa: S101 - whoever asks has an offer
    gain, step = found.gain_seconds or 0.0, found.step_seconds or math.inf
    how = _how(found)
    times = (
        f"dense gradients of the same ranks take {format_seconds(found.dense_seconds or 0.0)} a step, "
        f"{format_seconds(found.dense_exposed_seconds or 0.0)} of it not hidden; "
        f"sparse {format_seconds(found.seconds.total)}, {format_seconds(found.exposed_seconds or 0.0)} not hidden"
    )
    needs = (
        f"{_limit(found.break_even_bytes_per_second)} (here {format_rate(wire.bytes_per_second)}); "
        f"what was not sent yet takes {_size(found.residual_bytes)} a rank."
    )
    change = f"{'saves' if gain >= 0 else 'costs'} {format_seconds(abs(gain))} a step ({gain / step:+.1%})"
    if found.kind is Kind.topk:
        asked = ", as asked" if forced else ""
        return f"Compression: on{asked}: {how} {change}: {times}.\n{needs}"
    if found.sparse_bytes >= found.dense_bytes:
        reason = f"sparse gradients are no fewer bytes ({_size(found.sparse_bytes)} of {_size(found.dense_bytes)})"
    elif gain <= WORTH * step:
        reason = f"{how} {change}, less than the {WORTH:.0%} that are needed: {times}"
    else:
        reason = f"{how} {change}, but their memory does not fit"
    return f"Compression: off, since {reason}.\n{needs}"


def _how(found: CompressionPlan) -> str:
    """What travels, and when."""
    assert found.codec is not None  # noqa: S101 - whoever asks has an offer
    how = f"top {found.codec.density:.2%} in {found.codec.values.value}, {found.exchange.value}"
    if found.island > 1:
        how += f" over islands of {found.island}"
    whole = {Values.int4: "4 bits"}.get(found.codec.whole.values, found.codec.whole.values.value)
    refreshes, compressed = found.refreshes(found.num_steps), max(0, found.num_steps - found.warmup_steps)
    if refreshes:
        how += f" ({refreshes:,} of {compressed:,} compressed steps send all elements in {whole})"
    return how


def _limit(even: float | None) -> str:
    if even is None:
        return "Sparse gradients are the sooner ones there at every rate of the links"
    if not even:
        return "Dense gradients are the sooner ones there at every rate of the links"
    return f"Sparse gradients are the sooner ones there below {format_rate(even)} a rank"


def _size(nbytes: int) -> str:
    return format_bytes(nbytes) if nbytes >= _LARGE else f"{nbytes / MIB:.1f} MiB"
