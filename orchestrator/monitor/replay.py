"""Recorded readings in the place of the driver: faults of GPUs played back on a machine that has none.

A file of `monitor.replay` holds device readings, one JSON object a line, as the sampler writes them. `time` is seconds
after the start of the run (times of a recording, since the epoch, count from its first line). `device` is an id of the
plan, or the number of a device of the host as `#0`; `host` may be left out for the first one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import Problem, UserError
from orchestrator.monitor.readings import DeviceReading, Xid
from orchestrator.monitor.store import Tail, decode

_EPOCH_SECONDS: Final = 1e8  # no run is that old, and no clock shows so little
_SHOWN_PROBLEMS: Final = 5


def read_replay(path: Path, began: float) -> tuple[DeviceReading, ...]:
    """Return the readings of a file, each with the wall clock of its turn.

    Args:
        path: of the file.
        began: wall clock at the start of the run.

    Raises:
        UserError: it cannot be read, or lines of it are no readings.
    """
    remedy = "Give a file of device readings, one JSON object a line (RUN_DIR/telemetry/host-00000.jsonl is one)."
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "no text"
        raise UserError(Problem(where=f"monitor.replay={path}", found=found, remedy=remedy)) from error
    problems: list[Problem] = []
    readings: list[DeviceReading] = []
    for number, line in enumerate(lines, 1):
        reading = _reading(line)
        if isinstance(reading, str):
            problems.append(Problem(where=f"{path}:{number}", found=reading, remedy=remedy))
        elif reading is not None:
            readings.append(reading)
    if not problems and not readings:
        problems.append(Problem(where=str(path), found="no reading of a device", remedy=remedy))
    if problems:
        raise UserError(*problems[:_SHOWN_PROBLEMS])
    return _from_start(readings, began)


def _reading(line: str) -> DeviceReading | str | None:
    """Return the reading of a line, None for a line of something else, or what is wrong with it."""
    if not line.strip():
        return None
    try:
        record: Any = json.loads(line)
    except ValueError:
        return "no JSON"
    if not isinstance(record, dict):
        return "no JSON object"
    if record.get("kind", "device") != "device":
        return None
    reading = decode({"host": 0, **record, "kind": "device"})
    return reading if isinstance(reading, DeviceReading) else "no device reading: it needs `time` and `device`"


def _from_start(readings: Sequence[DeviceReading], began: float) -> tuple[DeviceReading, ...]:
    first = min(reading.time for reading in readings)
    shift = began - first if first > _EPOCH_SECONDS else began
    return tuple(replace(reading, time=reading.time + shift) for reading in readings)


class Replay:
    """Readings of one host at any moment: the newest of each device, its errors once."""

    def __init__(self, devices: Sequence[str], host: int, followed: Path | None = None) -> None:
        """Begin with no readings.

        Args:
            devices: ids of this host's devices, in the order of its ranks; others are left out.
            host: number of this host.
            followed: a file to which readings are added while the run goes on, each with its wall clock.
        """
        self._devices, self._host = tuple(devices), host
        self._followed, self._tail = followed, Tail()
        self._left: list[DeviceReading] = []
        self._now: dict[str, DeviceReading] = {}

    def add(self, readings: Iterable[DeviceReading]) -> None:
        """Take readings, each with the wall clock of its turn."""
        named = {f"#{at}": device for at, device in enumerate(self._devices)}
        for reading in readings:
            if reading.device in self._devices or (reading.device in named and reading.host == self._host):
                self._left.append(replace(reading, device=named.get(reading.device, reading.device), host=self._host))
        self._left.sort(key=lambda reading: reading.time)

    def skip(self, until: float) -> None:
        """Take everything up to this wall clock as told already, its state but not its errors."""
        self._follow()
        self._take(until)

    def read(self, time: float) -> list[DeviceReading]:
        """Return the state of each device, as a sampler would see it at this wall clock."""
        self._follow()
        errors = self._take(time)
        return [
            replace(reading, time=time, xids=tuple(_now(errors.get(device, ()), device, time)))
            for device, reading in self._now.items()
        ]

    def _follow(self) -> None:
        if self._followed is not None:
            added = self._tail.read(self._followed)
            self.add(reading for reading in added if isinstance(reading, DeviceReading))

    def _take(self, until: float) -> Mapping[str, list[Xid]]:
        errors: dict[str, list[Xid]] = {}
        num_due = sum(reading.time <= until for reading in self._left)
        for reading in self._left[:num_due]:
            self._now[reading.device] = reading
            errors.setdefault(reading.device, []).extend(reading.xids)
        del self._left[:num_due]
        return errors


def _now(xids: Sequence[Xid], device: str, time: float) -> Iterator[Xid]:
    return (replace(xid, time=time, device=device) for xid in xids)
