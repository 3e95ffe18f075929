"""XID errors as the kernel log tells them, and their place among the readings of devices."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.monitor import kernel_log
from orchestrator.monitor.readings import DeviceReading, Xid

KERNEL_LOG: Final = Path("/dev/kmsg")
_RECORD_BYTES: Final = 8192  # the most that the kernel gives for one record
_MOST_RECORDS: Final = 1000
_WORDS: Final = 300
_SAME_SECONDS: Final = 3.0  # the driver's event and the kernel's line of one error


def xid_of(line: str, time: float, names: Mapping[str, str]) -> Xid | None:
    """Return the error that a line of the kernel log tells of one of these devices.

    Args:
        line: one record.
        time: when it was seen.
        names: of devices, by PCI address as sysfs writes it.
    """
    found = kernel_log.xid_of(line, time)
    device = None if found is None else names.get(found.device)
    if found is None or device is None:
        return None
    return replace(found, device=device, words=found.words[:_WORDS])


class KernelLog:
    """New records of the kernel log, where this process may read it."""

    def __init__(self, names: Mapping[str, str], path: Path = KERNEL_LOG) -> None:
        """Begin at its end: older errors are of other runs."""
        self._names = names
        self._file: int | None = None
        self.refusal = ""
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.refusal = error.strerror or str(error)

    def read(self, time: float) -> list[Xid]:
        """Return the errors of our devices since the last call."""
        found: list[Xid] = []
        for _ in range(_MOST_RECORDS if self._file is not None else 0):
            try:
                record = os.read(self._file or 0, _RECORD_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:
                break
            if not record:
                break
            for line in record.decode(errors="replace").splitlines():
                xid = xid_of(line, time, self._names)
                found += [] if xid is None else [xid]
        return found

    def close(self) -> None:
        """Close it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None


class XidMerger:
    """Counts an error once that both the driver and the kernel log tell."""

    def __init__(self) -> None:
        """Begin with none."""
        self._recent: list[Xid] = []

    def take(self, driver: Iterable[Xid], kernel: Iterable[Xid]) -> list[Xid]:
        """Return the new errors; of two tellings the kernel's has words, so it goes first."""
        new: list[Xid] = []
        for source, xids in (("kernel", kernel), ("driver", driver)):
            mine: list[Xid] = []
            for xid in xids:
                if source == "driver" and any(_same(xid, other) for other in (*self._recent, *new)):
                    continue
                if source == "kernel" and any(_same(xid, other) and not other.words for other in self._recent):
                    continue
                mine.append(xid)
            new += mine
        latest = max((xid.time for xid in (*self._recent, *new)), default=0.0)
        self._recent = [xid for xid in (*self._recent, *new) if latest - xid.time <= _SAME_SECONDS]
        return new


def _same(one: Xid, other: Xid) -> bool:
    near = abs(one.time - other.time) <= _SAME_SECONDS
    return near and one.number == other.number and one.device == other.device


def with_xids(readings: Sequence[DeviceReading], xids: Sequence[Xid], *, time: float, host: int) -> list[DeviceReading]:
    """Put each error into the first reading of its device, or into one of its own where there is none.

    A GPU that is gone may never be read again; what the driver said last of it must not wait for that.
    """
    left = {xid.device: [one for one in xids if one.device == xid.device] for xid in xids}
    found: list[DeviceReading] = []
    for reading in readings:
        mine = left.pop(reading.device, [])
        found.append(replace(reading, xids=(*reading.xids, *mine)) if mine else reading)
    bare = (DeviceReading(time=time, device=device, host=host, xids=tuple(own)) for device, own in left.items())
    return [*found, *bare]
