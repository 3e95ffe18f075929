"""What the lengths of the rows cost: the longest hundredth in memory and time, padding, and what would help.

Nothing is guessed: each alternative is evaluated like any other strategy, at the point that was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.config import Padding
from orchestrator.planner.evaluate import Job, Point, fits_of, time_of
from orchestrator.planner.variants import job_of, packing_conflict
from orchestrator.workload.batch import BatchShape, DataStats, batch_shape
from orchestrator.workload.row_facts import RowFacts

_LEAST_PERCENT = 2.0  # of time or memory: what saves less is no advice
_LENGTH_STEP = 8  # batches are padded to multiples of eight tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRows:
    """What the longest hundredth of the rows costs, against the same rows cut at the 99th percentile.

    Attributes:
        tokens: the 99th percentile.
        rows: longer ones.
        memory_bytes: of the fullest rank's device while training.
        step_percent: of the time of a step.
    """

    tokens: int
    rows: int
    memory_bytes: int
    step_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One setting, evaluated in the place of what was chosen.

    Attributes:
        setting: as the user would type it.
        time_percent: change of the time per token of the data, in percent.
        memory_bytes: change of the fullest rank's device memory while training.
        rows_cut, answer_tokens_lost: more than without it.
    """

    setting: str
    time_percent: float
    memory_bytes: int
    rows_cut: int = 0
    answer_tokens_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """The rows before the run.

    Attributes:
        facts: their lengths, sources and duplicates.
        padding: part of the tokens of a step that is padding.
        longest: cost of the longest rows; None where all rows are filled up to one length, or are alike.
        advice: what would save at least 2% of time or memory, the fastest first.
    """

    facts: RowFacts
    padding: float
    longest: LongRows | None = None
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    step_seconds: float
    token_seconds: float
    memory_bytes: int


def data_report(job: Job, point: Point, data: DataStats) -> DataReport | None:
    """Evaluate what the lengths cost; None where they are not known."""
    facts = data.facts
    if facts is None:
        return None
    now = _finer(job, facts)
    before = _cost_of(now, point)
    padding = 0.0
    if not job.config.data.packing:
        padded = now.batch.expected_tokens(max(point.micro))
        padding = max(0.0, 1 - now.batch.real_tokens_per_row / padded)
    found = [one for one in _advice(job, point, data, facts, before) if _is_useful(one, before)]
    return DataReport(
        facts=facts,
        padding=padding,
        longest=_longest(now, point, data, facts, before),
        advice=tuple(sorted(found, key=lambda one: one.time_percent)),
    )


def _finer(job: Job, facts: RowFacts) -> Job:
    """The job with a hundred lengths: the planner's 32 do not show the longest hundredth."""
    if not job.batch.quantiles:
        return job
    lengths = tuple(min(job.seq_len, round(tokens)) for tokens in facts.shares)
    mean = sum(lengths) / len(lengths)
    return replace(job, batch=replace(job.batch, quantiles=lengths, real_tokens_per_row=mean))


def _cost_of(job: Job, point: Point) -> _Cost:
    step_seconds = time_of(job, point, terms=False).step_seconds
    tokens = job.config.batch.global_ * job.batch.real_tokens_per_row
    memory = max(fit.memory.train.device_bytes for fit in fits_of(job, point))
    return _Cost(step_seconds=step_seconds, token_seconds=step_seconds / tokens, memory_bytes=memory)


def _longest(job: Job, point: Point, data: DataStats, facts: RowFacts, before: _Cost) -> LongRows | None:
    if job.batch.fixed or min(job.seq_len, facts.longest) <= facts.p99:
        return None
    lengths = tuple(min(facts.p99, tokens) for tokens in job.batch.quantiles)
    batch = replace(_shape(job, replace(data, max_tokens=facts.p99), facts.p99), quantiles=lengths)
    after = _cost_of(replace(job, batch=replace(batch, real_tokens_per_row=sum(lengths) / len(lengths))), point)
    rows = facts.rows - math.ceil(0.99 * facts.rows)
    return LongRows(
        tokens=facts.p99,
        rows=max(1, rows),
        memory_bytes=before.memory_bytes - after.memory_bytes,
        step_percent=(before.step_seconds / after.step_seconds - 1) * 100,
    )


def _shape(job: Job, data: DataStats, seq_len: int) -> BatchShape:
    data = replace(data, mean_tokens=min(data.mean_tokens, float(data.max_tokens)))
    static = job.config.data.padding is Padding.static
    return batch_shape(data, seq_len=seq_len, packing=False, pads_to_seq_len=True, static=static)


def _advice(job: Job, point: Point, data: DataStats, facts: RowFacts, before: _Cost) -> Iterator[Advice]:
    config = job.config
    if config.data.packing:
        return
    if facts.tighter is not None:
        cut = facts.tighter
        shorter = replace(config, data=replace(config.data, seq_len=cut.seq_len))
        # Time per token that is left: what was cut off is no gain of speed.
        cheaper = _finer(job_of(shorter, job.model, data, job.adapter), facts)
        yield replace(
            _told(f"data.seq_len={cut.seq_len}", cheaper, point, before),
            rows_cut=cut.rows - facts.cut.rows,
            answer_tokens_lost=cut.answer_tokens_lost - facts.cut.answer_tokens_lost,
        )
    if packing_conflict(config, job.model, data) is None:
        packed = replace(config, data=replace(config.data, packing=True))
        yield _told("data.packing=true", job_of(packed, job.model, data, job.adapter), point, before)
    if not config.data.group_by_length and not job.batch.fixed:
        # Rows of a micro-batch are then about as long as each other: what is padded is the rounding.
        tokens = -(-math.ceil(job.batch.real_tokens_per_row) // _LENGTH_STEP) * _LENGTH_STEP
        even = replace(job.batch, fixed=True, likely_longest_tokens=tokens, quantiles=())
        yield _told("data.group_by_length=true", replace(job, batch=even), point, before)


def _told(setting: str, job: Job, point: Point, before: _Cost) -> Advice:
    after = _cost_of(job, point)
    return Advice(
        setting=setting,
        time_percent=(after.token_seconds / before.token_seconds - 1) * 100,
        memory_bytes=after.memory_bytes - before.memory_bytes,
    )


def _is_useful(advice: Advice, before: _Cost) -> bool:
    saved_percent = -100 * advice.memory_bytes / before.memory_bytes
    return -advice.time_percent >= _LEAST_PERCENT or saved_percent >= _LEAST_PERCENT
