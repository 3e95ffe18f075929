"""Numbers about token rows: what the planner's estimates and the report read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.dataset.signs import beating

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.dataset.examples import Example


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Of one side of the data, lengths in tokens per document (before packing).

    Attributes:
        rows: documents kept.
        packed_rows: rows to train on; equals `rows` without packing.
        tokens: over all rows, without padding.
        label_tokens: tokens with loss.
        length_p50: half of the documents are at most this long; p90 and p99 alike.
        truncated: rows cut at seq_len.
        dropped: rows without a token to learn.
        labels_lost: tokens with loss that were cut off.
    """

    rows: int
    packed_rows: int
    tokens: int
    label_tokens: int
    length_max: int
    length_mean: float
    length_p50: int
    length_p90: int
    length_p99: int
    truncated: int
    dropped: int
    labels_lost: int = 0


def summarise(
    documents: Sequence[Example],
    num_packed_rows: int,
    num_truncated: int,
    num_dropped: int,
    labels_lost: int = 0,
    beat: Callable[[], None] = lambda: None,
) -> Stats:
    """Statistics of at least one document; `beat` is told meanwhile."""
    lengths = np.fromiter(
        (len(document) for document in beating(documents, beat)), dtype=np.int64, count=len(documents)
    )
    p50, p90, p99 = np.percentile(lengths, (50, 90, 99), method="inverted_cdf")
    return Stats(
        rows=len(documents),
        packed_rows=num_packed_rows,
        tokens=int(lengths.sum()),
        label_tokens=sum(document.num_label_tokens for document in beating(documents, beat)),
        length_max=int(lengths.max()),
        length_mean=float(lengths.mean()),
        length_p50=int(p50),
        length_p90=int(p90),
        length_p99=int(p99),
        truncated=num_truncated,
        dropped=num_dropped,
        labels_lost=labels_lost,
    )
