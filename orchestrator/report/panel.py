"""The last lines of a terminal, written anew, and what is said above them."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Sequence
from typing import Final, TextIO

_STYLES: Final = re.compile(r"\x1b\[[\d;]*m")
_CLEAR_LINE: Final = "\x1b[2K"
_CLEAR_BELOW: Final = "\x1b[J"


class Panel:
    """Lines at the bottom of a terminal. One thread may say things while another shows."""

    def __init__(self, stream: TextIO) -> None:
        """Show nothing yet."""
        self._stream = stream
        self._lines: list[str] = []
        self._lock = threading.RLock()

    def show(self, lines: Sequence[str]) -> None:
        """Put these lines in the place of those shown before."""
        with self._lock:
            width = max(20, shutil.get_terminal_size().columns - 1)
            cut = [_cut(line, width) for line in lines]
            if cut == self._lines:
                return
            self._stream.write(self._up() + "".join(f"{_CLEAR_LINE}{line}\n" for line in cut) + _CLEAR_BELOW)
            self._stream.flush()
            self._lines = cut

    def say(self, line: str) -> None:
        """Write a line that stays, above those shown."""
        with self._lock:
            shown = "".join(f"{_CLEAR_LINE}{one}\n" for one in self._lines)
            self._stream.write(f"{self._up()}{_CLEAR_BELOW if shown else ''}{line}\n{shown}")
            self._stream.flush()

    def clear(self) -> None:
        """Take the lines away."""
        with self._lock:
            self._stream.write(self._up() + (_CLEAR_BELOW if self._lines else ""))
            self._stream.flush()
            self._lines = []

    def _up(self) -> str:
        return f"\x1b[{len(self._lines)}A\r" if self._lines else ""


def _cut(line: str, width: int) -> str:
    """A line that fits: one that wrapped would count as two."""
    bare = _STYLES.sub("", line)
    return line if len(bare) <= width else bare[:width]
