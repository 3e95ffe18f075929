"""Text for a picture: safe for XML whatever it holds, and never wider than the room it is given."""

from __future__ import annotations

import html
import unicodedata
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_CHARS: Final = 400
_UNSAFE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SPACES: Final = frozenset("\t\n\r")
_WIDE: Final = frozenset("WF")
_ELLIPSIS: Final = "\u2026"
# Widths in em, of the widest of the usual sans-serif fonts (DejaVu Sans and Verdana), so that no other overflows.
_GROUPS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "ijl.,:;'|I![]()/\\ -": 0.40,
        "frt": 0.46,
        "mwM": 0.98,
        "W@%": 1.05,
        "ABCDGHKNOQRSUVXY&": 0.80,
    },
)
_EM: Final[Mapping[str, float]] = MappingProxyType({char: em for chars, em in _GROUPS.items() for char in chars})
_ASCII_EM: Final = 0.65
_OTHER_EM: Final = 0.85
_WIDE_EM: Final = 1.1
_BOLD: Final = 1.12


def clean(text: str) -> str:
    """Make the text one line without control, formatting or private characters, of at most 400 characters."""
    cut = text[: _MOST_CHARS + 1]
    line = "".join(_safe(char) for char in cut)
    return line if len(cut) <= _MOST_CHARS else line[: _MOST_CHARS - 1] + _ELLIPSIS


def _safe(char: str) -> str:
    category = unicodedata.category(char)
    if char in _SPACES or category == "Zs":
        return " "
    return "\ufffd" if category in _UNSAFE else char


def escaped(text: str) -> str:
    """Clean and escape the text, for element content and attribute values."""
    return html.escape(clean(text), quote=True)


def width_px(text: str, size_px: float, *, bold: bool = False) -> float:
    """Estimate the width of a line, from above for the usual fonts."""
    return sum(map(_em, text)) * size_px * (_BOLD if bold else 1.0)


def _em(char: str) -> float:
    if char.isascii():
        return _EM.get(char, _ASCII_EM)
    return _WIDE_EM if unicodedata.east_asian_width(char) in _WIDE else _OTHER_EM


def shorten(text: str, room_px: float, size_px: float, *, bold: bool = False) -> str:
    """Return the cleaned text, cut to the room with an ellipsis at its end; empty where nothing fits."""
    line = clean(text)
    if width_px(line, size_px, bold=bold) <= room_px:
        return line
    left = room_px - width_px(_ELLIPSIS, size_px, bold=bold)
    if left < 0:
        return ""
    end = 0
    while end < len(line) and (left := left - width_px(line[end], size_px, bold=bold)) >= 0:
        end += 1
    return line[:end].rstrip() + _ELLIPSIS


def longest(options: Sequence[str], room_px: float, size_px: float, *, bold: bool = False) -> str:
    """Return the first of the options, given from long to short, that fits; the last one where none does."""
    fitting = (one for one in options if width_px(clean(one), size_px, bold=bold) <= room_px)
    return next(fitting, options[-1])


def listed(names: list[str], most: int = 8) -> str:
    """Join names, the first ones where there are many."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
