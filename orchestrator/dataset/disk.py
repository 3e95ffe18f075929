"""Looks at the user's disk: what the system refuses becomes a problem that names the path."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import Problem, UserError

_REMEDIES = {
    errno.EACCES: "Give this user access to it, or name another path.",
    errno.EPERM: "Give this user access to it, or name another path.",
    errno.ELOOP: "Correct the symbolic link: it leads back to itself.",
    errno.ENAMETOOLONG: "Give a shorter path.",
    errno.ENOSPC: "Free some space there, or use another disk.",
    errno.EROFS: "Use a disk that can be written.",
}
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


def expanded(path: str) -> Path:
    """The path with `~` filled in; left as it is for a user without a home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises where there is no home


def is_file(path: Path) -> bool:
    """Whether `path` is a file.

    Raises:
        UserError: the system does not say (no permission, a circle of links, a name too long).
    """
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder; raises like `is_file`."""
    return stat.S_ISDIR(_mode(path))


def exists(path: Path) -> bool:
    """Whether there is anything at `path`; raises like `is_file`."""
    return _mode(path) != 0


def names_in(folder: Path) -> tuple[str, ...]:
    """Names of what a folder holds, sorted.

    Raises:
        UserError: the folder cannot be listed.
    """
    with reading(folder):
        return tuple(sorted(os.listdir(folder)))  # noqa: PTH208 - names are what is wanted


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the system refuses inside the block into a `UserError` about `path`."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error


def refusal(path: Path, error: OSError) -> UserError:
    """The problem behind an `OSError`; the path it names itself is nearer than `path`."""
    where = error.filename if isinstance(error.filename, str) else str(path)
    return UserError(Problem(where=where, found=reason_of(error), remedy=remedy_for(error)))


def reason_of(error: OSError) -> str:
    """What the system says, in its words."""
    return (error.strerror or str(error) or type(error).__name__).rstrip(". ")


def remedy_for(error: OSError) -> str:
    """What to do about it."""
    return _REMEDIES.get(error.errno or 0, "Check the path and the disk it is on.")


def _mode(path: Path) -> int:
    """The mode bits, links followed; 0 when there is nothing."""
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise refusal(path, error) from error
    except ValueError:  # a NUL in the name: no file system holds it
        return 0
