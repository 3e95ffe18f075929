"""Readings of a GPU's PCIe link and clocks, one after the other, through NVML."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from typing import Any, Final

_PATIENCE_SECONDS: Final = 5.0

Sample = tuple[int | None, int | None, int | None]


def bounded_samples(
    source: Generator[Sample, None, None], patience_seconds: float = _PATIENCE_SECONDS
) -> Generator[Sample, None, None]:
    """Take the samples in a thread of their own, and end where one does not come: NVML hangs on a GPU that is going."""
    asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Sample | None] = queue.SimpleQueue()

    def answer() -> None:
        while asked.get():
            answers.put(next(source, None))
        source.close()

    # A daemon: one that hangs must not keep this process from its end.
    threading.Thread(target=answer, daemon=True).start()
    try:
        while True:
            asked.put(item=True)
            try:
                sample = answers.get(timeout=patience_seconds)
            except queue.Empty:
                return
            if sample is None:
                return
            yield sample
    finally:
        asked.put(item=False)


def nvml_samples(gpu: str) -> Generator[Sample, None, None]:
    """Current generation, width and clocks event reasons of a GPU, each None where NVML does not tell.

    Ends at once where NVML cannot find the GPU.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no driver, no library, no package: no samples
        return
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
        reasons = getattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
            pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
        )
        while True:
            yield (
                _asked(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
                _asked(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
                None if reasons is None else _asked(reasons, handle),
            )
    except Exception:  # noqa: BLE001 - a GPU that NVML loses ends the samples, not the examination
        return
    finally:
        _asked(lambda _: pynvml.nvmlShutdown(), None)


def _asked(function: Callable[[Any], Any], handle: Any) -> int | None:  # noqa: ANN401 - ctypes of pynvml
    try:
        value = function(handle)
    except Exception:  # noqa: BLE001 - one call may fail where the others do not
        return None
    return None if value is None else int(value)
