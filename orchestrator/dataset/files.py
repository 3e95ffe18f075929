"""Files -> rows, with the place of every mistake. Standard library alone, but for Parquet."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, BinaryIO, cast

from orchestrator.dataset.disk import reason_of, remedy_for
from orchestrator.dataset.errors import Collector, DataError
from orchestrator.dataset.locate import FORMATS, data_suffix
from orchestrator.dataset.rows import Row
from orchestrator.dataset.tables import parquet_rows, separated_rows
from orchestrator.dataset.text import decode_line, utf8_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Where the rows of a JSON document are looked for, in this order.
ROW_KEYS = ("data", "train", "rows", "examples", "instances")
_SNIFFED_BYTES = 65536
_LIST_REMEDY = 'Write one JSON object a line (JSONL), an array of objects, or {"data": [objects]}.'


def read_rows(paths: tuple[Path, ...]) -> tuple[Row, ...]:
    """All rows of some files, in order.

    Raises:
        DataErrors: files that are empty or of an unknown format, lines that cannot be read; the
            first ten problems at once.
    """
    collector = Collector()
    rows = gather_rows(paths, collector)
    collector.raise_if_any()
    return rows


def gather_rows(paths: tuple[Path, ...], collector: Collector) -> tuple[Row, ...]:
    """The rows that can be read; `collector` gets the problems of the others."""
    rows: list[Row] = []
    for path in paths:
        before = len(rows), collector.num_errors
        rows.extend(iter_rows(path, collector))
        if (len(rows), collector.num_errors) == before:
            collector.add(no_rows(path))
    return tuple(rows)


def iter_rows(path: Path, collector: Collector) -> Iterator[Row]:
    """Rows of one file as they are read; unreadable lines go to `collector` and are passed over."""
    try:
        with _open(path) as stream:
            # Up to the end of the first line, however long, and a little of what follows it.
            head = stream.read(_SNIFFED_BYTES) + stream.readline() + stream.read(1)
            kind = _kind(path, head)
            stream.seek(0)
            if kind == "parquet":
                yield from parquet_rows(path, stream)
            elif kind in (".csv", ".tsv"):
                delimiter = "\t" if kind == ".tsv" else ","
                yield from separated_rows(path, stream, delimiter, collector)
            elif kind == "document":
                yield from _document_rows(path, stream.read(), collector)
            else:
                yield from _jsonl_rows(path, stream, collector)
    except DataError as error:
        collector.add(error)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        remedy = "Compress the file again with gzip, or give it uncompressed."
        collector.add(_file_error(path, f"the gzip data are damaged: {error}", remedy))
    except OSError as error:
        collector.add(_file_error(path, f"it cannot be read: {reason_of(error)}", remedy_for(error)))


def _open(path: Path) -> BinaryIO:
    if path.suffix.lower() == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    return path.open("rb")


def _kind(path: Path, head: bytes) -> str:
    """The format: ".csv", ".tsv", "parquet", "document" (one JSON value) or "lines" (JSONL)."""
    if not head.strip():
        raise no_rows(path)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _file_error(path, "the text is UTF-16", "Save the file as UTF-8.")
    suffix = data_suffix(path)
    if head.startswith(b"PAR1") or suffix == ".parquet":
        return "parquet"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _has_old_line_ends(text, suffix):
        remedy = "Convert them to LF, for example with: tr '\\r' '\\n' < FILE > NEW_FILE."
        raise _file_error(path, "its lines end in CR alone, as on old Macs", remedy)
    if suffix in (".csv", ".tsv"):
        return suffix
    first, _, rest = text.partition(b"\n")
    is_lines = bool(rest.strip()) and _is_json(first)
    if suffix in (".jsonl", ".ndjson"):
        # An array that is called .jsonl is read as the array it is.
        return "document" if text.startswith(b"[") and not is_lines else "lines"
    if text.startswith((b"{", b"[")):
        # JSONL is often called .json: then the first line is a value by itself and more follow.
        return "lines" if is_lines else "document"
    if suffix == ".json":
        return "document"
    raise _file_error(
        path,
        f"the format is not known from the name ({suffix or 'no extension'}) or the content",
        f"Formats read: {FORMATS}, each also with .gz.",
    )


def _has_old_line_ends(text: bytes, suffix: str) -> bool:
    """Whether rows are separated by CR alone; within one JSON value it is mere white space."""
    first, _, rest = text.strip().partition(b"\r")
    if b"\n" in text or not rest.strip():
        return False
    return suffix in (".csv", ".tsv") or _is_json(first)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _jsonl_rows(path: Path, stream: BinaryIO, collector: Collector) -> Iterator[Row]:
    for number, text in utf8_lines(path, stream, collector):
        if not text.strip():
            continue
        try:
            # Without its line end, or a cut line is reported at column 1 of the next one.
            value = json.loads(text.rstrip("\r\n"))
        except json.JSONDecodeError as error:
            problem = f"malformed JSON at column {error.colno}: {error.msg}"
            remedy = "Each line must be one complete JSON object."
            collector.add(DataError(path=path, line=number, problem=problem, remedy=remedy))
        except (ValueError, RecursionError) as error:
            remedy = "Each line must be one JSON object of moderate depth."
            collector.add(DataError(path=path, line=number, problem=str(error), remedy=remedy))
        else:
            yield from _checked(Row(path=path, line=number, fields=value), collector)


def _document_rows(path: Path, content: bytes, collector: Collector) -> Iterator[Row]:
    lines = content.split(b"\n")
    text = "\n".join(decode_line(path, i, line) for i, line in enumerate(lines, start=1))
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"malformed JSON at column {error.colno}: {error.msg}"
        raise DataError(path=path, line=error.lineno, problem=problem, remedy=_LIST_REMEDY) from error
    except (ValueError, RecursionError) as error:
        raise _file_error(path, str(error), _LIST_REMEDY) from error
    for number, value in enumerate(_row_list(path, document), start=1):
        yield from _checked(Row(path=path, line=number, unit="row", fields=value), collector)


def _row_list(path: Path, document: object) -> list[dict[str, object]]:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        raise _file_error(path, f"the JSON is {_name(document)}, not a list of rows", _LIST_REMEDY)
    for key in ROW_KEYS:
        if isinstance(document.get(key), list):
            return cast("list[dict[str, object]]", document[key])
    keys = ", ".join(list(document)[:8]) or "none"
    problem = f"the JSON object has no list of rows under {', '.join(ROW_KEYS)}; its keys: {keys}"
    raise _file_error(path, problem, _LIST_REMEDY)


def _checked(row: Row, collector: Collector) -> Iterator[Row]:
    if isinstance(row.fields, dict):
        yield row
    else:
        problem = f"{_name(row.fields)} where an object was expected"
        collector.add(row.error(problem, 'A row is an object such as {"prompt": ..., ...}.'))


def _name(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else "an object")


def no_rows(path: Path) -> DataError:
    """The problem of a file without any row."""
    return _file_error(path, "the file has no rows", "Give a file with at least one training row.")


def _file_error(path: Path, problem: str, remedy: str) -> DataError:
    return DataError(path=path, line=None, problem=problem, remedy=remedy)
