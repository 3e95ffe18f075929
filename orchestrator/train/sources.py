"""The sources of a mixture in a run: how much of an epoch each is, and how well it is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.config import RunConfig
from orchestrator.data_inputs import data_source
from orchestrator.dataset.cache import PartRows
from orchestrator.dataset.mixture import Part, epoch_rows

if TYPE_CHECKING:
    from orchestrator.train.evaluate import EvalResult


def seen_of(config: RunConfig, parts: Sequence[PartRows]) -> tuple[tuple[int, int], ...]:
    """(rows, rows of an epoch) of each source; blocks, where rows are packed. Empty for a single file."""
    if not parts:
        return ()
    sources = data_source(config.data, config.seed).sources
    mixed = [
        Part(rows=part.rows, weight=source.weight, share=source.share)
        for part, source in zip(parts, sources, strict=True)
    ]
    return tuple((part.rows, seen) for part, seen in zip(mixed, epoch_rows(mixed), strict=True))


def order_of(config: RunConfig, parts: Sequence[PartRows]) -> str:
    """What the order of the rows depends on besides seed and batch, as a checkpoint keeps it."""
    seen = seen_of(config, parts)
    return ", ".join(f"{part.name} {rows} of {of} rows" for part, (of, rows) in zip(parts, seen, strict=True))


def told(config: RunConfig, parts: Mapping[str, Sequence[PartRows]]) -> list[str]:
    """A line for each source: what it has, and how much of it an epoch sees."""
    train, held = parts.get("train", ()), {part.name: part for part in parts.get("eval", ())}
    unit = "blocks" if config.data.packing else "rows"
    return [
        f"source {part.name}: {part.documents:,} rows, {part.tokens:,} tokens, {part.label_tokens:,} with loss; "
        f"an epoch sees {seen:,} {unit} of {rows:,} ({seen / rows:.2f} times); "
        f"{held[part.name].rows if part.name in held else 0:,} held out"
        for part, (rows, seen) in zip(train, seen_of(config, train), strict=True)
    ]


def summary_of(
    config: RunConfig,
    parts: Mapping[str, Sequence[PartRows]],
    before: Mapping[str, float | None],
    after: Mapping[str, float | None],
) -> list[dict[str, Any]] | None:
    """Rows and held-out losses of each source; None where there is a single file.

    Args:
        config: of the run.
        parts: sources of each side.
        before: `source_losses` of the base; empty where it was not evaluated.
        after: those of the trained model.
    """
    train = parts.get("train", ())
    if not train:
        return None
    eval_rows = {part.name: part.rows for part in parts.get("eval", ())}
    return [
        {
            "name": part.name,
            "rows": part.documents,
            "tokens": part.tokens,
            "epoch_rows": seen,
            "eval_rows": eval_rows.get(part.name, 0),
            "eval_loss_before": before.get(part.name),
            "eval_loss_after": after.get(part.name),
        }
        for part, (_, seen) in zip(train, seen_of(config, train), strict=True)
    ]


def source_losses(held: Sequence[PartRows], result: EvalResult) -> dict[str, float | None]:
    """Mean loss of a label token of each source's held-out rows, in nats; None where no token was counted."""
    losses: dict[str, float | None] = {}
    start = 0
    for part in held:
        end = start + part.rows
        tokens = sum(result.row_tokens[start:end])
        losses[part.name] = sum(result.row_losses[start:end]) / tokens if tokens else None
        start = end
    return losses
