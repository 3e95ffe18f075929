"""Text of the kernel's files, and the numbers in it: one that no machine has is no number, whatever its digits are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES: Final = 16 * 2**20  # /proc/cpuinfo of some thousand processors is the largest by far
_PIECE_BYTES: Final = 64 * 2**10  # the kernel answers ENOMEM where it cannot make a buffer of the size asked for
_WHOLE: Final = re.compile(r"[+-]?\d{1,20}|0[xX][0-9a-fA-F]{1,16}", re.ASCII)
_REAL: Final = re.compile(r"\d{1,20}(\.\d{1,20})?", re.ASCII)
_MAX_WORD: Final = 256


class ReadingAbsentError(Exception):
    """There is no value, and `code` is the reason: not a failure of the read itself."""

    def __init__(self, *, code: str) -> None:
        """Keep the code."""
        self.code = code
        super().__init__(code)


def read_text(path: Path) -> str:
    """Read a file of the kernel up to 16 MiB, without the white space around it."""
    pieces: list[bytes] = []
    left = _MAX_BYTES
    with path.open("rb", buffering=0) as stream:
        while left and (piece := stream.read(min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces).decode(errors="replace").strip()


def word(text: str) -> str:
    """Return a name as it is.

    Raises:
        ReadingAbsentError: `EMPTY`.
        ValueError: if it is too long for a name.

    """
    if not text:
        raise ReadingAbsentError(code="EMPTY")
    if len(text) > _MAX_WORD:
        raise ValueError
    return text


def whole(text: str, *, least: int = 0, most: int) -> int:
    """Parse a whole number, decimal or with 0x.

    Raises:
        ValueError: if it is none, or out of bounds.

    """
    text = text.strip()
    if _WHOLE.fullmatch(text) is None:
        raise ValueError
    value = int(text, 16) if text[:2] in {"0x", "0X"} else int(text)
    if not least <= value <= most:
        raise ValueError
    return value


def positive(text: str, *, most: float) -> float:
    """Parse a number above zero in plain digits: no exponent, no `inf`.

    Raises:
        ValueError: if it is none, or out of bounds.

    """
    text = text.strip()
    if _REAL.fullmatch(text) is None or not 0 < float(text) <= most:
        raise ValueError
    return float(text)
