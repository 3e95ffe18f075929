"""What a run says, and on a terminal how it stands below that."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from orchestrator.report.live import lines_of
from orchestrator.report.panel import Panel
from orchestrator.terminal import is_live, wants_colour
from orchestrator.watch import Watch

_EVERY_SECONDS: Final = 1.0
_STEP: Final = re.compile(r"step +\d+/\d+ ")  # a line of rank 0 for each step, which the view shows better


@contextmanager
def viewed(run_dir: Path, stream: TextIO, *, every_seconds: float = _EVERY_SECONDS) -> Iterator[Callable[[str], None]]:
    """Yield what says a line of a run; on a terminal the state of the run stands below, as `watch` shows it.

    In a log, a pipe or CI each line is printed as it comes, those of the steps included.
    """
    if not is_live(stream):
        yield lambda line: print(line, file=stream, flush=True)
        return
    panel, ended = Panel(stream), threading.Event()

    def say(line: str) -> None:
        if not _STEP.match(line):
            panel.say(line)

    thread = threading.Thread(target=_show, args=(run_dir, stream, panel, ended, every_seconds), daemon=True)
    thread.start()
    try:
        yield say
    finally:
        ended.set()
        thread.join(5.0)
        panel.clear()


def _show(run_dir: Path, stream: TextIO, panel: Panel, ended: threading.Event, every_seconds: float) -> None:
    """Look at the run now and then; one that cannot be read yet, or no more, is shown by nothing."""
    watched: Watch | None = None
    while not ended.wait(every_seconds):
        with contextlib.suppress(Exception):
            watched = watched or Watch(run_dir)
            live = watched.look()
            if live.step or live.phase:
                panel.show(lines_of(live, colour=wants_colour(stream)))
