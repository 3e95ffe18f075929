"""Lines for the one who waits: at once on a terminal, elsewhere only once the waiting gets long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final, TextIO

_QUIET_SECONDS: Final = 2.0


class Progress:
    """Tells each step once, as soon as it is worth telling."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep the stream; the time before the first line is counted from here."""
        self._stream, self._clock, self._begin = stream, clock, clock()
        self._waiting: str | None = None

    def step(self, text: str) -> None:
        """Begin a step."""
        self._waiting = text
        self.tick()

    def tick(self) -> None:
        """Tell the present step if it is due; to be called while it lasts."""
        if self._waiting is None:
            return
        # Nobody may be listening: a closed stream is no reason to stop the work.
        with contextlib.suppress(OSError, ValueError):
            if self._stream.isatty() or self._clock() - self._begin >= _QUIET_SECONDS:
                text, self._waiting = self._waiting, None
                print(text, file=self._stream, flush=True)
