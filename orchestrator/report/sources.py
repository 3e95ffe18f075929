"""The sources of a mixture in the summary of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def source_lines(summary: Mapping[str, Any]) -> list[str]:
    """A line for each source: rows, rows of an epoch, and held-out loss before and after."""
    sources = summary.get("sources") or ()
    width = max((len(source["name"]) for source in sources), default=0)
    return [
        f"{'Sources' if at == 0 else '':<10}{source['name']:<{width}}  {source['rows']:,} rows, "
        f"{source['epoch_rows']:,} in an epoch; {_loss(source)}"
        for at, source in enumerate(sources)
    ]


def _loss(source: Mapping[str, Any]) -> str:
    before, after, rows = source["eval_loss_before"], source["eval_loss_after"], source["eval_rows"]
    if after is None:
        return "no held-out loss"
    start = "" if before is None else f"{before:.4f} before, "
    return f"held-out loss of {rows:,} rows {start}{after:.4f} after"
