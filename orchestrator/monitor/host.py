"""A host at one moment, through psutil, the limits of control groups, and the counters of InfiniBand ports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from orchestrator.monitor.readings import HostReading
from topology.probe.cgroup import memory_headroom_bytes
from topology.probe.kernel_values import ReadingAbsentError

_WORD_BYTES: Final = 4  # InfiniBand's data counters count words of 4 bytes
_MAX_PORTS: Final = 64


class HostMeter:
    """Reads one host; the share of its CPUs in use is that since the last reading."""

    def __init__(self, host: int, root: Path = Path("/")) -> None:
        """Take the number of the host in the run, and where the kernel's files are."""
        self._host, self._root = host, root
        _cpu()  # the first one is of no interval

    def read(self, time: float) -> HostReading:
        """Read now; what cannot be read is None."""
        used, available = _memory(self._root)
        return HostReading(
            time=time,
            host=self._host,
            memory_used_bytes=used,
            memory_available_bytes=available,
            cpu_utilisation=_cpu(),
            network=tuple([*_ports(), *_infiniband(self._root)][:_MAX_PORTS]),
        )


def _memory(root: Path) -> tuple[int | None, int | None]:
    try:
        memory = psutil.virtual_memory()
        used, available = int(memory.used), int(memory.available)
    except (OSError, RuntimeError, psutil.Error):
        return None, None
    try:
        return used, min(available, memory_headroom_bytes(root))
    except (ReadingAbsentError, OSError, ValueError):
        return used, available


def _cpu() -> float | None:
    try:
        return float(psutil.cpu_percent(interval=None)) / 100
    except (OSError, RuntimeError, psutil.Error):
        return None


def _ports() -> list[tuple[str, int, int]]:
    """Each port that has moved anything."""
    try:
        found = psutil.net_io_counters(pernic=True)
    except (OSError, RuntimeError, psutil.Error):
        return []
    counters = ((name, int(port.bytes_sent), int(port.bytes_recv)) for name, port in sorted(found.items()))
    return [port for port in counters if port[1] or port[2]]


def _infiniband(root: Path) -> Iterator[tuple[str, int, int]]:
    """What goes past the kernel's network stack: RDMA counts on the adapter alone."""
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        try:
            sent = int((port / "counters/port_xmit_data").read_text(encoding="ascii"))
            received = int((port / "counters/port_rcv_data").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        yield f"{port.parts[-3]}/{port.name}", sent * _WORD_BYTES, received * _WORD_BYTES
