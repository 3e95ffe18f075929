"""One attempt of a run: start the ranks, pass on what they say, watch their progress, tell how it ended."""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from launch.errors import LaunchError
from launch.execute import Outcome, execute, write_files
from launch.request import Request
from orchestrator.attempt_files import (
    STOP_FILE,
    ask_to_stop,
    has_rows,
    kept_files,
    newest_checkpoint,
    put_back,
    write_failure,
)
from orchestrator.blame import culprit, failed, last_words
from orchestrator.errors import ExitCode, Problem, RunFailed, RunStopped, UserError
from orchestrator.launch_inputs import as_user_error, joined_errors, told_error
from orchestrator.recovery.classify import Facts, classify
from orchestrator.recovery.event import FAULT_PREFIX, Ended, Kind
from orchestrator.recovery.kernel_oom import read_counters, was_oom_kill
from orchestrator.recovery.observer import Observer
from orchestrator.recovery.watch import BeatWatch
from orchestrator.run_dir import RunDir, read_json
from orchestrator.supervise import Attempt

_KEPT_LINES: Final = 60  # torchrun's own report of the failure comes after the ranks' words
_STOP_GRACE_SECONDS: Final = 120.0  # a step and a checkpoint must fit in


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """How an attempt ended.

    Attributes:
        ended: for whoever decides.
        summary: that rank 0 wrote; None where the run is not done.
        error: for the user; None where the run is done.
        detected_at: wall clock when an observer saw what ended it; None where its end was the first to tell.
    """

    ended: Ended
    summary: dict[str, Any] | None = None
    error: UserError | None = None
    detected_at: float | None = None


@dataclass(slots=True)
class _Said:
    """What came out of a command."""

    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    errors: list[UserError] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)


def run_attempt(
    attempt: Attempt, run: RunDir, say: Callable[[str], None], observer: Observer, *, is_first: bool = True
) -> Observed:
    """Run the commands of an attempt and tell how it ended; what can end a run is never raised.

    Args:
        attempt: what is run.
        run: where. The caller holds its lock.
        say: where lines for the user go.
        observer: of this attempt.
        is_first: of this command. The next ones find the rows prepared.

    Raises:
        UserError: nothing could be started.
    """
    kept = kept_files(run)
    (run.path / "summary.json").unlink(missing_ok=True)
    if is_first and attempt.prepare is not None:  # later, and within a batch job, it is a request of now
        (run.path / STOP_FILE).unlink(missing_ok=True)
    observed = None
    if is_first and not (run.resuming and has_rows(run)):
        observed = _prepared(attempt, run, say)
    elif attempt.prepare is not None:
        write_files(attempt.prepare)  # which the skipped preparation would have written
    observed = observed or _ranks(attempt, run, say, observer)
    if observed.ended.kind is Kind.user_error and kept and is_first:
        put_back(run, kept, attempt.number)
    if isinstance(observed.error, RunFailed):
        write_failure(run, observed.error)
    return observed


def tell(attempt: Attempt, say: Callable[[str], None]) -> None:
    """Say which of the user's settings stand in place of a lever, and which are known to hurt."""
    for lever in attempt.levers:
        if lever.overridden_by and lever.applies:
            say(f"yours stands: {lever.overridden_by}, not {lever.name}={lever.value}")
    for harm in attempt.harms:
        say(f"warning: {harm}")


def _prepared(attempt: Attempt, run: RunDir, say: Callable[[str], None]) -> Observed | None:
    """Prepare the rows; how the attempt ended where that failed."""
    number = attempt.number
    if attempt.prepare is None:
        return None
    say("preparing the rows (loading the tokenizer's libraries takes some seconds)")
    said = _Said()
    outcome = _execute(attempt.prepare, run, say, said)
    if said.errors:
        return _user_error(joined_errors(said.errors), number)
    if outcome.stopped_by_signal is not None:
        return _was_stopped(run, number, "before the first step")
    if outcome.returncode:
        error = failed("preparing the rows", outcome, said.tail, (1,))
        ended = Ended(
            kind=Kind.raised,
            attempt=number,
            evidence="preparing the rows failed",
            said=last_words(outcome, said.tail, (1,)),
        )
        return Observed(ended=ended, error=error)
    return None


def _ranks(attempt: Attempt, run: RunDir, say: Callable[[str], None], observer: Observer) -> Observed:
    number = attempt.number
    watch = BeatWatch(run.path, number, observer.facts, say)
    said, before = _Said(), read_counters()
    say(f"starting the ranks ({attempt.launch.backend.value})")
    outcome = _execute(attempt.launch, run, say, said, on_poll=lambda: watch.look() or observer.look())
    faults = (*said.faults, *_reported(run.path, number))
    # What a rank calls a failed run is often only what it saw of another's end.
    told = [error for error in said.errors if error.exit_code is not ExitCode.RUN_FAILED]
    if told and (not faults or told[0].exit_code is ExitCode.RESUMABLE):
        return _user_error(joined_errors(told), number)
    summary = read_json(run.path / "summary.json") or {}
    if summary.get("status") == "done":
        ended = Ended(kind=Kind.done, attempt=number, step=int(summary.get("steps", -1)))
        return Observed(ended=ended, summary=summary)
    if summary.get("status") == "stopped" and observer.asked is not None and outcome.stopped_by_signal is None:
        return Observed(ended=replace(observer.asked, checkpoint_step=newest_checkpoint(run.path)))
    if summary.get("status") == "stopped":
        return _was_stopped(run, number, f"after step {summary['steps']} of {summary['planned_steps']}")
    if outcome.stopped_by_signal is not None:
        name = signal.Signals(outcome.stopped_by_signal).name
        return _was_stopped(run, number, f"by {name}, before the ranks could save")
    watch.last_look()
    ended = classify(
        Facts(
            attempt=number,
            returncode=outcome.returncode,
            hang=watch.hang,
            gone=watch.gone,
            culprit=_culprit(said, watch),
            faults=faults,
            killed_for_memory=was_oom_kill(before, read_counters()),
            step=watch.newest_step(),
            phase=watch.phase(),
            checkpoint_step=newest_checkpoint(run.path),
            said=last_words(outcome, said.tail, attempt.processes, gone=watch.gone),
            asked=None if observer.asked_softly else observer.asked,
        )
    )
    # An observer that asked for the end knew of older ones.
    ended = replace(ended, checkpoint_step=newest_checkpoint(run.path))
    error = failed("the run", outcome, said.tail, attempt.processes, cause=ended.evidence, gone=watch.gone)
    if said.errors:
        error = RunFailed(*joined_errors(said.errors).problems, *error.problems)
    return Observed(ended=ended, error=error, detected_at=watch.detected_at or observer.detected_at)


def _culprit(said: _Said, watch: BeatWatch) -> tuple[int, int] | None:
    """Rank and exit code of the one that failed first: by the launcher's report, else by what the rank itself told.

    A launcher that waits for the other ranks is ended before it reports.
    """
    found = culprit(said.tail)
    if found is not None:
        return int(found[0]), found[2]
    return None if watch.gone is None or watch.code is None else (watch.gone, watch.code)


def _reported(run_dir: Path, number: int) -> list[dict[str, Any]]:
    """What ranks wrote of memory that ran out; launchers show the words of rank 0 alone."""
    reports = (read_json(path) for path in sorted((run_dir / "logs").glob(f"oom-{number}-*.json")))
    return [{**body, "kind": Kind.out_of_memory.value} for body in reports if body is not None]


def _user_error(error: UserError, number: int) -> Observed:
    """What ranks told of something that a user can mend: wrong input, or a disk that takes no checkpoint."""
    kind = Kind.disk if error.exit_code is ExitCode.RESUMABLE else Kind.user_error
    return Observed(ended=Ended(kind=kind, attempt=number, evidence=str(error)), error=error)


def _was_stopped(run: RunDir, number: int, when: str) -> Observed:
    error = RunStopped(
        Problem(where="stopped", found=when, remedy=f"Continue with: trainmaster train resume={run.path}")
    )
    ended = Ended(kind=Kind.stopped, attempt=number, evidence=f"stopped {when}")
    return Observed(ended=ended, error=error)


def _execute(
    request: Request,
    run: RunDir,
    say: Callable[[str], None],
    said: _Said,
    on_poll: Callable[[], str | None] | None = None,
) -> Outcome:
    def on_line(line: str) -> None:
        error = told_error(line)
        if error is not None:
            said.errors.append(error)
            return
        if line.startswith(FAULT_PREFIX):
            said.faults.append(_fault(line))
            return
        said.tail.append(line)
        # After a user's error the launcher only reports that a rank has ended.
        if not said.errors:
            say(line)

    try:
        return execute(
            request,
            user_env=os.environ,
            on_line=on_line,
            grace_seconds=_STOP_GRACE_SECONDS,
            on_stop=lambda: ask_to_stop(run, say),
            on_poll=on_poll,
        )
    except LaunchError as error:
        raise as_user_error(error) from error
    except OSError as error:
        found = f"cannot write there: {error.strerror or error}"
        remedy = f"Free space, then go on with: trainmaster train resume={run.path}"
        raise RunStopped(Problem(where=str(run.path), found=found, remedy=remedy)) from error


def _fault(line: str) -> dict[str, Any]:
    """Read what a rank tells of a fault; a line that was cut tells at least that there was one."""
    try:
        body = json.loads(line.removeprefix(FAULT_PREFIX))
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"kind": "unknown"}
