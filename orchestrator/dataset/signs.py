"""Signs of life of a rank that goes through many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROWS_PER_BEAT = 256  # a second or two of long conversations
_Row = TypeVar("_Row")


def beating(rows: Iterable[_Row], beat: Callable[[], None]) -> Iterator[_Row]:
    """Go through rows and tell `beat` now and then."""
    for number, row in enumerate(rows):
        if number % ROWS_PER_BEAT == 0:
            beat()
        yield row
