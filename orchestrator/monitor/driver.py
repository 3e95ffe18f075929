"""The driver in threads of its own: a call that hangs takes no other reading with it."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from orchestrator.monitor.gpu import GpuMeter, Target
from orchestrator.monitor.readings import DeviceReading, Xid
from topology.probe.nvml_calls import Caller, text_of
from topology.probe.nvml_library import LIBRARY, find_library

_XID_EVENT: Final = 8  # nvmlEventTypeXidCriticalError
_EVENT_MILLISECONDS: Final = 1000
_PAUSE_SECONDS: Final = 1.0


def open_driver() -> tuple[Caller | None, str]:
    """Start NVML in this process; without it, why not."""
    if find_library(os.environ) is None:
        return None, f"{LIBRARY} not found"
    try:
        import pynvml  # slow, and useless without a driver
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    call = Caller(pynvml)
    started = call.read("nvmlInit", then=lambda _: True)
    return (call, "") if started.error is None else (None, f"NVML does not start ({started.error})")


class DriverThread:
    """Reads all devices at the interval, and hears of XID errors; whoever asks takes what has come so far."""

    def __init__(self, targets: Sequence[Target], host: int, every_seconds: float, say: Callable[[str], None]) -> None:
        """Take what to read; nothing is called yet."""
        self._targets, self._host, self._every_seconds, self._say = tuple(targets), host, every_seconds, say
        self._readings: queue.SimpleQueue[DeviceReading] = queue.SimpleQueue()
        self._xids: queue.SimpleQueue[Xid] = queue.SimpleQueue()
        self._answered = time.monotonic()

    def start(self) -> None:
        """Begin, in daemon threads: one that hangs must not keep this process from its end."""
        threading.Thread(target=self._run, daemon=True, name="nvml").start()

    def take(self) -> tuple[list[DeviceReading], list[Xid]]:
        """Return what has come since the last call."""
        return _drained(self._readings), _drained(self._xids)

    def silent_seconds(self) -> float:
        """How long the driver has not answered."""
        return time.monotonic() - self._answered

    def _run(self) -> None:
        call, reason = open_driver()
        if call is None:
            self._say(f"no readings of GPUs: {reason}")
            return
        meters = [GpuMeter(call, target, self._host) for target in self._targets]
        for target, meter in zip(self._targets, meters, strict=True):
            if meter.own.error is not None:
                self._say(f"{target.device}: the driver does not open it ({meter.own.error})")
        self._hear(call, meters)
        while True:
            began = time.monotonic()
            for meter in meters:
                self._readings.put(meter.read(time.time()))
                self._answered = time.monotonic()
            # A driver that takes longer than the interval is left a part of the time for others.
            taken = self._answered - began
            time.sleep(max(self._every_seconds - taken, self._every_seconds / 4))

    def _hear(self, call: Caller, meters: Sequence[GpuMeter]) -> None:
        events = call.read("nvmlEventSetCreate")
        heard = [call.read("nvmlDeviceRegisterEvents", meter.whole, _XID_EVENT, events, then=_done) for meter in meters]
        if any(one.error is None for one in heard):
            threading.Thread(target=self._wait_for_xids, args=(call, events), daemon=True, name="xid").start()
        elif events.error is None or heard:
            error = events.error or heard[0].error
            self._say(f"the driver tells no XID errors ({error}); they are taken from the kernel log alone")

    def _wait_for_xids(self, call: Caller, events: Any) -> None:  # noqa: ANN401 - a reading of a ctypes handle
        names = {target.uuid: target.device for target in self._targets}
        while True:
            found = call.read("nvmlEventSetWait_v2", events, _EVENT_MILLISECONDS)
            if found.error == "TIMEOUT":
                continue
            if found.value is None:
                time.sleep(_PAUSE_SECONDS)  # a GPU that is gone may make it fail at once, again and again
                continue
            uuid = call.read("nvmlDeviceGetUUID", found.value.device, then=text_of).value or ""
            number = int(found.value.eventData)
            self._xids.put(Xid(time=time.time(), number=number, device=names.get(uuid, uuid)))


def _done(_: object) -> bool:
    return True  # NVML returns nothing, so its success is made a value


def _drained(source: queue.SimpleQueue[Any]) -> list[Any]:
    found = []
    while True:
        try:
            found.append(source.get_nowait())
        except queue.Empty:
            return found
