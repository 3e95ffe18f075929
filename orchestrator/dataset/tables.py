"""CSV, TSV and Parquet -> rows."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, BinaryIO

from orchestrator.dataset.errors import Collector, DataError
from orchestrator.dataset.rows import Row
from orchestrator.dataset.text import utf8_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The csv module refuses cells above 128 KiB by default; long documents are larger.
_MAX_CELL_CHARS = 1 << 30
_ROWS_PER_BATCH = 1024
# Columns whose cells hold JSON when a conversation is written into a table.
_JSON_COLUMNS = ("messages", "conversations", "conversation", "tools")


def separated_rows(path: Path, stream: BinaryIO, delimiter: str, collector: Collector) -> Iterator[Row]:
    """Rows of a CSV or TSV file with a header line; `Row.line` is the first line of the row."""
    csv.field_size_limit(_MAX_CELL_CHARS)
    lines = _texts(path, stream, collector)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] | None = None
    start = 1
    try:
        for cells in reader:
            line, start = start, reader.line_num + 1
            if not any(cells):
                continue
            if header is None:
                header = _checked_header(path, line, cells)
            elif len(cells) != len(header):
                collector.add(_wrong_width(path, line, header, cells))
            else:
                fields = {key: _cell(key, cell) for key, cell in zip(header, cells, strict=True)}
                yield Row(path=path, line=line, fields=fields)
    except csv.Error as error:
        raise DataError(
            path=path,
            line=start,
            problem=f"malformed {'TSV' if delimiter == chr(9) else 'CSV'}: {_csv_reason(error)}",
            remedy='Put cells with line breaks or quotes in "...", and double the quotes inside.',
        ) from error


def _texts(path: Path, stream: BinaryIO, collector: Collector) -> Iterator[str]:
    """Lines of a table.

    Raises:
        DataError: a line holds a NUL, which no text has.
    """
    for number, text in utf8_lines(path, stream, collector):
        if "\0" in text:
            problem = f"a NUL character at position {text.index(chr(0)) + 1}: this is no UTF-8 text"
            remedy = "Save the file as UTF-8; it may be UTF-16, a spreadsheet's own format, or damaged."
            raise DataError(path=path, line=number, problem=problem, remedy=remedy)
        yield text


def _csv_reason(error: csv.Error) -> str:
    text = str(error)
    return "a carriage return inside a cell without quotes" if text.startswith("new-line character") else text


def _checked_header(path: Path, line: int, cells: list[str]) -> list[str]:
    header = [cell.strip() for cell in cells]
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        names = ", ".join(repr(name) for name in twice)
        remedy = "Rename or remove one of the columns."
        raise DataError(path=path, line=line, problem=f"repeated column {names}", remedy=remedy)
    return header


def _wrong_width(path: Path, line: int, header: list[str], cells: list[str]) -> DataError:
    return DataError(
        path=path,
        line=line,
        problem=f"{len(cells)} cells where the header has {len(header)}",
        remedy='Quote cells that hold the separator, as in "a, b".',
    )


def _cell(key: str, cell: str) -> object:
    if key in _JSON_COLUMNS and cell.lstrip().startswith("["):
        try:
            return json.loads(cell)
        except ValueError:
            return cell  # the shape check then says what was expected here
    return cell


def parquet_rows(path: Path, stream: BinaryIO) -> Iterator[Row]:
    """Rows of a Parquet file, read in batches.

    Raises:
        DataError: pyarrow is missing, or the file is damaged.
    """
    try:
        # Imported here since the light tier must not pay for it.
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        remedy = "Install pyarrow, or convert the file to JSONL."
        problem = "reading Parquet needs pyarrow, which is not installed"
        raise DataError(path=path, line=None, problem=problem, remedy=remedy) from error
    try:
        number = 0
        for batch in pq.ParquetFile(stream).iter_batches(batch_size=_ROWS_PER_BATCH):
            for fields in batch.to_pylist():
                number += 1
                yield Row(path=path, line=number, unit="row", fields=fields)
    except pa.ArrowException as error:
        remedy = "Download or write the file again; it may be cut off or not Parquet at all."
        problem = f"damaged Parquet: {str(error).splitlines()[0]}"
        raise DataError(path=path, line=None, problem=problem, remedy=remedy) from error
