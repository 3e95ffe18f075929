"""Pre-training of a small causal language model on CPU threads, within a budget of minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM

SEQ_LEN = 256
BATCH_ROWS = 8  # half documentation, half source
EVAL_ROWS = 32  # of each kind
PEAK_LR = 3e-3
FINAL_LR_SHARE = 0.02
WARMUP_SHARE = 0.03
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0
LOG_EVERY_S = 20.0
EVAL_EVERY_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Token streams of the two kinds of text."""

    docs: torch.Tensor
    sources: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One line of the training record; losses in nats per token."""

    seconds: float
    step: int
    tokens: int
    train_loss: float
    held_out_docs: float
    held_out_sources: float


def windows(stream: torch.Tensor, num_rows: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless `[num_rows, SEQ_LEN]` batches; each pass covers the stream from a new offset."""
    generator = torch.Generator().manual_seed(seed)
    span = torch.arange(SEQ_LEN)
    while True:
        offset = int(torch.randint(SEQ_LEN, (1,), generator=generator))
        starts = torch.arange(offset, len(stream) - SEQ_LEN, SEQ_LEN)
        starts = starts[torch.randperm(len(starts), generator=generator)]
        for i in range(0, len(starts) - num_rows + 1, num_rows):
            yield stream[starts[i : i + num_rows, None] + span]


def make_optimizer(model: LlamaForCausalLM) -> torch.optim.AdamW:
    """AdamW; norms are not decayed."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]  # noqa: PLR2004 - matrices
    vectors = [p for p in model.parameters() if p.dim() < 2]  # noqa: PLR2004 - vectors
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95))


def learning_rate(progress: float) -> float:
    """Linear warm-up, then a cosine down to FINAL_LR_SHARE of the peak; `progress` in 0..1."""
    if progress < WARMUP_SHARE:
        return PEAK_LR * max(progress / WARMUP_SHARE, 0.01)
    done = min((progress - WARMUP_SHARE) / (1 - WARMUP_SHARE), 1.0)
    return PEAK_LR * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * (1 + math.cos(math.pi * done)) / 2)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: torch.Tensor) -> float:
    """Mean loss over the first EVAL_ROWS windows of a held-out stream."""
    rows = stream[: len(stream) // SEQ_LEN * SEQ_LEN].view(-1, SEQ_LEN)[:EVAL_ROWS]
    model.eval()
    losses = [model(input_ids=b, labels=b).loss.item() * len(b) for b in rows.split(BATCH_ROWS)]
    model.train()
    return float(sum(losses) / len(rows))


def train_step(model: LlamaForCausalLM, optimizer: torch.optim.AdamW, batch: torch.Tensor, lr: float) -> float:
    """One update of the model at learning rate `lr`; returns the loss before it."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = model(input_ids=batch, labels=batch).loss
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    return float(loss.item())


def pretrain(
    model: LlamaForCausalLM,
    train: Streams,
    held_out: Streams,
    *,
    minutes: float,
    seed: int,
    save: Callable[[list[Point]], None],
) -> list[Point]:
    """Train `model` in place for `minutes`; `save` is called after each held-out evaluation.

    The learning rate is a function of the share of the time spent.
    """
    optimizer = make_optimizer(model)
    docs = windows(train.docs, BATCH_ROWS // 2, seed)
    sources = windows(train.sources, BATCH_ROWS // 2, seed + 1)
    budget_s, start = 60.0 * minutes, time.monotonic()
    points: list[Point] = []
    losses: list[float] = []
    elapsed, step, next_log, next_eval = 0.0, 0, 0.0, EVAL_EVERY_S
    model.train()
    while elapsed < budget_s:
        batch = torch.cat([next(docs), next(sources)])
        losses.append(train_step(model, optimizer, batch, learning_rate(elapsed / budget_s)))
        step += 1
        elapsed = time.monotonic() - start
        if elapsed >= next_log:
            print_progress(elapsed, budget_s, step, losses[-50:])
            next_log = elapsed + LOG_EVERY_S
        if elapsed >= min(next_eval, budget_s):
            points.append(evaluate(model, held_out, elapsed, step, losses[-50:]))
            save(points)
            next_eval = elapsed + EVAL_EVERY_S
    return points


def print_progress(elapsed: float, budget_s: float, step: int, losses: list[float]) -> None:
    """One line: time, speed, the mean of the latest losses, the time left."""
    rate = step * BATCH_ROWS * SEQ_LEN / elapsed
    print(
        f"{elapsed:6.0f} s  step {step:5d}  {rate:6.0f} tokens/s  "
        f"train loss {sum(losses) / len(losses):.3f}  ETA {max(budget_s - elapsed, 0.0):5.0f} s",
        flush=True,
    )


def evaluate(model: LlamaForCausalLM, held_out: Streams, elapsed: float, step: int, losses: list[float]) -> Point:
    """Measure and print the held-out losses."""
    point = Point(
        seconds=round(elapsed, 1),
        step=step,
        tokens=step * BATCH_ROWS * SEQ_LEN,
        train_loss=round(sum(losses) / len(losses), 4),
        held_out_docs=round(held_out_loss(model, held_out.docs), 4),
        held_out_sources=round(held_out_loss(model, held_out.sources), 4),
    )
    print(
        f"{point.seconds:6.0f} s  held-out loss: docs {point.held_out_docs:.3f}, sources {point.held_out_sources:.3f}",
        flush=True,
    )
    return point
