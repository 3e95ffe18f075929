"""Submits the batch job of a run and follows it to its end, or leaves it running."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.errors import LaunchError
from launch.execute import execute, write_files
from launch.request import Request
from orchestrator.errors import ExitCode, Problem, RunFailed, RunStopped, UserError
from orchestrator.launch_inputs import as_user_error, joined_errors, told_error
from orchestrator.run_dir import RunDir, read_json
from orchestrator.slurm import (
    CANCELLED,
    JobState,
    Phase,
    cancel,
    parse_job_number,
    record_submission,
    refusal,
    state_of,
    submitted_job,
)

_POLL_SECONDS = 1.0
_LATER_POLL_SECONDS = 5.0
_SOON_SECONDS = 120.0
# The shared file system may show the last lines a little later than the controller the end.
_SETTLE_SECONDS = 3.0


class Detached(Exception):
    """The user left the job running."""


def run_as_job(
    request: Request, run: RunDir, say: Callable[[str], None], *, submits: bool, follows: bool
) -> dict[str, Any]:
    """Write the batch script and, where asked, submit and follow the job.

    Returns the summary of a run that is done, or what became of it: `written` or `submitted`.
    """
    body = {"run_dir": str(run.path), "command": list(request.argv)}
    if not submits:
        write_job(request, say)
        return {"status": "written", **body}
    job = submit(request, run, say)
    if follows:
        try:
            return follow(job, run, say, ask_at_terminal())
        except Detached:
            say(f"job {job} goes on; to end it: trainmaster cancel {run.path}")
    return {"status": "submitted", "job": job, **body}


def write_job(request: Request, say: Callable[[str], None]) -> None:
    """Write everything and say how to submit it.

    Raises:
        UserError: it cannot be written.
    """
    try:
        write_files(request)
    except OSError as error:
        found = f"cannot write there: {error.strerror}"
        remedy = "Give a run_dir that you may write to."
        raise UserError(Problem(where=str(error.filename), found=found, remedy=remedy)) from error
    say(f"submit it with: sbatch {request.argv[-1]}   (or the same command with launch.submit=true)")


def submit(request: Request, run: RunDir, say: Callable[[str], None]) -> str:
    """Submit the job; returns its number.

    Raises:
        UserError: sbatch is not here, or refuses the script; an earlier job of this run goes on.
    """
    _check_idle(run)
    for name in (CANCELLED, "stop", "summary.json"):
        (run.path / name).unlink(missing_ok=True)
    lines: list[str] = []
    try:
        outcome = execute(request, user_env=os.environ, on_line=lines.append)
    except LaunchError as error:
        if error.asked == f"start of {request.argv[0]}":
            remedy = f"Submit it where SLURM is: sbatch {request.argv[-1]}."
            raise UserError(Problem(where="sbatch", found="no such program on this host", remedy=remedy)) from error
        raise as_user_error(error) from error
    job = parse_job_number(lines)
    if outcome.returncode or job is None:
        script = request.argv[-1]
        raise refusal(lines, Path(script).read_text(encoding="utf-8"), script)
    record_submission(run.path, job)
    say(f"submitted as job {job}; elsewhere: trainmaster status|logs|cancel {run.path}")
    return job


def _check_idle(run: RunDir) -> None:
    before = submitted_job(run.path)
    known = state_of(before) if before else None
    if known is not None and known.phase is not Phase.ended:
        remedy = f"Wait for it, or end it: trainmaster cancel {run.path}."
        raise UserError(Problem(where=f"run_dir={run.path}", found=f"in use by {known}", remedy=remedy))


def follow(job: str, run: RunDir, say: Callable[[str], None], ask: Callable[[], str] | None = None) -> dict[str, Any]:
    """Show a job's states and output until it has ended; returns the summary of a run that is done.

    Args:
        job: its number.
        run: its run directory.
        say: takes the lines.
        ask: answers `cancel` or anything else at Ctrl-C; None (no terminal): the job is left alone.

    Raises:
        Detached: the user left.
        RunStopped, RunFailed: how the run ended otherwise.
        UserError: what a rank or a host found wrong with the input.
    """
    tail, errors = _Tail(run.path / "logs", job), []

    def show() -> None:
        for line in tail.read():
            error = told_error(line)
            if error is not None:
                errors.append(error)
            else:
                say(line)

    last: JobState | None = None
    began, cancelled = time.monotonic(), False
    while True:
        try:
            state = state_of(job)
            show()
            if state is None or state.phase is Phase.ended:
                break
            if last is None or str(state) != str(last):
                say(str(state))
            last = state
            is_new = time.monotonic() - began < _SOON_SECONDS
            time.sleep(_POLL_SECONDS if is_new else _LATER_POLL_SECONDS)
        except KeyboardInterrupt:
            if cancelled or ask is None or ask() != "cancel":
                raise Detached(job) from None
            cancelled = True
            (run.path / CANCELLED).touch()
            cancel(job)
    time.sleep(_SETTLE_SECONDS if _result(run) is None else 0)
    show()
    if errors and _result(run) != "done":
        # Earlier starts of a requeued job have said that they stopped.
        raise joined_errors([one for one in errors if one.exit_code is not ExitCode.RESUMABLE] or errors[-1:])
    return _ended(state, job, run)


def output_of(job: str, run_dir: Path, pause: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield the output of a job from its beginning, line by line, until the job has ended; waits through requeues.

    Raises:
        UserError: the batch system does not answer.
    """
    tail = _Tail(run_dir / "logs", job)
    while True:
        # Asked first: what was written before the end is read after it.
        state = state_of(job)
        yield from tail.read()
        if state is None or state.phase is Phase.ended:
            break
        pause(_POLL_SECONDS)
    if read_json(run_dir / "summary.json") is None:
        pause(_SETTLE_SECONDS)
    yield from tail.read()


def _result(run: RunDir) -> str | None:
    return None if run.summary is None else run.summary.get("status")


def _ended(state: JobState | None, job: str, run: RunDir) -> dict[str, Any]:
    summary = read_json(run.path / "summary.json")
    if summary is not None and summary.get("status") == "done":
        return summary
    how = "it has left the queue" if state is None else str(state)
    if summary is not None and summary.get("status") == "stopped":
        found = f"after step {summary['steps']} of {summary['planned_steps']}"
        remedy = f"Continue with: trainmaster train resume={run.path}"
        raise RunStopped(Problem(where=f"job {job} stopped", found=found, remedy=remedy))
    if state is not None and state.state == "CANCELLED":
        found, remedy = "cancelled before the ranks could save", f"Continue with: trainmaster train resume={run.path}"
        raise RunStopped(Problem(where=f"job {job}", found=found, remedy=remedy))
    raise RunFailed(
        Problem(
            where="the run",
            found=how,
            remedy=f"The output of the job is {run.path}/logs/slurm-{job}.out, each rank's own is beside it. "
            "After mending the cause, the same command with resume=true continues from the last checkpoint.",
        )
    )


@dataclass
class _Tail:
    """What is new in the output files of a job, line by line."""

    folder: Path
    job: str

    def __post_init__(self) -> None:
        """Begin at the start of each."""
        self._at: dict[Path, int] = {}

    def read(self) -> Iterator[str]:
        """Yield the whole lines that came since the last call."""
        paths = [*self.folder.glob(f"slurm-{self.job}.out"), *sorted(self.folder.glob(f"slurm-{self.job}_*.out"))]
        for path in paths:
            with path.open("rb") as file:
                file.seek(self._at.get(path, 0))
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._at[path] = self._at.get(path, 0) + len(whole) + 1
                yield from whole.decode(errors="replace").splitlines()


def ask_at_terminal() -> Callable[[], str] | None:
    """Return the question at Ctrl-C, where somebody is there to answer it."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        return None

    def ask() -> str:
        print("\nleave the job running (Enter), or cancel it (c)? ", end="", file=sys.stderr, flush=True)
        try:
            return "cancel" if sys.stdin.readline().strip().lower() in {"c", "cancel"} else "detach"
        except KeyboardInterrupt:
            return "detach"

    return ask
