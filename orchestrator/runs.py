"""A run seen from another shell: how far it is, what it says, and how to end it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from orchestrator import slurm
from orchestrator.attempt_files import STOP_FILE
from orchestrator.errors import Problem, UserError
from orchestrator.run_dir import folder_of, read_json
from orchestrator.slurm import JobState, Phase
from orchestrator.slurm_follow import output_of

_RANKS_SHOWN = 16
_FOLLOW_SECONDS = 0.5
_UNKNOWN = "UNKNOWN"
_OF_ATTEMPT = re.compile(r".+-\d+\.log")  # its launch's name and number, or `ranks` and its number within a job


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What is known of a run.

    Attributes:
        run_dir: its folder.
        status: `planned`, `waiting`, `running`, `stopping`, `done`, `stopped`, `failed`, `cancelled` or `ended`.
        attempt: number of the newest start; 0 before the first.
        step, planned_steps, loss: of the newest line of the metrics.
        pid: of the process that watches a run started here; None where there is none.
        job: of the batch system.
        log: what its launcher and rank 0 print.
    """

    run_dir: Path
    status: str
    attempt: int
    step: int | None
    planned_steps: int | None
    loss: float | None
    pid: int | None
    job: JobState | None
    log: Path | None


def run_folder(run_dir: str, verb: str) -> Path:
    """Return the folder of a run that a verb is about.

    Raises:
        UserError: none is named, or it holds no run.
    """
    if not run_dir:
        raise UserError(Problem(where=verb, found="no run named", remedy=f"Write trainmaster {verb} RUN_DIR."))
    path = folder_of(run_dir)
    if not (path / "plan.json").is_file():
        raise UserError(Problem(where=run_dir, found="no run there (no plan.json)", remedy="Give the folder of a run."))
    return path


def state_of_run(path: Path) -> RunState:
    """Read the run directory and, for a batch job, ask the batch system.

    Raises:
        UserError: the batch system does not answer.
    """
    summary, number = read_json(path / "summary.json"), slurm.submitted_job(path)
    job = _job(number) if number else None
    pid = watching_pid(path)
    metrics = _last_metrics(path / "metrics.jsonl")
    summary = summary or {}
    return RunState(
        run_dir=path,
        status=_status(path, summary.get("status"), pid, job, is_batch=number is not None),
        attempt=len(list(path.glob("plan.[0-9]*.json"))),
        step=metrics.get("step", summary.get("steps")),
        planned_steps=summary.get("planned_steps"),
        loss=metrics.get("loss"),
        pid=pid,
        job=job,
        log=newest_log(path, number),
    )


def to_json(state: RunState) -> dict[str, Any]:
    """Return it as plain values."""
    job = state.job
    return {
        "schema": 1,
        "run_dir": str(state.run_dir),
        "status": state.status,
        "attempt": state.attempt,
        "step": state.step,
        "planned_steps": state.planned_steps,
        "loss": state.loss,
        "pid": state.pid,
        "job": None if job is None else {"id": job.job, "state": job.state, "reason": job.reason, "nodes": job.nodes},
        "log": None if state.log is None else str(state.log),
    }


def to_text(state: RunState) -> str:
    """Return it as lines for people."""
    lines = [f"{state.run_dir}: {state.status}"]
    if state.job is not None:
        lines.append(str(state.job))
    if state.pid is not None:
        lines.append(f"watched by process {state.pid}")
    if state.step is not None:
        whole = f" of {state.planned_steps}" if state.planned_steps else ""
        loss = "" if state.loss is None else f", loss {state.loss:.4f}"
        lines.append(f"attempt {state.attempt}, step {state.step}{whole}{loss}")
    if state.log is not None:
        lines.append(f"log: {state.log}")
    return "\n".join(lines) + "\n"


def cancel(path: Path) -> str:
    """Ask a run to stop with a checkpoint; asked a second time, end it at once. Returns what was done.

    Raises:
        UserError: nothing runs there.
    """
    number, pid = slurm.submitted_job(path), watching_pid(path)
    was_asked = (path / STOP_FILE).exists()
    if pid is not None:
        # The watching process knows the same two steps.
        os.kill(pid, signal.SIGTERM)
        return "ending it at once" if was_asked else _asked(path)
    job = slurm.state_of(number) if number else None
    if job is None or job.phase is Phase.ended:
        found = "nothing runs there" if job is None else str(job)
        remedy = "Ranks started by hand end with `touch RUN_DIR/stop`."
        raise UserError(Problem(where=str(path), found=found, remedy=remedy))
    (path / slurm.CANCELLED).touch()
    if job.phase is Phase.waiting or was_asked:
        slurm.cancel(job.job)
        return f"cancelled job {job.job}"
    (path / STOP_FILE).write_text("", encoding="utf-8")
    return _asked(path)


def log_text(path: Path) -> Iterator[str]:
    """Yield the output of the newest attempt, and where each rank's own lies.

    Raises:
        UserError: there is none yet.
    """
    log = newest_log(path, slurm.submitted_job(path))
    if log is None:
        raise UserError(
            Problem(where=str(path), found="no output yet", remedy="It comes with the first start; see its status.")
        )
    yield log.read_text(encoding="utf-8", errors="replace")
    ranks = sorted((path / "logs").rglob("attempt_0/*/stderr.log"), key=lambda found: -found.stat().st_mtime)
    for found in ranks[:_RANKS_SHOWN]:
        yield f"# rank's own: {found.parent}\n"


def followed_log(path: Path) -> Iterator[str]:
    """Yield lines of the newest attempt as they come, until the run has ended; of a batch job through its requeues.

    Raises:
        UserError: there is nothing to follow, or the batch system does not answer.
    """
    number = slurm.submitted_job(path)
    if number:
        yield from (f"{line}\n" for line in output_of(number, path))
        return
    log = newest_log(path, None)
    if log is None:
        remedy = "It comes with the first start; see its status."
        raise UserError(Problem(where=str(path), found="no output yet", remedy=remedy))
    with log.open(encoding="utf-8", errors="replace") as stream:
        goes_on = True
        while goes_on:
            goes_on = watching_pid(path) is not None  # asked first: what came before the end is read after it
            yield from stream
            if goes_on:
                time.sleep(_FOLLOW_SECONDS)


def newest_log(path: Path, job: str | None) -> Path | None:
    """Return the file that the newest attempt writes to: of a batch job its own.

    Logs of what prepares an attempt, submits it or comes after it have other names than the attempts.
    """
    folder = path / "logs"
    found = [*folder.glob(f"slurm-{job}.out"), *folder.glob(f"slurm-{job}_*.out")] if job else []
    found = found or [each for each in folder.glob("*.log") if _OF_ATTEMPT.fullmatch(each.name)]
    return max(found, key=lambda each: each.stat().st_mtime, default=None)


def watching_pid(path: Path) -> int | None:
    """Return the living process that holds the run's lock here."""
    try:
        pid = int((path / ".lock").read_text())
        words = " ".join(psutil.Process(pid).cmdline())
    except (OSError, ValueError, psutil.Error):
        return None
    # After a restart of the machine the number may belong to somebody else.
    return pid if "trainmaster" in words or "orchestrator" in words else None


def _job(number: str) -> JobState:
    """The job's state; a host without SLURM still shows what the run directory tells."""
    if shutil.which("scontrol") is None:
        return JobState(job=number, state=_UNKNOWN, phase=Phase.ended, reason="no scontrol on this host")
    state = slurm.state_of(number)
    return state or JobState(job=number, state=_UNKNOWN, phase=Phase.ended, reason="it has left the queue")


def _asked(path: Path) -> str:
    return f"asked to stop at the next step with a checkpoint (again: at once); then: trainmaster train resume={path}"


def _status(path: Path, written: str | None, pid: int | None, job: JobState | None, *, is_batch: bool) -> str:
    is_stopping = (path / STOP_FILE).exists()
    if pid is not None or (job is not None and job.phase is Phase.running):
        return "stopping" if is_stopping else "running"
    if job is not None and job.phase is Phase.waiting:
        return "waiting"
    if written is not None:
        return written
    if (path / slurm.CANCELLED).exists() or (job is not None and job.state == "CANCELLED"):
        return "cancelled"
    if job is not None and job.state != _UNKNOWN:
        return "failed"
    return "ended" if is_batch or (path / "metrics.jsonl").exists() else "planned"


def _last_metrics(path: Path) -> dict[str, Any]:
    """Return the newest whole record with a training loss."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "loss" in record:
            return record
    return {}
