"""Files of /proc and /sys as readings: a value, or the code of why there is none."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from topology.probe.kernel_values import ReadingAbsentError, read_text, whole, word
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["attempt", "is_there", "read_text", "read_whole", "read_word", "then"]

P = ParamSpec("P")
V = TypeVar("V")
W = TypeVar("W")


def attempt(source: str, read: Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> Reading[V]:
    """Call `read` with the rest; turn what it raises into an error code (`ENOENT`, `MALFORMED`, `UNLIMITED`)."""
    try:
        return Reading(source=source, value=read(*args, **kwargs))
    except ReadingAbsentError as absent:
        return Reading(source=source, error=absent.code)
    except OSError as error:
        return Reading(source=source, error=errno.errorcode.get(error.errno or 0, "OSERROR"))
    except (ValueError, LookupError, ArithmeticError, RuntimeError):
        # The last is what a loop of links makes of `resolve`.
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
    except (OSError, ValueError):
        return False


def read_whole(path: Path, *, least: int = 0, most: int) -> int:
    """Read a file that holds one whole number, decimal or with 0x."""
    return whole(read_text(path), least=least, most=most)


def read_word(path: Path) -> str:
    """Read a file that holds a name.

    Raises:
        ReadingAbsentError: `EMPTY`.

    """
    return word(read_text(path))
