"""Token rows as they are made: in memory while they are few, in a mapped file once they are many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.dataset.store import RowWriter, TokenRows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.dataset.examples import Example

KEPT_TOKENS = 8_000_000  # of one spool: 64 MB of ids and labels


class Spool:
    """Takes rows one by one; `rows` closes it."""

    def __init__(self, scratch: Path | None = None) -> None:
        """`scratch` is a file that may be written; without one, all rows stay in memory."""
        self._scratch = scratch
        self._kept: list[Example] = []
        self._writer: RowWriter | None = None
        self._num_tokens = 0

    def append(self, example: Example) -> None:
        """Add a row."""
        self._num_tokens += len(example)
        if self._writer is not None:
            self._writer.append(example)
            return
        self._kept.append(example)
        if self._scratch is not None and self._num_tokens > KEPT_TOKENS:
            self._writer = RowWriter(self._scratch)
            for each in self._kept:
                self._writer.append(each)
            self._kept = []

    def rows(self) -> Sequence[Example]:
        """All rows; a file of them has no name any more, so it goes with the last reader."""
        if self._writer is None or self._scratch is None:
            return self._kept
        self._writer.close()
        mapped = TokenRows(self._scratch)
        self._scratch.unlink()
        return mapped
