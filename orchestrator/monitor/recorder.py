"""Takes the readings of a rank off its hands: a queue, and a thread that writes."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from pathlib import Path
from typing import Final

from orchestrator.monitor.log import MOST_RANK_BYTES, ReadingLog
from orchestrator.monitor.readings import CopyReading, RankReading

_PAUSE_SECONDS: Final = 0.2  # steps shorter than this are written together
_MOST_WAITING: Final = 10_000  # where the disk hangs
_END_SECONDS: Final = 5.0


class Recorder:
    """Writes the readings of one rank. A disk that hangs or is full costs readings, never a step."""

    def __init__(self, path: Path) -> None:
        """Start the thread; it ends with the process."""
        self._log = ReadingLog(path, MOST_RANK_BYTES)
        self._queue: queue.SimpleQueue[RankReading | CopyReading | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._lost = 0
        self.cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="telemetry")
        self._thread.start()

    def put(self, reading: RankReading | CopyReading) -> None:
        """Take a reading; returns at once."""
        if self._queue.qsize() < _MOST_WAITING:
            self._queue.put(reading)
        else:
            self._lost += 1

    @property
    def lost(self) -> int:
        """Readings that were not written."""
        return self._lost + self._log.lost

    def end(self) -> None:
        """Write what is left; a disk that hangs is not waited for."""
        self._ended.set()
        self._queue.put(None)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        is_open = True
        while is_open:
            readings = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    readings.append(self._queue.get_nowait())
            is_open = None not in readings
            self._log.append(reading for reading in readings if reading is not None)
            self.cpu_seconds = time.thread_time()
            self._ended.wait(_PAUSE_SECONDS)
        self._log.close()
