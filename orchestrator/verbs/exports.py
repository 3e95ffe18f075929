"""The verb `export`."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING

from orchestrator.verbs.emit import emit, stream_of

if TYPE_CHECKING:
    from orchestrator.config import RunConfig


def export(config: RunConfig) -> int:
    """Write the adapter of a run, or a whole model with it."""
    from orchestrator.export import export as write

    stream = stream_of(config)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        done = write(config, lambda line: print(line, file=stream, flush=True))
    finally:
        signal.signal(signal.SIGTERM, before)
    emit(config, done.body, done.text)
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does: what was half written is removed."""
    raise KeyboardInterrupt
