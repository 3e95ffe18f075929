"""The sources of a mixture in a run: how much of an epoch each is, and how well it is learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from orchestrator.config import RunConfig
from orchestrator.data_inputs import data_source
from orchestrator.dataset.cache import PartRows
from orchestrator.dataset.examples import Example
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
    held_out: Sequence[Example],
    before: EvalResult | None,
    after: EvalResult | None,
) -> list[dict[str, Any]] | None:
    """Rows and held-out losses of each source; None where there is a single file."""
    train = parts.get("train", ())
    if not train:
        return None
    losses = dict.fromkeys((part.name for part in train), (None, None))
    held = parts.get("eval", ())
    ends = list(accumulate(part.rows for part in held))
    for part, end in zip(held, ends, strict=True):
        rows = range(end - part.rows, end)
        tokens = sum(held_out[row].num_label_tokens for row in rows)
        losses[part.name] = tuple(_loss(result, rows, tokens) for result in (before, after))  # type: ignore[assignment]
    eval_rows = {part.name: part.rows for part in held}
    return [
        {
            "name": part.name,
            "rows": part.documents,
            "tokens": part.tokens,
            "epoch_rows": seen,
            "eval_rows": eval_rows.get(part.name, 0),
            "eval_loss_before": losses[part.name][0],
            "eval_loss_after": losses[part.name][1],
        }
        for part, (_, seen) in zip(train, seen_of(config, train), strict=True)
    ]


def _loss(result: EvalResult | None, rows: range, tokens: int) -> float | None:
    """Mean loss of a label token of these rows, in nats."""
    if result is None or not tokens or len(result.row_losses) < rows.stop:
        return None
    return sum(result.row_losses[row] for row in rows) / tokens
