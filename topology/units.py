"""Unit constants, and the only places where a quantity becomes text: compute in bytes and seconds."""

from __future__ import annotations

from typing import Final

MIB: Final = 2**20
GIB: Final = 2**30
GB: Final = 10**9

_MILLI: Final = 1e-3
_MICRO: Final = 1e-6


def format_bytes(size_bytes: float) -> str:
    """Bytes as GiB, three decimals below one GiB so that small terms do not print as 0.0."""
    gib = size_bytes / GIB
    return f"{gib:.1f} GiB" if abs(gib) >= 1 or gib == 0 else f"{gib:.3f} GiB"


def format_rate(bytes_per_second: float) -> str:
    """Bytes per second as GB/s (1e9, as vendors and NCCL print rates)."""
    rate = bytes_per_second / GB
    return f"{rate:.1f} GB/s" if abs(rate) >= 1 or rate == 0 else f"{rate:.3f} GB/s"


def format_seconds(duration_seconds: float) -> str:
    """Seconds in the largest of s, ms and us that keeps the number at or above one."""
    size = abs(duration_seconds)
    if size >= 1 or size == 0:
        return f"{duration_seconds:.2f} s"
    if size >= _MILLI:
        return f"{duration_seconds / _MILLI:.2f} ms"
    return f"{duration_seconds / _MICRO:.2f} us"
