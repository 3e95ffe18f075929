"""Plain tables and lists in at most a hundred columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from topology.checks import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 100
UNKNOWN: Final = "?"


def table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Align columns, two blanks apart."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    )


def wrapped(text: str, mark: str = "-") -> list[str]:
    """Break one entry of a list into lines."""
    first = f"  {mark} "
    return textwrap.wrap(
        printable(text), WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
    )


def shown(value: int | None) -> str:
    """Write a number, or that it is unknown."""
    return UNKNOWN if value is None else str(value)


def count(number: int | None, noun: str) -> str:
    """Write a number of things."""
    return f"{shown(number)} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], limit: int = 8) -> str:
    """Name the first few."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return printable(", ".join(names[:limit]) + rest)
