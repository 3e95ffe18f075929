"""Several sequences as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TypeVar, overload

_T = TypeVar("_T")


class Joined(Sequence[_T]):
    """Several sequences one after the other, without copying them."""

    def __init__(self, parts: Sequence[Sequence[_T]]) -> None:
        """Parts may be empty."""
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        """Rows of all parts."""
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[_T]:
        """Go through each part in turn."""
        for part in self._parts:
            yield from part

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        """One row, or some of them."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        at = bisect_right(self._ends, index)
        return self._parts[at][index - (self._ends[at - 1] if at else 0)]
