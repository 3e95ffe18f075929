"""Bytes -> UTF-8 lines, with the line and column of bad bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.dataset.errors import Collector, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_BOM = b"\xef\xbb\xbf"


def decode_line(path: Path, number: int, raw: bytes) -> str:
    """One line as text, without the byte order mark that Windows programs put first.

    Raises:
        DataError: the bytes are not UTF-8.
    """
    if number == 1:
        raw = raw.removeprefix(_BOM)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            path=path,
            line=number,
            problem=f"byte 0x{raw[error.start]:02x} at position {error.start + 1} is not UTF-8",
            remedy="Save the file as UTF-8 (iconv -f latin1 -t utf-8 converts Latin-1).",
        ) from error


def utf8_lines(path: Path, stream: Iterable[bytes], collector: Collector) -> Iterator[tuple[int, str]]:
    """(1-based number, text) of each line; lines that are not UTF-8 go to `collector`."""
    for number, raw in enumerate(stream, start=1):
        try:
            yield number, decode_line(path, number, raw)
        except DataError as error:
            collector.add(error)
