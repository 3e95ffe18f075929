"""What the user left open of data and optimizer: one job for each choice, with every other value as it was asked."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from orchestrator.config import Optimizer, Padding, RunConfig
from orchestrator.errors import Problem, UserError
from orchestrator.planner.evaluate import Job
from orchestrator.workload.adapter import AdapterShape, adapter_shape
from orchestrator.workload.batch import BatchShape, DataStats, batch_shape
from orchestrator.workload.model import ModelShape
from orchestrator.workload.row_facts import sequence_length

_SPREAD = 64  # lengths that stand for all of them
_BLOCKS = 64  # packed on trial: the last one, partly empty, then hardly counts
_MOST_ROWS = 4096
# Rounded moments, and pages that may travel in the middle of a step, must buy something: an estimate of the same step
# does not. Above the 2% that memory may cost, so that they are never taken for their memory alone.
OPTIMIZER_HANDICAP: Final[Mapping[Optimizer, float]] = MappingProxyType(
    {Optimizer.adamw: 1.0, Optimizer.adamw_8bit: 1.03, Optimizer.paged_adamw_8bit: 1.05}
)


__all__ = ["block_fill", "closed_of", "job_of", "jobs_of", "packed_rows", "packing_conflict", "sequence_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A choice that was left open, but cannot be taken."""

    choice: str
    reason: str


def jobs_of(config: RunConfig, model: ModelShape, data: DataStats, *, is_gpu: bool) -> tuple[Job, ...]:
    """Return a job for each open choice, none of them open any more; those with torch's AdamW come first.

    Raises:
        UserError: a target of the adapters names no module, or more layers are to be recomputed than there are.
    """
    wanted = config.checkpointing_layers
    if wanted is not None and wanted > model.layers:
        found, remedy = f"found {wanted}, {model.name} has {model.layers} layers", f"Give 1 to {model.layers}, or auto."
        raise UserError(Problem(where="checkpointing_layers", found=found, remedy=remedy))
    adapter = adapter_shape(model, config.adapter)
    return tuple(
        job_of(_settled(config, packing=packing, optimizer=optimizer), model, data, adapter)
        for optimizer in _optimizers(config, is_gpu=is_gpu)
        for packing in _packings(config, model, data)
    )


def _settled(config: RunConfig, *, packing: bool, optimizer: Optimizer) -> RunConfig:
    return replace(
        config,
        data=replace(config.data, packing=packing),
        optimizer=replace(config.optimizer, name=optimizer),
    )


def job_of(config: RunConfig, model: ModelShape, data: DataStats, adapter: AdapterShape | None = None) -> Job:
    """Adapters and batches in numbers, for a configuration that leaves neither packing nor optimizer open."""
    seq_len = sequence_length(config, model)
    packing = bool(config.data.packing)
    batch: BatchShape = batch_shape(
        data,
        seq_len=seq_len,
        packing=packing,
        pads_to_seq_len=config.data.seq_len is not None,
        static=config.data.padding is Padding.static,
    )
    if packing:
        batch = replace(batch, real_tokens_per_row=seq_len * block_fill(data, seq_len))
    adapter = adapter_shape(model, config.adapter) if adapter is None else adapter
    rows = packed_rows(data, seq_len) if packing else data.rows
    steps = config.batch.max_steps or math.ceil(rows * config.batch.epochs / config.batch.global_)
    return Job(config=config, model=model, adapter=adapter, batch=batch, seq_len=seq_len, num_steps=steps)


def _optimizers(config: RunConfig, *, is_gpu: bool) -> tuple[Optimizer, ...]:
    wanted = config.optimizer.name
    if wanted is not Optimizer.auto:
        return (wanted,)
    # On a CPU the moments lie in the same memory wherever they are, and there is nothing to page.
    return tuple(OPTIMIZER_HANDICAP) if is_gpu else (Optimizer.adamw,)


def _packings(config: RunConfig, model: ModelShape, data: DataStats) -> tuple[bool, ...]:
    if config.data.packing is not None:
        return (config.data.packing,)
    return (False,) if packing_conflict(config, model, data) else (False, True)


def packing_conflict(config: RunConfig, model: ModelShape, data: DataStats) -> str | None:
    """Say why rows that may be packed are not, if so."""
    if config.data.group_by_length:
        return "data.group_by_length evens out the lengths already"
    if config.data.padding is Padding.static:
        return "data.padding=static pads each row to one length"
    rows = packed_rows(data, sequence_length(config, model))
    if rows < config.batch.global_:
        return f"an epoch of {rows:,} packed rows does not fill a batch of {config.batch.global_:,} (batch.global)"
    return None


def closed_of(config: RunConfig, model: ModelShape, data: DataStats) -> Iterator[Closed]:
    """Yield what was left open and cannot be taken."""
    if config.data.packing is None and (reason := packing_conflict(config, model, data)):
        yield Closed(choice="data.packing=true", reason=reason)


def packed_rows(data: DataStats, seq_len: int) -> int:
    """Rows of an epoch once they are packed, documents whole."""
    return max(1, math.ceil(data.total_tokens / (seq_len * block_fill(data, seq_len))))


@lru_cache(maxsize=64)
def block_fill(data: DataStats, seq_len: int) -> float:
    """Share of a packed row that holds tokens, when documents stay whole.

    Rows of the known lengths (or, where only mean and longest are known, of lengths that have both) are packed like
    the data set will be: best fit, longest first.
    """
    lengths = [min(seq_len, tokens) for tokens in data.quantiles or _spread(data.mean_tokens, data.max_tokens)]
    total = sum(lengths)
    copies = max(1, min(_MOST_ROWS // len(lengths), math.ceil(_BLOCKS * seq_len / total)))
    room: list[int] = []  # what is left in each block, ascending
    for tokens in sorted(lengths, reverse=True):
        for _ in range(copies):
            at = bisect_left(room, tokens)
            left = room.pop(at) if at < len(room) else seq_len
            insort(room, left - tokens)
    # The emptiest block was waiting for more rows: its room is no loss of packing.
    return copies * total / (seq_len * len(room) - room[-1])


def _spread(mean: float, longest: int) -> tuple[int, ...]:
    """Lengths with this mean and this longest one: longest x u^p for u from 0 to 1 has the mean longest / (p + 1)."""
    power = longest / mean - 1
    return tuple(max(1, round(longest * ((at + 0.5) / _SPREAD) ** power)) for at in range(_SPREAD))
