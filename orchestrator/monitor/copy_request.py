"""A request to a rank for a timed copy between host and device, in a file of the run directory.

A PCIe link that reports a lower generation or width than it can do may only be idle. Whether it is slow tells a copy:
the rank that uses the device makes it at the end of a step, when nothing else of its own is on the link.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_FOLDER = "beats"


def request_path(run_dir: Path, rank: int) -> Path:
    """Where a rank looks for a request."""
    return run_dir / _FOLDER / f"copy-{rank:05d}"


def ask(run_dir: Path, rank: int) -> None:
    """Ask a rank for a copy; a folder that cannot be written leaves the suspicion as it is."""
    with suppress(OSError):
        request_path(run_dir, rank).touch()


def take(run_dir: Path, rank: int) -> bool:
    """Return whether a copy is asked for, once."""
    try:
        request_path(run_dir, rank).unlink()
    except OSError:
        return False
    return True
