"""A file of readings that only grows up to a bound: whole lines, appended at once, older ones thinned out."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from orchestrator.monitor.store import Reading, line_of

MOST_HOST_BYTES: Final = 32 * 2**20
MOST_RANK_BYTES: Final = 16 * 2**20
_LONGEST_SECONDS: Final = 2.0**30
_FAULTS: Final = (b'"xids"', b'"lost"')
_NEWEST: Final = 4  # a quarter of the file stays as it is
_LEFT: Final = 0.5  # of the bound: what thinning leaves at most
_TIME: Final = b'"time":'


def thinned(lines: Sequence[bytes], most_bytes: int) -> list[bytes]:
    """Leave of each source one older reading in each span of time; the newest quarter stays, and so do faults.

    The span is a power of two of a second, the shortest with which half of the bound is kept. So the whole run stays in
    sight, the more coarsely the longer it takes. Counters grow on: what they counted in between is not lost.

    Args:
        lines: each with its newline; what tells the source comes before the time.
        most_bytes: the bound; where faults alone are more than half of it, the oldest go.
    """
    older = len(lines) - len(lines) // _NEWEST
    newest = list(lines[older:])
    marked = [(*_mark(line), line) for line in lines[:older]]
    room = most_bytes * _LEFT - sum(map(len, newest))
    span = 2.0 ** math.floor(math.log2(max(_mean_gap(marked), 2.0**-10)))
    kept = _one_each(marked, span)
    while sum(map(len, kept)) > room and span < _LONGEST_SECONDS:
        span *= 2
        kept = _one_each(marked, span)
    kept += newest
    first, left = 0, sum(map(len, kept))
    while left > most_bytes * _LEFT and first < len(kept):
        left -= len(kept[first])
        first += 1
    return kept[first:]


def _mark(line: bytes) -> tuple[bytes, float]:
    """Source and time of a line; a line without is of a source and a time of its own."""
    source, _, rest = line.partition(_TIME)
    try:
        return source, float(rest[: rest.index(b",")])
    except ValueError:
        return line, 0.0


def _mean_gap(marked: Sequence[tuple[bytes, float, bytes]]) -> float:
    times = [time for _, time, _ in marked]
    return (max(times) - min(times)) * len({source for source, _, _ in marked}) / len(times) if times else 1.0


def _one_each(marked: Sequence[tuple[bytes, float, bytes]], span: float) -> list[bytes]:
    seen: set[tuple[bytes, float]] = set()
    kept: list[bytes] = []
    for source, time, line in marked:
        at = (source, time // span)
        if at not in seen or any(word in line for word in _FAULTS):
            kept.append(line)
        seen.add(at)
    return kept


class ReadingLog:
    """Appends to one file. What the disk does not take is lost, never raised: telemetry must not end a run."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Take the file; it is opened with the first reading."""
        self._path, self._most_bytes = path, most_bytes
        self._file: int | None = None
        self._size = 0
        self._is_cut = False
        self.lost = 0

    def append(self, readings: Iterable[Reading]) -> None:
        """Write the readings, a line each, in one call."""
        lines = [line_of(reading) for reading in readings]
        if not lines:
            return
        try:
            self._write(b"".join(lines))
            if self._size > self._most_bytes:
                self._thin()
        except OSError:
            self.lost += len(lines)
            self._is_cut = True
            self.close()  # a file that was removed or a disk that comes back is found again

    def close(self) -> None:
        """Close the file; another reading opens it again."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _write(self, text: bytes) -> None:
        file = self._opened()
        if self._is_cut:
            # After a line that was not written whole, a new one begins.
            text = b"\n" + text
        written = os.write(file, text)
        self._size += written
        self._is_cut = written < len(text)
        if self._is_cut:
            raise OSError

    def _opened(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._size = os.fstat(self._file).st_size
            self._is_cut = self._size > 0 and os.pread(self._file, 1, self._size - 1) != b"\n"
        return self._file

    def _thin(self) -> None:
        text = b"".join(thinned(self._path.read_bytes().splitlines(keepends=True), self._most_bytes))
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_bytes(text)
        temporary.replace(self._path)
        self.close()
        self._opened()
