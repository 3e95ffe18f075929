"""Readings on disk: one JSON object a line, `RUN_DIR/telemetry/rank-R.jsonl` and `host-H.jsonl`, read in time order.

A value that could not be read is left out. NaN and infinities, which JSON has not, are the texts `nan`, `inf` and
`-inf`. A file may end, or after a restart go on, in the middle of a line; such lines are skipped.
"""

from __future__ import annotations

import heapq
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

from orchestrator.monitor.readings import CopyReading, DeviceReading, HostReading, RankReading, Xid

Reading: TypeAlias = RankReading | DeviceReading | HostReading | CopyReading

FOLDER: Final = "telemetry"
KINDS: Final[dict[str, type[Any]]] = {
    "rank": RankReading,
    "device": DeviceReading,
    "host": HostReading,
    "copy": CopyReading,
}
# What tells the source of a reading stands first in its line, so that lines can be told apart without parsing.
_SOURCE: Final = {"rank": ("rank",), "device": ("device",), "host": ("host",), "copy": ("device",)}
_KIND_OF: Final = {made: kind for kind, made in KINDS.items()}
_NEARBY: Final = 256  # lines
_LAST_BYTES: Final = 65536  # of a file, that hold its newest readings
_PAIRS: Final = frozenset({"throttle_ns", "live_bytes"})
_NAMES: Final = {
    kind: (*_SOURCE[kind], "time", *(f.name for f in fields(made) if f.name not in {*_SOURCE[kind], "time"}))
    for kind, made in KINDS.items()
}
_DEFAULTS: Final = {
    kind: {f.name: f.default for f in fields(made) if f.default is not MISSING} for kind, made in KINDS.items()
}
_NEEDED: Final = {kind: {f.name for f in fields(made) if f.default is MISSING} for kind, made in KINDS.items()}
_TEXTS: Final = frozenset({"device"})
_NUMBERS: Final = {
    kind: frozenset(f.name for f in fields(made) if "float" in str(f.type) and f.name not in _PAIRS)
    for kind, made in KINDS.items()
}


def folder_of(run_dir: Path) -> Path:
    """Where the readings of a run lie."""
    return run_dir / FOLDER


def rank_file(run_dir: Path, rank: int) -> Path:
    """File of a rank."""
    return folder_of(run_dir) / f"rank-{rank:05d}.jsonl"


def host_file(run_dir: Path, host: int) -> Path:
    """File of a host, with its devices."""
    return folder_of(run_dir) / f"host-{host:05d}.jsonl"


def encode(reading: Reading) -> dict[str, Any]:
    """Return a reading as plain JSON values; what is not known is left out."""
    kind = _KIND_OF[type(reading)]
    defaults = _DEFAULTS[kind]
    found: dict[str, Any] = {"kind": kind}
    for name in _NAMES[kind]:
        value = getattr(reading, name)
        if value is None or (not value and name in defaults and value == defaults[name]):
            continue
        found[name] = value if type(value) in {int, str} else _plain(name, value)
    return found


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - any field of a reading
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if name in _PAIRS:
        return dict(value)
    if name == "network":
        return {port: [sent, received] for port, sent, received in value}
    if name == "xids":
        return [{"time": xid.time, "number": xid.number, "device": xid.device, "words": xid.words} for xid in value]
    return value


def decode(record: object) -> Reading | None:
    """Return the reading that `encode` wrote; None for what is none. Names that are not known are ignored."""
    if not isinstance(record, dict):
        return None
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return None
    try:
        told = {name: record[name] for name in _NAMES[kind] if record.get(name) is not None}
        values = {name: _value(kind, name, value) for name, value in told.items()}
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    if not _NEEDED[kind] <= values.keys():
        return None
    made: Reading = KINDS[kind](**values)
    return made


def _value(kind: str, name: str, value: Any) -> Any:  # noqa: ANN401 - a JSON value
    if name in _PAIRS:  # a list of pairs is read, too
        return tuple((str(key), int(count)) for key, count in (value.items() if isinstance(value, dict) else value))
    if name == "network":
        ports = ((port, *both) for port, both in value.items()) if isinstance(value, dict) else value
        return tuple((str(port), int(sent), int(received)) for port, sent, received in ports)
    if name == "xids":
        return tuple(_xid(entry) for entry in value)
    if name in _TEXTS:
        return str(value)
    if name == "lost":
        return bool(value)
    return float(value) if name in _NUMBERS[kind] else int(value)


def _xid(entry: Mapping[str, Any]) -> Xid:
    device, words = str(entry.get("device", "")), str(entry.get("words", ""))
    return Xid(time=float(entry["time"]), number=int(entry["number"]), device=device, words=words)


def line_of(reading: Reading) -> bytes:
    """Return the line of a reading, with its newline."""
    return json.dumps(encode(reading), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def parse_line(line: bytes) -> Reading | None:
    """Return the reading in a line; None for what is cut or none."""
    try:
        return decode(json.loads(line))
    except (ValueError, RecursionError):
        return None


def read_file(path: Path) -> Iterator[Reading]:
    """Yield the readings of one file as they stand there; none where it cannot be read."""
    try:
        with path.open("rb") as stream:
            for line in stream:
                reading = parse_line(line)
                if reading is not None:
                    yield reading
    except OSError:
        return


def files_of(run_dir: Path, kinds: Iterable[str] = tuple(KINDS)) -> list[Path]:
    """Return the files in which readings of these kinds may be."""
    names = {"rank": "rank-*.jsonl", "device": "host-*.jsonl", "host": "host-*.jsonl", "copy": "rank-*.jsonl"}
    folder = folder_of(run_dir)
    return sorted({path for kind in kinds for path in folder.glob(names[kind])})


def _sorted_nearby(readings: Iterable[Reading]) -> Iterator[Reading]:
    """Sort what is out of order by a few lines only: a slow driver's readings are written after those of the host."""
    waiting: list[tuple[float, int, Reading]] = []
    for number, reading in enumerate(readings):
        heapq.heappush(waiting, (reading.time, number, reading))
        if len(waiting) > _NEARBY:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]


def read_run(run_dir: Path, kinds: Iterable[str] = tuple(KINDS)) -> Iterator[Reading]:
    """Yield the readings of a run in time order.

    Args:
        run_dir: of the run.
        kinds: `rank`, `device`, `host` and `copy`, or some of them.
    """
    wanted = tuple(KINDS[kind] for kind in kinds)
    streams = [_sorted_nearby(read_file(path)) for path in files_of(run_dir, kinds)]
    merged = heapq.merge(*streams, key=lambda reading: reading.time)
    return (reading for reading in merged if isinstance(reading, wanted))


class Follower:
    """What has come since the last look, of all files of a run or some of them."""

    def __init__(self, run_dir: Path, kinds: Iterable[str] = tuple(KINDS)) -> None:
        """Begin at the start of the run."""
        self._run_dir, self._kinds = run_dir, tuple(kinds)
        self._wanted = tuple(KINDS[kind] for kind in self._kinds)
        self._tails: dict[Path, Tail] = {}

    def skip(self) -> None:
        """Pass over what is there, however much it is."""
        for path in files_of(self._run_dir, self._kinds):
            self._tails.setdefault(path, Tail()).skip(path)

    def read(self) -> list[Reading]:
        """Return the new readings, in time order; a line that is still being written comes next time."""
        found: list[Reading] = []
        for path in files_of(self._run_dir, self._kinds):
            tail = self._tails.setdefault(path, Tail())
            found += [reading for reading in tail.read(path) if isinstance(reading, self._wanted)]
        return sorted(found, key=lambda reading: reading.time)


class Tail:
    """How far a file has been read. A file that was thinned out is another one, read again up to the known time."""

    def __init__(self) -> None:
        """Begin at the start."""
        self._file: tuple[int, int] = (0, 0)
        self._offset = 0
        self._latest = -math.inf

    def skip(self, path: Path) -> None:
        """Begin at the end of the file; of a line that is being written, the rest is none."""
        try:
            with path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                stream.seek(max(0, status.st_size - _LAST_BYTES))
                last = [parse_line(line) for line in stream.read().splitlines()]
        except OSError:
            return
        self._file, self._offset = (status.st_dev, status.st_ino), status.st_size
        self._latest = max([self._latest, *(reading.time for reading in last if reading is not None)])

    def read(self, path: Path) -> list[Reading]:
        """Return what was added since the last call; nothing where the file cannot be read."""
        try:
            with path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                known, file = -math.inf, (status.st_dev, status.st_ino)
                if file != self._file or status.st_size < self._offset:
                    self._file, self._offset, known = file, 0, self._latest
                stream.seek(self._offset)
                text = stream.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        parsed = (parse_line(line) for line in whole.splitlines())
        found = [reading for reading in parsed if reading is not None and reading.time > known]
        self._latest = max([self._latest, *(reading.time for reading in found)])
        return found
