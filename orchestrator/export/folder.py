"""A folder that appears whole or not at all, and never in the place of another."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.dataset.disk import refusal
from orchestrator.errors import Problem, UserError

_MARK: Final = ".incomplete-"
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

    What an earlier process left that was killed is removed. The lock lies beside the folder, never in it: it is there
    before the folder and after it, so a folder without one belongs to nobody.

    Raises:
        UserError: the target exists, the disk refuses, or a file that the block reads cannot be read.
    """
    refuse_existing(path)
    made: Path | None = None
    handle = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        made, handle = _locked_name(path)
        made.mkdir()
        yield made
        for each in (*made.rglob("*"), made):
            _sync(each)
        refuse_existing(path)  # made by somebody else meanwhile
        made.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise _refused(path, made, error) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
            with contextlib.suppress(OSError):
                _lock_of(made).unlink()
            os.close(handle)


def _locked_name(path: Path) -> tuple[Path, int]:
    """Return a name that nobody has, and its open lock; one that was swept before it was locked is given up."""
    while True:
        made = path.with_name(f".{path.name}{_MARK}{secrets.token_hex(4)}")
        handle = os.open(_lock_of(made), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:
                return made, handle
        except BaseException:
            _lock_of(made).unlink(missing_ok=True)
            os.close(handle)
            raise
        os.close(handle)


def _lock_of(made: Path) -> Path:
    return made.with_name(made.name + _LOCK)


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
    """Remove what killed processes have left: folders whose lock nobody holds, or that have none."""
    mine = glob.escape(f".{path.name}{_MARK}")
    for lock in path.parent.glob(f"{mine}*{_LOCK}"):
        with contextlib.suppress(OSError):
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.with_name(lock.name.removesuffix(_LOCK)), ignore_errors=True)
                lock.unlink()
            finally:
                os.close(handle)
    for made in path.parent.glob(f"{mine}*"):
        if made.is_dir() and not _lock_of(made).exists():
            shutil.rmtree(made, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(path: Path, made: Path | None, error: OSError) -> UserError:
    """Tell what the system refused: writing here, or, by the path that the error is about, reading elsewhere."""
    if error.errno in _FULL:
        remedy = "Free space, or give another disk with export.to=FOLDER; nothing was left behind."
    elif _is_elsewhere(error.filename, path, made):
        return refusal(path, error)
    else:
        remedy = "Give a folder that you may write to with export.to=FOLDER."
    return UserError(
        Problem(where=f"export.to={path}", found=f"cannot write ({error.strerror or error})", remedy=remedy)
    )


def _is_elsewhere(filename: object, path: Path, made: Path | None) -> bool:
    if not isinstance(filename, str):
        return False
    found = Path(filename)
    ours = {path, *path.parents, *([made, _lock_of(made)] if made is not None else [])}
    return found not in ours and (made is None or made not in found.parents)
