"""Files of /proc and /sys as readings: a value, or the code of why there is none."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from topology.probe.cgroup import ReadingAbsentError
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

P = ParamSpec("P")
V = TypeVar("V")
W = TypeVar("W")

_MAX_BYTES: Final = 16 * 2**20  # /proc/cpuinfo of some thousand processors is the largest by far


def attempt(source: str, read: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> Reading[V]:
    """Call `read` with the rest; turn what it raises into an error code (`ENOENT`, `MALFORMED`, `UNLIMITED`)."""
    try:
        return Reading(source=source, value=read(*args, **kwargs))
    except ReadingAbsentError as absent:
        return Reading(source=source, error=absent.code)
    except OSError as error:
        return Reading(source=source, error=errno.errorcode.get(error.errno or 0, "OSERROR"))
    except (ValueError, LookupError, RuntimeError):  # the last is what a loop of links makes of `resolve`
        return Reading(source=source, error="MALFORMED")


def then(reading: Reading[V], pick: Callable[[V], W]) -> Reading[W]:
    """Take a part of a value; an error stays, and what `pick` raises becomes one."""
    if reading.value is None:
        return Reading(source=reading.source, error=reading.error)
    return attempt(reading.source, pick, reading.value)


def is_there(path: Path) -> bool:
    """Whether the path exists; one that may not be looked at does not."""
    try:
        return path.exists()
    except OSError:
        return False


def read_text(path: Path) -> str:
    """Read a file of the kernel, without the white space around it."""
    with path.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(_MAX_BYTES).strip()


def read_integer(path: Path) -> int:
    """Read a file that holds one number, decimal or with 0x."""
    return int(read_text(path), 0)


def read_word(path: Path) -> str:
    """Read a file that holds a name.

    Raises:
        ReadingAbsentError: `EMPTY`.

    """
    text = read_text(path)
    if not text:
        raise ReadingAbsentError(code="EMPTY")
    return text
