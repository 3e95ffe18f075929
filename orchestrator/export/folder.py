"""A folder that appears whole or not at all, and never in the place of another."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.errors import Problem, UserError

_LOCK: Final = ".lock"  # held by the process that writes a folder
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def refuse_existing(path: Path) -> None:
    """Refuse a target that is there.

    Raises:
        UserError: it is, or its name cannot be one.
    """
    if os.path.lexists(path):
        kind = "a folder is there" if path.is_dir() else "a file is there"
        remedy = "Nothing is overwritten: give another folder with export.to=FOLDER, or move it away."
        raise UserError(Problem(where=f"export.to={path}", found=kind, remedy=remedy))


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a folder beside `path` to write into; it gets the name `path` when the block ends without an error.

    What an earlier process left that was killed is removed.

    Raises:
        UserError: the target exists, or the disk refuses.
    """
    refuse_existing(path)
    made: Path | None = None
    lock = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        made = path.with_name(f".{path.name}.incomplete-{os.getpid()}")
        made.mkdir()
        lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield made
        (made / _LOCK).unlink()
        refuse_existing(path)  # made by somebody else meanwhile
        made.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        if lock >= 0:
            os.close(lock)
        if made is not None and made.exists():
            shutil.rmtree(made, ignore_errors=True)


def check_room(path: Path, needed_bytes: int) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        UserError: saying how much there is, and how much it takes.
    """
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    free_bytes = shutil.disk_usage(there).free
    if free_bytes < needed_bytes:
        found = f"it takes {_size(needed_bytes)}, the disk has {_size(free_bytes)} free"
        raise UserError(Problem(where=f"export.to={path}", found=found, remedy="Free space, or give another disk."))


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def _sweep(path: Path) -> None:
    for lock in path.parent.glob(f".{path.name}.incomplete-*/{_LOCK}"):
        with contextlib.suppress(OSError):
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(path: Path, error: OSError) -> UserError:
    remedy = "Free space, or give another disk with export.to=FOLDER; nothing was left behind."
    if error.errno not in _FULL:
        remedy = "Give a folder that you may write to with export.to=FOLDER."
    return UserError(
        Problem(where=f"export.to={path}", found=f"cannot write ({error.strerror or error})", remedy=remedy)
    )
