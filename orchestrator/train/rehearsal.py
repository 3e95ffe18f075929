"""Tries what needs most memory before the first step: the longest batch, an evaluation step, a save without files.

So most runs that do not fit say so at once, not at step 128. Nothing of it stays: gradients, generators, counters and
the position in the data are as before, so the losses of the run are the same bit by bit. No rank exchanges gradients
meanwhile: torch settles its buckets in the first exchange, and the first step is to find them as it always does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from orchestrator.config import Attention, Optimizer, Rehearse, RunConfig
from orchestrator.planner.plan import Plan
from orchestrator.train import rng
from orchestrator.train.model import trainable
from orchestrator.train.rows import MASKED, RowBatcher, lengths_of
from orchestrator.train.sampler import GlobalSampler, RankBatches
from orchestrator.train.settings import TrainSettings
from orchestrator.train.trainer import PlannedTrainer, TokenMeter, autocast

_MOST_ROWS: Final = 2_000_000  # that are looked at for the longest batch: some seconds of Python
_EIGHT_BIT: Final = frozenset({Optimizer.adamw_8bit, Optimizer.paged_adamw_8bit})
_PAGED_FROM: Final = 100_000  # elements: smaller states of bitsandbytes are ordinary tensors
_MOMENTS: Final = 2

Indices = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What was tried: rows and tokens of the longest batches, and the time it took."""

    rows: int
    tokens: int
    eval_rows: int
    eval_tokens: int
    seconds: float


def is_wanted(config: RunConfig, plan: Plan) -> bool:
    """Whether to rehearse: where the user says so, else on GPUs, and wherever memory has run out before."""
    wanted = config.recovery.rehearse
    if wanted is not Rehearse.auto:
        return wanted is Rehearse.true
    return plan.device_kind == "gpu" or bool(plan.setbacks is not None and plan.setbacks.ceilings)


def conflict(settings: TrainSettings) -> str:
    """Say why this engine is not rehearsed; empty where it can be."""
    return "DeepSpeed counts each backward pass, and there is no taking one back" if settings.is_zero3 else ""


def longest_batch(
    batches: Sequence[Indices] | Iterator[Indices], lengths: Sequence[int], *, quadratic: bool = False
) -> Indices:
    """Return the micro-batch that takes most memory: by padded tokens, or by scores of all pairs of tokens.

    Args:
        batches: row indices; `MASKED` stands for the shortest row.
        lengths: tokens of each row.
        quadratic: attention writes its scores out, tokens x tokens a row.
    """
    shortest = min(lengths)

    def weight(indices: Indices) -> tuple[int, int]:
        longest = max(shortest if index == MASKED else lengths[index] for index in indices)
        return len(indices) * (longest * longest if quadratic else longest), longest

    return max(batches, key=weight)


def batches_of(sampler: GlobalSampler, settings: TrainSettings, start_step: int) -> Iterator[Indices]:
    """The micro-batches of this rank to the end of the run; of very long runs the first two million rows' worth."""
    batches = RankBatches(
        sampler=sampler,
        rank=settings.rank,
        shares=settings.shares,
        micro=settings.micro,
        start_step=min(start_step, sampler.num_steps - 1),
    )
    left = _MOST_ROWS
    for indices in batches:
        yield indices
        left -= len(indices)
        if left <= 0:
            return


def held_out_batches(num_rows: int, settings: TrainSettings) -> list[Indices]:
    """The batches of this rank in an evaluation, as `evaluate` makes them."""
    own = list(range(settings.rank, num_rows, settings.world_size)) or [MASKED]
    micro = max(settings.micro)
    return [tuple(own[at : at + micro]) for at in range(0, len(own), micro)]


@contextlib.contextmanager
def nothing_changed(trainer: PlannedTrainer) -> Iterator[None]:
    """Put back generators, gradients, counters and the mode of the model."""
    parameters = [parameter for _, parameter in trainable(trainer.model)]
    states, gradients = rng.capture(), [parameter.grad for parameter in parameters]
    training = trainer.model_wrapped.training
    meter, trainer.meter = trainer.meter, TokenMeter()
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        trainer.model_wrapped.train(training)
        trainer.meter = meter
        rng.restore(states)


def rehearse(
    trainer: PlannedTrainer,
    train: tuple[RowBatcher, GlobalSampler],
    held_out: RowBatcher | None,
    config: RunConfig,
    *,
    capture: Callable[[], object],
    beat: Callable[[str], None],
    answers: Callable[[], None] = lambda: None,
) -> Rehearsed:
    """Try the longest batch, an evaluation step and a save; all ranks call this, not with engine zero3.

    Args:
        trainer: with optimizer and wrapped model, before its first step.
        train: the rows of the run and their order.
        held_out: the rows of its evaluations; None without.
        config: of the run.
        capture: gathers what a checkpoint holds; collective.
        beat: told the phase that begins.
        answers: holds the memory that the answers of an evaluation will.
    """
    began = time.perf_counter()
    batcher, sampler = train
    settings = trainer.settings
    lengths = _lengths(batcher)
    quadratic = config.model.attention is Attention.eager
    start = trainer.state.global_step
    longest = longest_batch(batches_of(sampler, settings, start), lengths, quadratic=quadratic)
    tried: Indices = ()
    with nothing_changed(trainer), _moments(trainer, config.optimizer.name) as moments:
        beat("training")
        tokens = _train_step(trainer, batcher(longest), accumulates=settings.accumulation > 1)
        eval_tokens = 0
        if held_out is not None:
            beat("evaluating")
            tried = longest_batch(
                held_out_batches(len(held_out.rows), settings), _lengths(held_out), quadratic=quadratic
            )
            eval_tokens = _eval_step(trainer, held_out(tried))
        answers()
        beat("saving")
        # What is not there before the first step: the moments, on their way to the file.
        copies = [moment.cpu() for moment in moments]
        capture()
        del copies
    return Rehearsed(
        rows=len(longest),
        tokens=tokens,
        eval_rows=len(tried),
        eval_tokens=eval_tokens,
        seconds=time.perf_counter() - began,
    )


def _lengths(batcher: RowBatcher) -> list[int]:
    lengths = lengths_of(batcher.rows)
    cut: list[int] = (lengths if batcher.cut_to is None else lengths.clip(max=batcher.cut_to)).tolist()
    return cut


@contextlib.contextmanager
def _moments(trainer: PlannedTrainer, optimizer: Optimizer) -> Iterator[list[torch.Tensor]]:
    """Hold as much memory as the optimizer's state will, where it is not there yet."""
    wrapped: Any = trainer.optimizer  # by accelerate
    state = getattr(wrapped, "optimizer", wrapped).state
    held: list[torch.Tensor] = []
    for _, parameter in trainable(trainer.model):
        is_paged = optimizer is Optimizer.paged_adamw_8bit and parameter.numel() >= _PAGED_FROM
        if not state.get(parameter) and not is_paged:  # paged moments are no memory of the device
            dtype = torch.uint8 if optimizer in _EIGHT_BIT else parameter.dtype
            held += [torch.zeros_like(parameter, dtype=dtype, requires_grad=False) for _ in range(_MOMENTS)]
    try:
        yield held
    finally:
        held.clear()


def _train_step(trainer: PlannedTrainer, batch: dict[str, torch.Tensor], *, accumulates: bool) -> int:
    """One forward and backward pass on top of gradients that wait; returns its tokens, padding included."""
    model: nn.Module = trainer.model_wrapped
    model.train()
    for _, parameter in trainable(trainer.model):
        parameter.grad = torch.zeros_like(parameter) if accumulates else None
    batch = {name: value.to(trainer.settings.device) for name, value in batch.items()}
    no_sync = getattr(model, "no_sync", contextlib.nullcontext)
    with no_sync():
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, batch)
        torch.autograd.backward(loss)
    float(loss)  # waits for the device
    return int(batch["input_ids"].numel())


def _eval_step(trainer: PlannedTrainer, batch: dict[str, torch.Tensor]) -> int:
    """One pass as `evaluate` makes them."""
    model = trainer.model
    model.eval()
    batch = {name: value.to(trainer.settings.device) for name, value in batch.items()}
    with torch.no_grad(), autocast(trainer.settings):
        outputs = model(**batch, use_cache=False, fused_lm_head=True)
        outputs.log_probs.double().sum(dim=-1).tolist()
    return int(batch["input_ids"].numel())
