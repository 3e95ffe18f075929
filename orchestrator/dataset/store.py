"""Token rows in an Arrow stream file, read back through a memory map.

`datasets.Dataset.from_file` opens the same files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from orchestrator.dataset.examples import Example

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Every batch but the last has this many rows, so that row i is found without a search.
ROWS_PER_BATCH = 1024
_COLUMNS = ("input_ids", "labels", "seq_lengths")
_SCHEMA = pa.schema([(name, pa.list_(pa.int32())) for name in _COLUMNS])


def list_array(parts: Sequence[NDArray[np.int32]]) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """A list column; with 64-bit offsets, as a corpus may hold more than 2**31 tokens."""
    offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    return pa.LargeListArray.from_arrays(offsets, np.concatenate(parts))


def list_views(column: Any) -> list[NDArray[np.int32]]:  # noqa: ANN401 - pyarrow is untyped
    """Rows of a chunked list column as views of its values."""
    views: list[NDArray[np.int32]] = []
    for chunk in column.chunks:
        values = chunk.values.to_numpy(zero_copy_only=True)
        offsets = chunk.offsets.to_numpy(zero_copy_only=True)
        views.extend(values[a:b] for a, b in pairwise(offsets))
    return views


class RowWriter:
    """Writes token rows one after the other, in batches; the caller renames the file into place."""

    def __init__(self, path: Path) -> None:
        """Open the file."""
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_stream(self._sink, _SCHEMA)
        self._batch: list[Example] = []
        self.num_rows = 0

    def append(self, example: Example) -> None:
        """Add a row."""
        self._batch.append(example)
        self.num_rows += 1
        if len(self._batch) == ROWS_PER_BATCH:
            self._flush()

    def close(self) -> None:
        """Write what is left."""
        if self._batch:
            self._flush()
        self._writer.close()
        self._sink.close()

    def _flush(self) -> None:
        columns = (
            [example.input_ids for example in self._batch],
            [example.labels for example in self._batch],
            [np.asarray(example.seq_lengths, dtype=np.int32) for example in self._batch],
        )
        arrays = [list_array(parts).cast(pa.list_(pa.int32())) for parts in columns]
        self._writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
        self._batch = []


def write_rows(path: Path, examples: Iterable[Example]) -> None:
    """Write token rows; the caller renames the file into place."""
    writer = RowWriter(path)
    for example in examples:
        writer.append(example)
    writer.close()


class TokenRows(Sequence[Example]):
    """Token rows of a file; rows are views of its memory map, so ranks of a host share it."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            OSError: it cannot be read.
            pyarrow.ArrowException: it is not such a file.
        """
        table = pa.ipc.open_stream(pa.memory_map(str(path), "r")).read_all()
        self._values, self._offsets = [], []
        for name in _COLUMNS:
            chunks = table.column(name).chunks
            self._values.append([c.values.to_numpy(zero_copy_only=True) for c in chunks])
            self._offsets.append([c.offsets.to_numpy(zero_copy_only=True) for c in chunks])
        self._num_rows = int(table.num_rows)

    def __len__(self) -> int:
        """Rows."""
        return self._num_rows

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        """One row, or several."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            msg = f"row {index} of {len(self)}"
            raise IndexError(msg)
        batch, row = divmod(index % len(self), ROWS_PER_BATCH)
        ids, labels, seq_lengths = (self._cell(column, batch, row) for column in range(3))
        return Example(input_ids=ids, labels=labels, seq_lengths=tuple(seq_lengths.tolist()))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[rows] tokens of each row, without reading them."""
        diffs = [np.diff(offsets).astype(np.int64) for offsets in self._offsets[0]]
        return np.concatenate(diffs) if diffs else np.empty(0, dtype=np.int64)

    def _cell(self, column: int, batch: int, row: int) -> NDArray[np.int32]:
        offsets = self._offsets[column][batch]
        values: NDArray[np.int32] = self._values[column][batch][offsets[row] : offsets[row + 1]]
        return values
