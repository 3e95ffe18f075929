"""One rank whose layers lie in host memory for the most part, beside a run with all of them on the device."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import torch
from engines_contender import Contender, Replicated, Streamed, place_of, rows_of
from engines_job import Job

from orchestrator.engines.live import count_bytes
from orchestrator.weights.cut import Cut, Tier, cut_by_bytes, resident_layers
from orchestrator.weights.layout import BaseLayout
from orchestrator.weights.shards import Shards
from orchestrator.weights.store import Store

CUT: Final = 4  # the layers' bytes are so many times the budget
_WARM_UP: Final = 2


class CopyClock:
    """Times the copies from the host tier to the window: with events on a GPU, by the clock on a CPU."""

    def __init__(self, shards: Shards) -> None:
        """Stand between the store and its pieces."""
        self.seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._read = shards.read
        self._is_gpu = shards.device.type == "cuda"
        shards.read = self.read  # type: ignore[method-assign] # each copy goes through it

    def read(self, layer: int, begin: int, end: int, slot: torch.Tensor) -> None:
        """Copy as before, in the mover's thread and stream."""
        if not self._is_gpu:
            began = time.perf_counter()
            self._read(layer, begin, end, slot)
            self.seconds += time.perf_counter() - began
            return
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        self._read(layer, begin, end, slot)
        last.record()
        self._events.append((first, last))

    def take(self) -> float:
        """Seconds of the copies that have ended since the last call; one under way for the next step counts then."""
        found, self.seconds = self.seconds, 0.0
        events, self._events = self._events, []  # the mover's thread may add some meanwhile
        for first, last in events:
            if last.query():  # type: ignore[no-untyped-call]
                found += float(first.elapsed_time(last)) / 1e3  # from milliseconds
            else:
                self._events.append((first, last))
        return found


def cut_within(budget_bytes: int | None, window: int) -> Callable[[BaseLayout], Cut]:
    """All layers in host memory, but for those that the budget holds beside the window; None: a quarter of all."""

    def cut(layout: BaseLayout) -> Cut:
        budget = layout.total_bytes // CUT if budget_bytes is None else budget_bytes
        room = budget - sum(sorted(layout.layer_bytes)[-window:])
        if room < 0:
            raise ValueError(f"a window of {window} layers is larger than the budget of {budget:,} bytes")
        return cut_by_bytes(layout, [{Tier.host: 1}], resident_layers(layout, room))

    return cut


def device_bytes(store: Store) -> int:
    """Bytes of the layers that the store holds on the device."""
    held = [*store.slots, *store.residents, store.shards.memory[Tier.device]]
    return count_bytes({"": held})[""]


def take_steps(job: Job, contender: Contender, steps: range) -> tuple[list[float], list[float]]:
    """Return losses and seconds of the steps."""
    losses, seconds = [], []
    vocab = contender.model.config.vocab_size
    for step in steps:
        tokens = rows_of(job, vocab, step)
        began = time.perf_counter()
        losses.append(contender.step(tokens))
        _synchronise(job)
        seconds.append(time.perf_counter() - began)
    return losses, seconds


def reset_peak(job: Job) -> None:
    """Let the device's high-water mark begin anew."""
    if place_of(job).type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(job: Job) -> int:
    """Most bytes of tensors on the device since then; 0 on a CPU, whose allocator does not count."""
    return torch.cuda.max_memory_allocated() if place_of(job).type == "cuda" else 0


def _synchronise(job: Job) -> None:
    if place_of(job).type == "cuda":
        torch.cuda.synchronize()


def resident(job: Job) -> dict[str, Any]:
    """Train with the whole base on the device, and let it go."""
    contender = Replicated(job)
    reset_peak(job)
    losses, seconds = take_steps(job, contender, range(job.steps))
    base = count_bytes(contender.live())
    found = {
        "losses": losses,
        "step_seconds": median(seconds[min(_WARM_UP, job.steps - 1) :]),
        "base_bytes": sum(base.values()),
        "layers_bytes": base["layers"],
        "peak_bytes": peak_bytes(job),
    }
    del contender
    gc.collect()
    return found


def from_host(job: Job, budget_bytes: int | None = None) -> dict[str, Any]:
    """Train with the layers in host memory; copies and waits are those of the steps after the warm-up, for one step."""
    contender = Streamed(job, cut_within(budget_bytes, job.window))
    reset_peak(job)
    store = contender.engine.attached.store
    clock = CopyClock(store.shards)
    warm = min(_WARM_UP, job.steps - 1)
    before, _ = take_steps(job, contender, range(warm))
    clock.take()
    contender.engine.exposed_seconds()
    copied = store.stats.copied_bytes
    losses, seconds = take_steps(job, contender, range(warm, job.steps))
    steps = len(losses)
    exposed, copying = contender.engine.exposed_seconds() / steps, clock.take() / steps
    head = contender.engine.live_tensors(contender.model, contender.optimizer)["base_unquantised"]
    found = {
        "losses": before + losses,
        "step_seconds": median(seconds),
        "layers_bytes": store.layout.total_bytes,
        "budget_bytes": store.layout.total_bytes // CUT if budget_bytes is None else budget_bytes,
        "live_bytes": device_bytes(store),
        "host_bytes": store.shards.nbytes[Tier.host],
        "head_bytes": count_bytes({"": head})[""],
        "copied_bytes": (store.stats.copied_bytes - copied) / steps,
        "copy_seconds": copying,
        "exposed_seconds": exposed,
        "peak_bytes": peak_bytes(job),
        "overlap": max(0.0, 1 - exposed / copying) if copying else 1.0,
    }
    contender.close()
    return found


def beside_resident(job: Job) -> dict[str, Any]:
    """Both, and whether their losses are the same."""
    return together(resident(job), from_host(job))


def together(whole: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Put a run from host memory beside the resident one."""
    beside = {f"resident_{name}": value for name, value in whole.items() if name != "losses"}
    return {**found, **beside, "equal_losses": found["losses"] == whole["losses"]}
