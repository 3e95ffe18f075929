"""Files -> checked rows, read one at a time: the text of small files is kept, that of large ones is read again.

A file larger than memory is no special case: of each row 30 bytes stay (`RowNumbers`), and a pass over the rows
reads the file once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, overload

from orchestrator.dataset.errors import Collector, DataError
from orchestrator.dataset.files import iter_rows, no_rows
from orchestrator.dataset.numbers import RowNumbers
from orchestrator.dataset.shapes import NUM_RECOGNISED_ROWS, recognise, to_sample

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.dataset.messages import Sample, Shape
    from orchestrator.dataset.rows import Row

KEPT_CHARS = 32_000_000  # characters of text of one source that are kept in memory
_ROWS_PER_BEAT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The usable rows of some files.

    Attributes:
        files: in the order they were read.
        shape: of all rows.
        numbers: of each row.
        kept: the rows themselves; None where they are too large to be kept.
        beat: told now and then while files are read.
    """

    files: tuple[Path, ...]
    shape: Shape
    numbers: RowNumbers
    kept: tuple[Sample, ...] | None
    beat: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def __len__(self) -> int:
        """Rows."""
        return len(self.numbers)

    def reread(self) -> Iterator[Sample]:
        """All rows once more.

        Raises:
            DataError: a file has changed since it was checked.
        """
        if self.kept is not None:
            yield from self.kept
            return
        collector = Collector()
        lines = zip(self.numbers.files, self.numbers.lines, strict=True)
        try:
            for (at, line), (file, row) in zip(lines, _numbered(self.files, collector, self.beat), strict=True):
                if (at, line) != (file, row.line):
                    raise _changed(row.path)
                yield to_sample(row, self.shape)
        except ValueError as error:  # one of the two is longer
            raise _changed(self.files[0]) from error


class Rows(Sequence["Sample"]):
    """Some rows of checked files, in ascending order.

    Going through them reads a large file once; so do single rows that are asked for in ascending order.
    """

    def __init__(self, checked: Checked, chosen: Sequence[int]) -> None:
        """`chosen` holds ascending numbers of rows."""
        self.checked = checked
        self.chosen = chosen
        self._stream: Iterator[Sample] = iter(())
        self._next = len(checked)

    def __len__(self) -> int:
        """Rows."""
        return len(self.chosen)

    def __iter__(self) -> Iterator[Sample]:
        """Every row, in order."""
        if self.checked.kept is not None:
            yield from (self.checked.kept[i] for i in self.chosen)
            return
        wanted = iter(self.chosen)
        at = next(wanted, None)
        for number, sample in enumerate(self.checked.reread()):
            if number == at:
                yield sample
                at = next(wanted, None)
                if at is None:
                    return

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        """One row, or some of them."""
        if isinstance(index, slice):
            return Rows(self.checked, self.chosen[index])
        number = self.chosen[index]
        return self.checked.kept[number] if self.checked.kept is not None else self._read_up_to(number)

    @property
    def numbers(self) -> RowNumbers:
        """Those of these rows."""
        return self.checked.numbers.picked(self.chosen)

    def _read_up_to(self, number: int) -> Sample:
        if number < self._next:
            self._stream, self._next = self.checked.reread(), 0
        sample = next(islice(self._stream, number - self._next, None))
        self._next = number + 1
        return sample


def check_rows(
    files: tuple[Path, ...], shape: Shape | None, collector: Collector, beat: Callable[[], None] = lambda: None
) -> Checked | None:
    """Read and check every row of some files; recognise the shape first unless it is given. `beat` is told meanwhile.

    Returns:
        None where there is no row that could be used; `collector` then holds a problem.
    """
    stream = _numbered(files, collector, beat)
    head = list(islice(stream, NUM_RECOGNISED_ROWS))
    if not head:
        return None
    try:
        shape = shape or recognise([row for _, row in head])
    except DataError as error:
        for _ in stream:  # what cannot be read of the rest is told as well
            pass
        collector.add(error)
        return None
    numbers = RowNumbers()
    kept: list[Sample] | None = []
    num_chars = 0
    for file, row in chain(head, stream):
        try:
            sample = to_sample(row, shape)
        except DataError as error:
            collector.add(error)
            continue
        numbers.add(sample, file)
        num_chars += sample.num_chars
        if num_chars > KEPT_CHARS:
            kept = None
        if kept is not None:
            kept.append(sample)
    return Checked(files=files, shape=shape, numbers=numbers, kept=None if kept is None else tuple(kept), beat=beat)


def _numbered(files: tuple[Path, ...], collector: Collector, beat: Callable[[], None]) -> Iterator[tuple[int, Row]]:
    """(index of its file, row); files without any are a problem."""
    for number, path in enumerate(files):
        before, rows = collector.num_errors, 0
        for row in iter_rows(path, collector):
            if rows % _ROWS_PER_BEAT == 0:
                beat()
            rows += 1
            yield number, row
        if not rows and collector.num_errors == before:
            collector.add(no_rows(path))


def _changed(path: Path) -> DataError:
    remedy = "Start again once nothing writes to it any more."
    return DataError(path=path, line=None, problem="the file changed while it was read", remedy=remedy)
