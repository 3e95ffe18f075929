"""Measured memory of one rank, in the same terms as the estimate."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Peak bytes since the last reset; without a GPU the device is the process itself."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    host_bytes: int


class MemoryMeter:
    """Peaks by phase. On a CPU, `allocated` is the growth over the process before the model."""

    def __init__(self, device: torch.device) -> None:
        """Take the size of the process before anything is loaded as the baseline."""
        self._device = device
        self._baseline_bytes = _status_bytes("VmRSS")
        self.reset()

    def reset(self) -> None:
        """Start a new phase."""
        with contextlib.suppress(OSError):
            (_PROC / "clear_refs").write_text("5", encoding="ascii")  # resets VmHWM, see proc(5)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> MemoryReading:
        """Return the peaks of this phase."""
        host = _status_bytes("VmHWM")
        if self._device.type != "cuda":
            grown = max(0, host - self._baseline_bytes)
            return MemoryReading(allocated_bytes=grown, reserved_bytes=grown, device_bytes=host, host_bytes=host)
        free, total = torch.cuda.mem_get_info(self._device)
        return MemoryReading(
            allocated_bytes=torch.cuda.max_memory_allocated(self._device),
            reserved_bytes=torch.cuda.max_memory_reserved(self._device),
            device_bytes=total - free,
            host_bytes=host,
        )


def _status_bytes(key: str) -> int:
    try:
        for line in (_PROC / "status").read_text(encoding="ascii").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
