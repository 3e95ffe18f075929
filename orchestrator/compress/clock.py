"""Adds up what the parts of an exchange take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

PHASES: Final = ("dense", "select", "encode", "wire", "decode")


class Clock:
    """Seconds of each phase; on CUDA of the stream, read when asked.

    dense: gradients summed inside the island. select: the largest found, those of sums by their owner among it. encode:
    gradients added to the residual; what was selected packed and taken out. wire: packets on their way, waiting for
    slower ranks among it. decode: unpacked and summed.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin at zero."""
        self._on_cuda = device.type == "cuda"
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside."""
        if self._on_cuda:
            begin, end = _event(), _event()
            begin.record()
            yield
            end.record()
            self._pending.append((name, begin, end))
            self._read(wait=False)
            return
        at = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - at

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase so far; on CUDA, after what is under way."""
        self._read(wait=True)
        return dict(self._seconds)

    def _read(self, *, wait: bool) -> None:
        while self._pending and (wait or self._pending[0][2].query()):  # type: ignore[no-untyped-call]
            name, begin, end = self._pending.pop(0)
            end.synchronize()
            self._seconds[name] += begin.elapsed_time(end) / 1e3  # from milliseconds


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
