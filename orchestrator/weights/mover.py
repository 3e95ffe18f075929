"""Moves bytes beside the computation: a thread for copies, one for gathers; on a GPU each has a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Thread

import torch

from orchestrator.weights.gather import Gather
from orchestrator.weights.rules import Move
from orchestrator.weights.shards import Shards

Event = torch.cuda.Event | None  # a GPU's; on CPU what has returned is done


@dataclass(frozen=True, slots=True)
class Copying:
    """This rank's bytes of a span, on their way to the layer's memory."""

    shards: Shards
    layer: int
    begin: int
    end: int
    memory: torch.Tensor

    def __call__(self) -> None:
        """Bring them."""
        self.shards.read(self.layer, self.begin, self.end, self.memory)


@dataclass(frozen=True, slots=True)
class Gathering:
    """All ranks' bytes of a span, on their way."""

    gather: Gather
    memory: torch.Tensor
    counts: Sequence[int]

    def __call__(self) -> None:
        """Bring them."""
        self.gather.run(self.memory, self.counts)


class Mover:
    """Does copies one after the other, and gathers one after the other."""

    def __init__(self, device: torch.device) -> None:
        """Start the threads (on a GPU: and streams)."""
        self._device = device if device.type == "cuda" else None
        self._threads = {move: _Worker(f"base-{move}") for move in Move}
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
        return self._threads[move].submit(partial(self._run, move, work, ready, tuple(after)))

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
        """End the threads, after what was started."""
        for thread in self._threads.values():
            thread.close()


class _Worker:
    """A thread that does one thing after the other.

    The interpreter waits at its end for the threads of a `ThreadPoolExecutor`. A gather whose peers wait for this
    very process would keep a failed rank alive until the group's timeout, and its launcher would never know.
    """

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Future[Event], Callable[[], Event]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], Event]) -> Future[Event]:
        future: Future[Event] = Future()
        self._tasks.put((future, task))
        return future

    def _work(self) -> None:
        while (found := self._tasks.get()) is not None:
            future, task = found
            try:
                future.set_result(task())
            except BaseException as error:  # noqa: BLE001 - told to who waits for it
                future.set_exception(error)

    def close(self) -> None:
        self._tasks.put(None)
        self._thread.join()


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
