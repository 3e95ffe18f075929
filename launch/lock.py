"""One launch at a time in a run directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.errors import LaunchError

__all__ = ["run_lock"]


@contextmanager
def run_lock(run_dir: str) -> Iterator[None]:
    """Hold `run_dir/.lock`, which ends with this process however it ends. Raises LaunchError if another holds it.

    The file stays behind: removing it would let two processes lock two files of one name.
    """
    path = Path(run_dir) / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            # The descriptor is closed on exec, so no rank keeps the lock after us.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise LaunchError(
                asked=f"exclusive use of {run_dir}",
                found=f"run directory is in use by pid {holder}",
                remedy="wait for that run or cancel it, or give another run_dir",
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
