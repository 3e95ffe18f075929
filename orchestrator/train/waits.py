"""What a rank waits for other ranks in a step, so that a slow rank can be told from those that wait for it.

In synchronous training all ranks take the same time for a step. What differs is when a rank has its own last gradient:
from then to the end of the backward pass it waits for sums of gradients that nothing hides any more, its own last
bucket's and those of slower ranks. On a GPU both moments are events on the stream that computes, which waits there for
the stream that communicates.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Mark = Any  # seconds of the host's clock, or an event on the device
_MOST_PENDING: Final = 256


class WaitMeter:
    """Adds up the exposed waits of the backward passes of a model in DDP."""

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        """Watch every trained parameter in the first pass, and then the one alone whose gradient came last."""
        self._on_cuda = device.type == "cuda"
        self._last: Mark | None = None
        self._last_index = 0
        self._is_known = True
        self._seconds = 0.0
        self._pending: list[tuple[Mark, Mark]] = []
        self._hooks: dict[int, Any] = {}
        self.watch(parameters)

    def watch(self, parameters: Sequence[nn.Parameter]) -> None:
        """Watch these from now on, and no others."""
        self.close()
        self._hooks = {
            index: parameter.register_post_accumulate_grad_hook(self._hook(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(parameters)
        }

    def backward(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap what runs a backward pass, to its end."""

        def timed(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - accelerate's
            self._last = None
            original(*arguments, **options)
            self._ended()

        return timed

    def take(self) -> float | None:
        """Return the seconds waited since the last call; None where a pass could not be timed.

        On a GPU, those of passes that it has finished: it is not waited for.
        """
        while self._pending and (len(self._pending) > _MOST_PENDING or self._pending[0][1].query()):
            begin, end = self._pending.pop(0)
            with contextlib.suppress(RuntimeError):
                self._seconds += begin.elapsed_time(end) / 1e3  # from milliseconds
        found, self._seconds = self._seconds, 0.0
        is_known, self._is_known = self._is_known, True
        return max(0.0, found) if is_known else None

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def ready(_: torch.Tensor) -> None:
            self._last, self._last_index = self._now(), index

        return ready

    def _now(self) -> Mark:
        if not self._on_cuda:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _ended(self) -> None:
        if self._last is None:
            self._is_known = False
            return
        if self._on_cuda:
            self._pending.append((self._last, self._now()))
        else:
            self._seconds += time.perf_counter() - self._last
        if len(self._hooks) > 1:
            kept = self._hooks.pop(self._last_index)
            self.close()
            self._hooks = {self._last_index: kept}


class RunnableClock:
    """Seconds in which this thread ran or wanted to: of the CPU, and of its queue.

    The kernel leaves out what a thread sleeps, which in a collective on CPUs is its wait. What other processes or a
    quota take from it counts, unlike in CPU time.
    """

    def __init__(self) -> None:
        """Open the kernel's counters of the calling thread, where it has them."""
        self._file: int | None = None
        with contextlib.suppress(OSError):
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._before = self._read()

    def take(self) -> float | None:
        """Return the seconds since the last call; None where the kernel does not count."""
        now, before = self._read(), self._before
        self._before = now
        return None if now is None or before is None else (now - before) / 1e9

    def _read(self) -> int | None:
        if self._file is None:
            return None
        try:
            ran, waited, _ = os.pread(self._file, 128, 0).split()
        except (OSError, ValueError):
            return None
        return int(ran) + int(waited)


class Stopwatch:
    """Adds up the seconds inside of calls."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.seconds = 0.0

    def timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function."""

        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the function
            began = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - began

        return call


class StepWaits:
    """All that a rank waits for in a step."""

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], device: torch.device, world_size: int
    ) -> None:
        """Take the model as the trainer wrapped it."""
        self._on_cpu, self._is_alone = device.type == "cpu", world_size == 1
        self._meter = WaitMeter(parameters, device) if isinstance(model, DistributedDataParallel) else None
        self._gathers = Stopwatch()
        others = self._on_cpu and not self._is_alone and self._meter is None
        self._clock = RunnableClock() if others else None

    def attach(self, accelerator: Any, group: Any) -> None:  # noqa: ANN401 - accelerate's; the metrics group
        """Time the passes and the small collectives between them."""
        if self._meter is not None:
            accelerator.backward = self._meter.backward(accelerator.backward)
        if self._on_cpu and not self._is_alone:  # on a GPU these return before they are done
            accelerator.gather = self._gathers.timed(accelerator.gather)
            for name in ("sum", "max"):
                setattr(group, name, self._gathers.timed(getattr(group, name)))

    def follow(self, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        """Watch the parameters of a model that was wrapped anew."""
        if self._meter is not None and isinstance(model, DistributedDataParallel):
            self._meter.watch(parameters)

    def restart(self) -> None:
        """Forget what was waited in a pause."""
        self.take(0.0)

    def take(self, step_seconds: float) -> tuple[float | None, float | None]:
        """Return the seconds of the step that has ended without its waits, and those waited for gradients.

        Waits for streamed layers are not known here: they are still in the first.
        """
        exposed = 0.0 if self._is_alone else None if self._meter is None else self._meter.take()
        gathers, self._gathers.seconds = self._gathers.seconds, 0.0
        if exposed is not None:
            return max(0.0, step_seconds - exposed - gathers), exposed
        runnable = None if self._clock is None else self._clock.take()
        return None if runnable is None else min(runnable, step_seconds), None
