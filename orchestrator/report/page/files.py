"""Lines of the files of a run, however long they have become; a line that is cut is left out and counted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

MOST_LINES: Final = 120_000  # of one file that are looked at
_KEPT: Final = (b'"eval_loss"', b'"xids"', b'"lost"')  # rare ones that no thinning may lose
_TAIL_BYTES: Final = 64 * 1024
_LINE_BYTES: Final = 512  # about, of a reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Records of a file.

    Attributes:
        records: of the lines that were looked at.
        num_lines: of the file.
        num_broken: of those looked at, what is no JSON object.
    """

    records: tuple[dict[str, Any], ...] = ()
    num_lines: int = 0
    num_broken: int = 0


def read_lines(path: Path, most: int = MOST_LINES) -> Lines:
    """Read at most about `most` lines, evenly spread, the last one and rare ones always; no file has none."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return Lines()
    return _parsed(lines, most)


def spread_lines(path: Path, most: int) -> Lines:
    """Read about `most` lines of a file that may be large, without going through all of it; `num_lines` is of those."""
    try:
        nbytes = path.stat().st_size
        if nbytes <= 2 * most * _LINE_BYTES:
            return read_lines(path, most)
        with path.open("rb") as stream:
            lines = list(_spread(stream, nbytes, most))
    except OSError:
        return Lines()
    return _parsed(lines, most)


def _spread(stream: BinaryIO, nbytes: int, most: int) -> Iterator[bytes]:
    """The first line, and those that begin after evenly spread places; each line once."""
    start = 0  # of the line before
    for place in (at * nbytes // most for at in range(most)):
        if place < start:
            continue  # within a long line that was passed over: the one after it is here already
        stream.seek(place)
        if place:
            stream.readline()  # the rest of a line that began before
        start = stream.tell()
        if line := stream.readline():
            yield line


def _parsed(lines: Sequence[bytes], most: int) -> Lines:
    each = max(1, -(-len(lines) // most))
    records, broken = [], 0
    for line in _some(lines, each):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif line.strip():
            broken += 1
    return Lines(records=tuple(records), num_lines=len(lines), num_broken=broken)


def _some(lines: Sequence[bytes], each: int) -> Iterator[bytes]:
    last = len(lines) - 1
    for at, line in enumerate(lines):
        if at % each == 0 or at == last or any(word in line for word in _KEPT):
            yield line


def last_lines(path: Path, most: int) -> tuple[str, ...]:
    """The end of a log."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines()[-most:])
