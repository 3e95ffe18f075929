"""Readings through NVML, taken in a process of their own: a driver that hangs or crashes takes nothing else with it."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from topology.probe.gpu_readings import NvmlReadings
from topology.probe.nvml import no_driver
from topology.probe.nvml_library import LIBRARY, find_library
from topology.probe.readings import LIMITS
from topology.probe.readings_codec import decode
from topology.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping
    from subprocess import Popen

VARIABLE: Final = "TRAINMASTER_NVML_SECONDS"
_SECONDS: Final = 20.0
_MOST_SECONDS: Final = 3600.0
_REAP_SECONDS: Final = 1.0
_MAX_TEXT: Final = 300
# The parent's own search path, so that both run the same code from any working directory; `-P` keeps that one out.
_BOOT: Final = (
    "import sys; limit, *sys.path[:] = sys.argv[1:]; from topology.probe.nvml_child import main; main(float(limit))"
)


def read_nvml_apart(environment: Mapping[str, str]) -> NvmlReadings:
    """Read all GPUs the driver shows. Without its library nothing is started; nothing is raised but KeyboardInterrupt.

    `environment` holds CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and the limit, TRAINMASTER_NVML_SECONDS (seconds, 20
    unless set); the library is looked for, and loaded, in the process's own.
    """
    path = find_library(os.environ)
    if path is None:
        return no_driver(environment, f"{LIBRARY} not found")
    seconds = _limit(environment)
    readings = _judge(_ask(seconds), path, seconds)
    return replace(
        readings,
        visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
        device_order=environment.get("CUDA_DEVICE_ORDER"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    # `status` is the exit status, negative for a signal; None where time was up.
    text: bytes
    status: int | None
    failure: str | None = None


def _limit(environment: Mapping[str, str]) -> float:
    try:
        seconds = float(environment.get(VARIABLE) or os.environ.get(VARIABLE) or _SECONDS)
    except ValueError:
        return _SECONDS
    return min(seconds, _MOST_SECONDS) if math.isfinite(seconds) and seconds > 0 else _SECONDS


def _ask(seconds: float) -> _Answer:
    import subprocess  # a probe without a driver does without it

    command = [sys.executable or "python3", "-P", "-c", _BOOT, str(seconds), *sys.path]
    try:
        child = subprocess.Popen(  # noqa: S603 - this interpreter
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return _Answer(text=b"", status=None, failure=str(error))
    try:
        text, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return _Answer(text=b"", status=None)
    finally:
        _end(child)
    return _Answer(text=text, status=child.returncode)


def _end(child: Popen[bytes]) -> None:
    # With all it started. One that the kernel does not let go is left to the kernel: waiting for it would hang too.
    from subprocess import TimeoutExpired

    if child.poll() is None:
        with suppress(OSError):
            if sys.platform == "win32":
                child.kill()
            else:
                os.killpg(child.pid, signal.SIGKILL)
        with suppress(TimeoutExpired):
            child.wait(_REAP_SECONDS)
    if child.stdout is not None:
        child.stdout.close()


def _judge(answer: _Answer, path: str, seconds: float) -> NvmlReadings:
    if answer.failure is not None:
        return _failed("NOT_STARTED", f"no process could be started to read NVML ({answer.failure[:_MAX_TEXT]})")
    if answer.status is None:
        told = f"the NVIDIA driver does not answer within {seconds:g} s ({path}; {VARIABLE} sets another limit)"
        return _failed("TIMEOUT", told)
    if answer.status < 0:
        return _failed("CRASHED", f"the NVIDIA library {path} ends the process ({_signal(-answer.status)})")
    readings = _decoded(answer.text)
    if readings is None:
        return _failed("CRASHED", f"reading {path} ends without readings (exit status {answer.status})")
    return readings


def _decoded(text: bytes) -> NvmlReadings | None:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    readings, _ = decode(NvmlReadings, data, LIMITS)
    return readings


def _failed(code: str, reason: str) -> NvmlReadings:
    return NvmlReadings(driver_version=Reading(source="nvmlSystemGetDriverVersion", error=code), unavailable=reason)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
