"""Moves bytes beside the computation: a thread for copies, one for gathers; on a GPU each has a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch

from orchestrator.weights.rules import Move

Event = torch.cuda.Event | None  # a GPU's; on CPU what has returned is done


class Mover:
    """Does copies one after the other, and gathers one after the other."""

    def __init__(self, device: torch.device) -> None:
        """Start the threads (on a GPU: and streams)."""
        self._device = device if device.type == "cuda" else None
        self._threads = {move: ThreadPoolExecutor(1, thread_name_prefix=f"base-{move}") for move in Move}
        self._streams = {move: _stream(device) for move in Move} if self._device else {}

    def mark(self, *, timed: bool = False) -> Event:
        """Mark how far the current stream has come."""
        if self._device is None:
            return None
        event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def start(
        self, move: Move, work: Callable[[], None], ready: Event, after: Sequence[Future[Event]]
    ) -> Future[Event]:
        """Do it when the memory is free (`ready`) and what it follows is done."""
        return self._threads[move].submit(self._run, move, work, ready, tuple(after))

    def _run(self, move: Move, work: Callable[[], None], ready: Event, after: Sequence[Future[Event]]) -> Event:
        events = [ready, *(flight.result() for flight in after)]
        stream = self._streams.get(move)
        context: AbstractContextManager[object] = torch.cuda.stream(stream) if stream else nullcontext()
        with context, torch.no_grad():
            for event in events:
                if stream is not None and event is not None:
                    stream.wait_event(event)
            work()
            return self.mark()

    def close(self) -> None:
        """End the threads; what has not begun is left undone."""
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
