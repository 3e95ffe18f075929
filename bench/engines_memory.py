"""What the kernel says of this process: memory now and at its peak, and since when it runs."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

import psutil

_EVERY_SECONDS: Final = 0.02


def status_bytes(*keys: str) -> int:
    """Sum of lines of /proc/self/status, such as VmRSS, VmHWM or RssAnon, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}
    return sum(found[key] for key in keys)


def reset_peak() -> None:
    """Let the high-water mark begin anew at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def seconds_since_start() -> float:
    """Age of this process; the kernel counts it in hundredths."""
    return time.time() - psutil.Process().create_time()


class AnonymousPeak:
    """Watches the memory that is backed by no file: pages of a mapped checkpoint can be dropped, these cannot.

    The kernel keeps no peak of it, so a thread looks every 20 ms and may miss what is shorter.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self.peak_bytes = 0
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, status_bytes("RssAnon", "RssShmem"))

    def __enter__(self) -> Self:
        """Begin."""
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, after a last look."""
        self._ended.set()
        self._thread.join()
        self._look()
