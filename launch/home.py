"""Where a process is at home: among those whose process numbers mean something to each other. Reads /proc."""

import os
from functools import cache
from pathlib import Path

__all__ = ["home"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")


@cache
def home() -> str:
    """One start of a kernel, and one space of process numbers.

    A host's name would not do: cloned machines and containers have the same. It stands in where the kernel tells
    nothing.
    """
    try:
        return f"{_BOOT.read_text(encoding='ascii').strip()} {_PROCESSES.readlink()}"
    except (OSError, ValueError):
        return os.uname().nodename
