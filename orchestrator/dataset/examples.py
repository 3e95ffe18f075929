"""Token rows: what tokenising makes and batching takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

IGNORED = -100  # the label torch's cross entropy skips


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One row of tokens: a document, or several packed one after another.

    Attributes:
        input_ids: [tokens] int32.
        labels: [tokens] int32; `IGNORED` where there is no loss. Not shifted: the model shifts.
        seq_lengths: tokens of each document; a single one unless the row is packed.
    """

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    seq_lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        """Reject rows whose parts do not agree."""
        if len(self.input_ids) != len(self.labels) or len(self) != sum(self.seq_lengths):
            msg = f"{len(self.input_ids)} tokens, {len(self.labels)} labels, {self.seq_lengths}"
            raise ValueError(msg)
        if not len(self) or min(self.seq_lengths) < 1:
            msg = f"an empty row or document: {self.seq_lengths}"
            raise ValueError(msg)

    def __len__(self) -> int:
        """Tokens."""
        return len(self.input_ids)

    @property
    def num_label_tokens(self) -> int:
        """Tokens with loss. A document's first token has none, as nothing comes before it."""
        starts = np.cumsum((0, *self.seq_lengths[:-1]))
        with_loss = self.labels != IGNORED
        return int(with_loss.sum() - with_loss[starts].sum())


def make_example(input_ids: Sequence[int], labels: Sequence[int]) -> Example:
    """One document from plain lists."""
    return Example(
        input_ids=np.asarray(input_ids, dtype=np.int32),
        labels=np.asarray(labels, dtype=np.int32),
        seq_lengths=(len(input_ids),),
    )


def masked_like(example: Example) -> Example:
    """The same tokens without any loss: what a rank computes when it has no row left."""
    return replace(example, labels=np.full_like(example.labels, IGNORED))


def shortened(example: Example, tokens: int) -> Example:
    """The first `tokens` of a row; the last document that is left may end in its middle."""
    if len(example) <= tokens:
        return example
    lengths, left = [], tokens
    for length in example.seq_lengths:
        lengths.append(min(length, left))
        left -= lengths[-1]
        if left == 0:
            break
    return Example(input_ids=example.input_ids[:tokens], labels=example.labels[:tokens], seq_lengths=tuple(lengths))
