"""Colours of a terminal: where they are wanted, and the few that are used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import TextIO


class Style(Enum):
    """A rendition, as ECMA-48 numbers them."""

    error = "1;31"
    place = "1"
    remedy = "32"
    warning = "33"
    quiet = "2"


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream is to be coloured.

    `NO_COLOR` (https://no-color.org) wins over `FORCE_COLOR` (https://force-color.org), which wins over `TERM=dumb` and
    over whether the stream is a terminal; each counts where it is not empty. `FORCE_COLOR=0` means no colours.
    """
    if environ.get("NO_COLOR"):
        return False
    if forced := environ.get("FORCE_COLOR"):
        return forced.lower() not in {"0", "false"}
    return _is_terminal(stream, environ)


def is_live(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether lines that stand there may be written anew: a terminal that can, and nobody's log.

    Services that set `CI` keep a log, though some give their jobs a terminal.
    """
    return _is_terminal(stream, environ) and environ.get("CI", "").lower() in {"", "0", "false"}


def _is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    try:
        return stream.isatty() and environ.get("TERM", "") not in {"", "dumb"}
    except ValueError:  # closed
        return False


def paint(text: str, style: Style, *, colour: bool) -> str:
    """Return the text in a style, or as it is."""
    return f"\x1b[{style.value}m{text}\x1b[0m" if colour and text else text
