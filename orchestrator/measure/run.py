"""Starts the measuring processes, keeps ranks in step, and ends them whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from orchestrator.calibration_file import Measured
from orchestrator.measure.parts import Part

_PACKAGES: Final = Path(__file__).resolve().parents[2]
_START_SECONDS: Final = 120.0  # libraries are loaded from disk, CUDA is started
_LAST_WORDS: Final = 300

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


@contextmanager
def _started(crew: Crew, errors: IO[str], python: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes; none of them outlives this."""
    running: list[subprocess.Popen[str]] = []
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
            running.append(
                subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=_environment(crew),
                )
            )
        yield running
    finally:
        for process in running:
            process.kill()
        for process in running:
            with process:  # closes the pipes and waits
                pass


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


def _part(running: Sequence[subprocess.Popen[str]], part: Part) -> list[dict[str, Any]]:
    """What each process tells of one part, begun by all at the same time."""
    for process in running:
        _answer(process, _START_SECONDS, running)
    for process in running:
        _go(process)
    return [_answer(process, part.seconds, running) for process in running]


def _go(process: subprocess.Popen[str]) -> None:
    try:
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        process.stdin.write("go\n")
        process.stdin.flush()
    except OSError as error:
        raise _LostError("the measuring process ended") from error


def _answer(process: subprocess.Popen[str], seconds: float, running: Sequence[subprocess.Popen[str]]) -> dict[str, Any]:
    """The next line of a process; all are ended when it does not come in time."""
    late = threading.Event()

    def end() -> None:
        late.set()
        for each in running:
            each.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        line = process.stdout.readline()
        if not line.endswith("\n"):
            raise _LostError(f"no answer within {seconds:.0f} s" if late.is_set() else "the measuring process ended")
        body: dict[str, Any] = json.loads(line)
        return body
    finally:
        timer.cancel()


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
