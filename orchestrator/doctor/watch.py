"""Watches the PCIe link of a GPU while a process of its own copies data over it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from orchestrator.doctor.evidence import MOST_GENERATION, MOST_LANES, LoadEvidence, NoLoad
from orchestrator.doctor.samples import Sample, bounded_samples, nvml_samples

LOAD_MODULE: Final = "orchestrator.doctor.load"  # imports torch, so it is named and started, never imported
INTERVAL_SECONDS: Final = 0.05
FIRST_SECONDS: Final = 60.0  # importing torch and starting CUDA on a slow disk
LATER_SECONDS: Final = 20.0  # with torch in the page cache
_MOST_OUTPUT_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 4096
_EXIT_SECONDS: Final = 5.0  # for a process that has closed its output
_ANY_RATE: Final = 1e15  # bytes per second: beyond it the number is no rate
_SHOWN: Final = 300
# What torch says where the GPU works and others have it: its memory, or all of it in an exclusive compute mode.
_BUSY: Final = re.compile(r"out of memory|busy or unavailable", re.IGNORECASE)
_TELLING: Final = re.compile(r"error|what\(\)|cannot|failed", re.IGNORECASE)
_STAGES: Final = {"torch": NoLoad.TORCH_FAILED, "cuda": NoLoad.CUDA_FAILED}
_DURING: Final = {
    NoLoad.TORCH_FAILED: " while it imported torch",
    NoLoad.CUDA_FAILED: " while it started CUDA",
    NoLoad.COPY_FAILED: " while it copied data",
}


def load_command(gpu: str, seconds: float) -> tuple[str, ...]:
    """The process that puts load on a GPU, by its UUID."""
    return (sys.executable, "-m", LOAD_MODULE, gpu, str(seconds))


@dataclass(slots=True)
class _Seen:
    """What the load process has told so far, and the samples taken between its two lines."""

    stage: NoLoad = NoLoad.UNCLEAR  # what a failure from here on would be
    reason: str | None = None
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
    cuda_name: str | None = None,
    command: Sequence[str] | None = None,
    sampler: Callable[[str], Generator[Sample, None, None]] | None = None,
    patience_seconds: float = FIRST_SECONDS,
    tick: Callable[[], None] = lambda: None,
) -> LoadEvidence:
    """Put load on a GPU and sample generation, width and throttle reasons meanwhile. Raises nothing.

    Args:
        gpu: its UUID.
        seconds: how long data is copied.
        cuda_name: what CUDA is told to use, where that is a MIG device of the GPU.
        command: the process to start instead of the load module.
        sampler: where the samples come from, instead of NVML.
        patience_seconds: how long the process may take beyond `seconds` before it is killed with all it started.
        tick: called every now and then meanwhile.
    """
    allowed_seconds = seconds + patience_seconds
    seen = _Seen()
    try:
        with (
            contextlib.closing(_samples(gpu, sampler)) as samples,
            tempfile.TemporaryFile() as complaints,
            _started(command or load_command(cuda_name or gpu, seconds), complaints) as job,
        ):
            ended = _follow(job, seen, samples, time.monotonic() + allowed_seconds, tick)
            if seen.rate is not None:
                return _measured(gpu, seen)
            kind, failure = _failure(job, seen, complaints, None if ended else allowed_seconds)
    except OSError as error:
        kind, failure = NoLoad.UNCLEAR, f"the load process could not be started: {error}"
    return LoadEvidence(gpu=gpu, archs=seen.archs, failure=failure, kind=kind)


def _samples(gpu: str, sampler: Callable[[str], Generator[Sample, None, None]] | None) -> Generator[Sample, None, None]:
    return bounded_samples(nvml_samples(gpu)) if sampler is None else sampler(gpu)


def _measured(gpu: str, seen: _Seen) -> LoadEvidence:
    return LoadEvidence(
        gpu=gpu,
        bytes_per_second=seen.rate,
        generations=_possible((item[0] for item in seen.samples), MOST_GENERATION),
        widths=_possible((item[1] for item in seen.samples), MOST_LANES),
        event_reasons=tuple(item[2] for item in seen.samples if item[2] is not None),
        archs=seen.archs,
    )


def _possible(values: Iterable[int | None], most: int) -> tuple[int, ...]:
    """A broken driver may tell zero or all bits set: no link is like that."""
    return tuple(value for value in values if value is not None and 0 < value <= most)


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
        # One that hangs in the driver is not let go by the kernel: waiting for it would hang, too.
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(timeout=_EXIT_SECONDS)
        if job.stdout is not None:
            job.stdout.close()


def _follow(
    job: subprocess.Popen[bytes], seen: _Seen, samples: Iterator[Sample], deadline: float, tick: Callable[[], None]
) -> bool:
    """Read the process's lines and sample between the two it prints; False if the deadline passed.

    A measurement ends it, and so does an end of output or too much of it.
    """
    assert job.stdout is not None  # noqa: S101 - it was asked for
    buffer, total = b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(job.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            tick()
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
    if event == "stage":
        seen.stage = _STAGES.get(str(data.get("stage")), seen.stage)
    elif event == "failed":
        seen.reason = str(data.get("reason"))[:_SHOWN]
    elif event == "start" and not seen.started:
        archs = data.get("archs")
        seen.started, seen.stage = True, NoLoad.COPY_FAILED
        seen.archs = tuple(map(str, archs)) if isinstance(archs, list) else ()
    elif event == "end" and seen.started and _is_rate(data.get("bytes_per_second")):
        seen.rate = float(data["bytes_per_second"])
    else:
        seen.rubbish = seen.rubbish or _shown(line)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _ANY_RATE


def _shown(text: bytes) -> str:
    return text[:_SHOWN].decode("utf-8", "backslashreplace").strip()


def _failure(
    job: subprocess.Popen[bytes], seen: _Seen, complaints: IO[bytes], late_seconds: float | None
) -> tuple[NoLoad, str]:
    """Say how the process failed; `late_seconds` is what it was allowed, where it took more."""
    try:
        code = job.wait(timeout=0 if late_seconds is not None or seen.flooded else _EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
    reason = seen.reason or _complaint(complaints)
    during, said = _DURING.get(seen.stage, ""), f": {reason}" if reason else ""
    kind = NoLoad.BUSY if _BUSY.search(reason) else seen.stage
    if late_seconds is not None:
        return NoLoad.LATE, f"the load process took longer than {late_seconds:.0f} s and was killed{during}{said}"
    if code is not None and code < 0:
        return kind, f"the load process was ended by {_signal_name(-code)}{during}{said}"
    if code:
        return kind, f"the load process failed with exit code {code}{during}{said}"
    if seen.rubbish is not None:
        return NoLoad.UNCLEAR, f"the load process printed what is no measurement: {seen.rubbish!r}"
    return NoLoad.UNCLEAR, f"the load process ended without a measurement{said}"


def _complaint(complaints: IO[bytes]) -> str:
    """The line of its standard error that tells most: the last about an error, else the last."""
    complaints.seek(0, os.SEEK_END)
    complaints.seek(max(0, complaints.tell() - _MOST_OUTPUT_BYTES))
    lines = complaints.read().decode("utf-8", "backslashreplace").strip().splitlines()
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return telling[-1].strip()[:_SHOWN] if telling else ""


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
