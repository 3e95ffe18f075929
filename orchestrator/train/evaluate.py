"""Held-out loss, token-weighted, the same for every engine and world size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from orchestrator.train.groups import MetricsGroup
from orchestrator.train.settings import TrainSettings
from orchestrator.train.trainer import Batch, autocast

_MAX_RECORDED_POSITIONS = 8
_IGNORED = -100

Collate = Callable[[Sequence[int]], Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """What an evaluation found.

    Attributes:
        loss: mean negative log-likelihood of a label token, in nats.
        tokens: label tokens counted.
        row_losses: summed negative log-likelihood of each held-out row, in row order.
        row_tokens: label tokens counted of each.
    """

    loss: float
    tokens: int
    row_losses: tuple[float, ...]
    row_tokens: tuple[int, ...]
    seconds: float


def evaluate(
    model: nn.Module,
    collate: Collate,
    num_rows: int,
    settings: TrainSettings,
    group: MetricsGroup,
) -> EvalResult:
    """Score every held-out row once; collective.

    Row i goes to rank i modulo the world size. Every rank runs the same number of forward passes
    (a masked row fills up): with ZeRO-3 each pass is collective.
    """
    began = time.perf_counter()
    micro = max(settings.micro)
    own = list(range(settings.rank, num_rows, settings.world_size))
    per_rank = -(-num_rows // settings.world_size)
    own += [-1] * (per_rank - len(own))
    found: list[tuple[int, float, int]] = []
    was_training = model.training
    model.eval()
    with torch.no_grad(), autocast(settings):
        for start in range(0, per_rank, micro):
            indices = own[start : start + micro]
            found.extend(_score(model, collate, indices, settings))
    model.train(was_training)
    rows = sorted(item for part in group.gather(found) for item in part)
    tokens = sum(count for _, _, count in rows)
    return EvalResult(
        loss=sum(loss for _, loss, _ in rows) / max(tokens, 1),
        tokens=tokens,
        row_losses=tuple(loss for _, loss, _ in rows),
        row_tokens=tuple(count for _, _, count in rows),
        seconds=time.perf_counter() - began,
    )


def _score(
    model: nn.Module, collate: Collate, indices: Sequence[int], settings: TrainSettings
) -> list[tuple[int, float, int]]:
    batch = {name: value.to(settings.device) for name, value in collate(indices).items()}
    outputs = model(**batch, use_cache=False, fused_lm_head=True)
    losses = (-outputs.log_probs.double()).sum(dim=-1).tolist()
    counts = outputs.label_mask.sum(dim=-1).tolist()
    # A padding-free batch folds its rows into one; each row is collated alone then.
    return [(index, loss, int(count)) for index, loss, count in zip(indices, losses, counts, strict=True) if index >= 0]


def record_logits(model: nn.Module, collate: Collate, settings: TrainSettings, path: Path) -> None:
    """Write the logits of the first held-out row, so that an exported adapter can be checked.

    Collective (every rank runs the pass); rank 0 writes `input_ids` [tokens], `positions` [n] and
    `logits` [n, vocabulary] in fp32 for the last label positions.
    """
    batch: dict[str, Any] = {name: v.to(settings.device) for name, v in collate([0]).items()}
    labels = batch.pop("labels")[0]
    was_training = model.training
    model.eval()
    with torch.no_grad(), autocast(settings):
        logits = model(**batch, use_cache=False).logits[0]
    model.train(was_training)
    if not settings.is_main:
        return
    positions = (labels[1:] != _IGNORED).nonzero().flatten()[-_MAX_RECORDED_POSITIONS:]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            "input_ids": batch["input_ids"][0].cpu(),
            "positions": positions.cpu(),
            "logits": logits[positions].float().cpu().contiguous(),
        },
        path,
    )
