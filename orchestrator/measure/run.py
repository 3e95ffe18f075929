"""Starts the measuring processes, keeps ranks in step, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from orchestrator.calibration_file import Measured
from orchestrator.measure.parts import Part

_PACKAGES: Final = Path(__file__).resolve().parents[2]
_START_SECONDS: Final = 120.0  # libraries are loaded from disk, CUDA is started
_LAST_WORDS: Final = 300
_WAIT_SECONDS: Final = 0.2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Processes that measure the same parts at the same time.

    Attributes:
        module: that each runs.
        parts: in order.
        device: `cpu` or `cuda`.
        device_name: of the topology, for the file; empty where the numbers belong to no device.
        visible: UUID of the GPU; empty leaves the environment as it is.
        ranks, threads: processes, and CPU threads of each.
    """

    module: str
    parts: tuple[Part, ...]
    device: str
    device_name: str
    visible: str = ""
    ranks: int = 1
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a crew found, by part; the reasons of parts that failed; and the versions of its libraries."""

    measured: Mapping[str, tuple[Measured, ...]]
    failed: Mapping[str, str]
    versions: Mapping[str, str]


class _Process:
    """A measuring process, and a thread that collects its lines; an empty one is the end."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.stdout is not None  # noqa: S101 - a pipe was asked for
        with self.child.stdout as lines:
            for line in lines:
                self.lines.put(line)
        self.lines.put("")


class _LostError(Exception):
    """A process ended, or was ended, before it said what it should."""


def run_crew(crew: Crew, say: Say, *, python: str = sys.executable) -> Outcome:
    """Measure the parts one after the other; a part that fails is told, and the next goes on.

    Args:
        crew: what to start.
        say: takes lines of progress.
        python: interpreter of the processes.
    """
    measured: dict[str, tuple[Measured, ...]] = {}
    failed: dict[str, str] = {}
    versions: dict[str, str] = {}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        _started(crew, errors, python) as all_,
    ):
        try:
            for part in crew.parts:
                say(f"{part.name}: {part.text}, on {_place(crew)}")
                told = _part(all_, part)
                reasons = [body["reason"] for body in told if body["event"] == "failed"]
                if reasons:
                    failed[part.name] = reasons[0]
                else:
                    measured[part.name] = _joined([body["entries"] for body in told], crew)
            versions = _answer(all_[0], _START_SECONDS, all_)["versions"]
        except _LostError as lost:
            reason = f"{lost}{_last_line(errors)}"
            rest = [part.name for part in crew.parts if part.name not in measured and part.name not in failed]
            failed.update(dict.fromkeys(rest, reason))
    return Outcome(measured=measured, failed=failed, versions=versions)


def _place(crew: Crew) -> str:
    if not crew.device_name:
        return "this host"
    if crew.device != "cpu":
        return crew.device_name
    ranks = f"{crew.ranks} rank{'s at once' if crew.ranks > 1 else ''}"
    return f"{crew.device_name} ({ranks}, {crew.threads} thread{'s' if crew.threads > 1 else ''} each)"


@contextlib.contextmanager
def _started(crew: Crew, errors: IO[str], python: str) -> Iterator[list[_Process]]:
    """The processes; none of them outlives this."""
    children: list[subprocess.Popen[str]] = []
    running: list[_Process] = []
    try:
        for rank in range(crew.ranks):
            request = {
                "parts": [part.name for part in crew.parts],
                "device": crew.device,
                "threads": crew.threads,
                "rank": rank,
                "ranks": crew.ranks,
            }
            command = [python, "-m", crew.module, json.dumps(request)]
            children.append(
                subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=_environment(crew),
                )
            )
            running.append(_Process(children[-1]))
        yield running
    finally:
        for child in children:
            child.kill()
        for child in children:
            assert child.stdin is not None  # noqa: S101 - a pipe was asked for
            with contextlib.suppress(OSError):  # what it did not take is lost with it
                child.stdin.close()
            child.wait()


def _environment(crew: Crew) -> dict[str, str]:
    packages = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": packages, "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}  # nothing is downloaded to be measured
    if crew.device == "cpu":
        # As ranks of a run have it.
        environment |= {"OMP_NUM_THREADS": str(crew.threads), "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
    elif crew.visible:
        environment["CUDA_VISIBLE_DEVICES"] = crew.visible
    return environment


def _part(running: Sequence[_Process], part: Part) -> list[dict[str, Any]]:
    """What each process tells of one part, begun by all at the same time."""
    for process in running:
        _answer(process, _START_SECONDS, running)
    for process in running:
        _go(process)
    return [_answer(process, part.seconds, running) for process in running]


def _go(process: _Process) -> None:
    try:
        assert process.child.stdin is not None  # noqa: S101 - a pipe was asked for
        process.child.stdin.write("go\n")
        process.child.stdin.flush()
    except OSError as error:
        raise _LostError("the measuring process ended") from error


def _answer(process: _Process, seconds: float, running: Sequence[_Process]) -> dict[str, Any]:
    """The next line of a process; all are ended when it does not come in time.

    The wait is one of short ones: a signal that another thread took is heeded after the one under way.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            line = process.lines.get(timeout=_WAIT_SECONDS)
            break
        except queue.Empty:
            if time.monotonic() < end:
                continue
        for each in running:
            each.child.kill()
        raise _LostError(f"no answer within {seconds:.0f} s")
    if not line.endswith("\n"):
        raise _LostError("the measuring process ended")
    body: dict[str, Any] = json.loads(line)
    return body


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    return f": {lines[-1][:_LAST_WORDS]}" if lines else ""


def _joined(told: Sequence[Sequence[Mapping[str, Any]]], crew: Crew) -> tuple[Measured, ...]:
    """One number of each name: the mean over the ranks, with the widest spread. What not all tell is left out."""
    first, *others = ({entry["name"]: entry for entry in entries} for entries in told)
    found = []
    for name, entry in first.items():
        same = [entry, *(other[name] for other in others if name in other)]
        if len(same) < len(told):
            continue
        found.append(
            Measured(
                name=name,
                value=sum(each["value"] for each in same) / len(same),
                unit=entry["unit"],
                repeats=min(each["repeats"] for each in same),
                spread=max(each["spread"] for each in same),
                how=entry["how"],
                device=crew.device_name,
            )
        )
    return tuple(found)
