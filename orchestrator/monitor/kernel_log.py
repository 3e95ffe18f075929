"""XIDs in lines of the kernel's log: of `dmesg`, of the journal, of /dev/kmsg and of syslog files."""

from __future__ import annotations

import re
from typing import Final

from orchestrator.monitor.readings import Xid
from topology.checks import normal_pci, printable

__all__ = ["xid_of"]

_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<place>[0-9a-fA-F:.]+)\): (?P<number>\d{1,6})\b,?\s*(?P<words>.*)")
# Seconds since the host was started: dmesg writes `[12345.678901]`, /dev/kmsg `6,1234,12345678901,-;`.
_DMESG: Final = re.compile(r"\[\s*(\d+\.\d+)\]")
_KMSG: Final = re.compile(r"\d+,\d+,(\d+),[^;]*;")
_MICRO: Final = 1e-6


def xid_of(line: str, time: float, booted: float | None = None) -> Xid | None:
    """Return the XID that a line of the kernel's log tells.

    Args:
        line: as it was read, with or without a time before it.
        time: wall clock when it was read, seconds since the epoch.
        booted: wall clock when the host was started; with it, a time in the line counts instead of `time`.

    Returns:
        It with the PCI address as its device (`0000:3b:00.0`); None where the line tells of none.
    """
    match = _XID.search(line)
    if match is None:
        return None
    stamp = None if booted is None else _uptime(line[: match.start()])
    return Xid(
        time=time if stamp is None or booted is None else booted + stamp,
        number=int(match["number"]),
        device=normal_pci(match["place"]) or "",
        words=printable(match["words"].strip()),
    )


def _uptime(text: str) -> float | None:
    found = _DMESG.search(text)
    if found is not None:
        return float(found[1])
    found = _KMSG.match(text)
    return None if found is None else int(found[1]) * _MICRO
