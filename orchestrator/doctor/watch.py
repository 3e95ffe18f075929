"""Watches the PCIe link of a GPU while a process of its own copies data over it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

from orchestrator.doctor.evidence import LoadEvidence

LOAD_MODULE: Final = "orchestrator.doctor.load"  # imports torch, so it is named and started, never imported
INTERVAL_SECONDS: Final = 0.05
_START_SECONDS: Final = 60.0  # importing torch and starting CUDA on a slow disk
_MOST_OUTPUT_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 4096
_EXIT_SECONDS: Final = 5.0  # for a process that has closed its output
_ANY_RATE: Final = 1e15  # bytes per second: beyond it the number is no rate
_SHOWN: Final = 200

Sample = tuple[int | None, int | None, int | None]


def load_command(gpu: str, seconds: float) -> tuple[str, ...]:
    """The process that puts load on a GPU, by its UUID."""
    return (sys.executable, "-m", LOAD_MODULE, gpu, str(seconds))


@dataclass(slots=True)
class _Seen:
    """What the load process has told so far, and the samples taken between its two lines."""

    started: bool = False
    rate: float | None = None
    archs: tuple[str, ...] = ()
    samples: list[Sample] = field(default_factory=list)
    rubbish: str | None = None
    flooded: bool = False


def watch(
    gpu: str,
    seconds: float,
    *,
    command: Sequence[str] | None = None,
    sampler: Callable[[str], Generator[Sample, None, None]] | None = None,
    patience_seconds: float = _START_SECONDS,
) -> LoadEvidence:
    """Put load on a GPU and sample generation, width and throttle reasons meanwhile. Raises nothing.

    Args:
        gpu: its UUID.
        seconds: how long data is copied.
        command: the process to start instead of the load module.
        sampler: where the samples come from, instead of NVML.
        patience_seconds: how long the process may take beyond `seconds` before it is killed with all it started.
    """
    allowed_seconds = seconds + patience_seconds
    seen = _Seen()
    try:
        with (
            contextlib.closing((sampler or nvml_samples)(gpu)) as samples,
            tempfile.TemporaryFile() as complaints,
            _started(command or load_command(gpu, seconds), complaints) as job,
        ):
            ended = _follow(job, seen, samples, time.monotonic() + allowed_seconds)
            failure = (
                None if seen.rate is not None else _failure(job, seen, complaints, None if ended else allowed_seconds)
            )
    except OSError as error:
        failure = f"the load process could not be started: {error}"
    if failure is not None:
        return LoadEvidence(gpu=gpu, archs=seen.archs, failure=failure)
    return _measured(gpu, seen)


def _measured(gpu: str, seen: _Seen) -> LoadEvidence:
    return LoadEvidence(
        gpu=gpu,
        bytes_per_second=seen.rate,
        generations=tuple(item[0] for item in seen.samples if item[0] is not None),
        widths=tuple(item[1] for item in seen.samples if item[1] is not None),
        event_reasons=tuple(item[2] for item in seen.samples if item[2] is not None),
        archs=seen.archs,
    )


@contextlib.contextmanager
def _started(command: Sequence[str], complaints: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process in a group of its own; whatever happens, nothing of the group is left."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    job = subprocess.Popen(  # noqa: S603 - our own module, or what a caller in this program names
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,
        env=environment,
        start_new_session=True,
    )
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group may be gone already
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        if job.stdout is not None:
            job.stdout.close()


def _follow(job: subprocess.Popen[bytes], seen: _Seen, samples: Iterator[Sample], deadline: float) -> bool:
    """Read the process's lines and sample between the two it prints; False if the deadline passed.

    A measurement ends it, and so does an end of output or too much of it.
    """
    assert job.stdout is not None  # noqa: S101 - it was asked for
    buffer, total = b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(job.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(min(left, INTERVAL_SECONDS)):
                piece = os.read(job.stdout.fileno(), _PIECE_BYTES)
                total += len(piece)
                *lines, buffer = (buffer + piece).split(b"\n")
                for line in lines:
                    _take(line, seen)
                seen.flooded = total > _MOST_OUTPUT_BYTES
                if not piece or seen.rate is not None or seen.flooded:
                    seen.rubbish = seen.rubbish or _shown(buffer) or None
                    return True
            elif seen.started:
                sample = next(samples, None)
                seen.samples += [] if sample is None else [sample]
    return False


def _take(line: bytes, seen: _Seen) -> None:
    """Understand one line; what is neither the start nor the end is kept to be told."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    event = data.get("event") if isinstance(data, dict) else None
    if event == "start" and not seen.started:
        archs = data.get("archs")
        seen.started = True
        seen.archs = tuple(map(str, archs)) if isinstance(archs, list) else ()
    elif event == "end" and seen.started and _is_rate(data.get("bytes_per_second")):
        seen.rate = float(data["bytes_per_second"])
    else:
        seen.rubbish = seen.rubbish or _shown(line)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _ANY_RATE


def _shown(text: bytes) -> str:
    return text[:_SHOWN].decode("utf-8", "backslashreplace").strip()


def _failure(job: subprocess.Popen[bytes], seen: _Seen, complaints: IO[bytes], late_seconds: float | None) -> str:
    """Say how the process failed; `late_seconds` is what it was allowed, where it took more."""
    try:
        code = job.wait(timeout=0 if late_seconds is not None or seen.flooded else _EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
    complaints.seek(0, os.SEEK_END)
    complaints.seek(max(0, complaints.tell() - _MOST_OUTPUT_BYTES))
    errors = complaints.read().decode("utf-8", "backslashreplace").strip().splitlines()
    said = f": {errors[-1][:_SHOWN]}" if errors else ""
    if late_seconds is not None:
        return f"the load process took longer than {late_seconds:.0f} s and was killed{said}"
    if code is not None and code < 0:
        return f"the load process was ended by signal {-code}{said}"
    if code:
        return f"the load process failed with exit code {code}{said}"
    if seen.rubbish is not None:
        return f"the load process printed what is no measurement: {seen.rubbish!r}"
    return f"the load process ended without a measurement{said}"


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
