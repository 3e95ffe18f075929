"""A batch job seen from outside: submitted, asked for its state, cancelled. Formats checked against SLURM 22.05."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from orchestrator.errors import Problem, UserError
from orchestrator.run_dir import read_json

SUBMITTED = "launch/submitted.json"
CANCELLED = "cancelled"  # a file of the run directory: the job must not put itself back into the queue
_COMMAND_SECONDS = 60.0
_SHOWN = 4


class Phase(Enum):
    """What a state of SLURM means for somebody who waits."""

    waiting = "waiting"
    running = "running"
    ended = "ended"


# State -> what it means; what is not here has ended badly (squeue(1), JOB STATE CODES).
_PHASES = {
    "PENDING": Phase.waiting, "REQUEUED": Phase.waiting, "REQUEUE_FED": Phase.waiting, "REQUEUE_HOLD": Phase.waiting,
    "SPECIAL_EXIT": Phase.waiting, "RESV_DEL_HOLD": Phase.waiting, "CONFIGURING": Phase.waiting,
    "SUSPENDED": Phase.waiting, "STOPPED": Phase.waiting, "RUNNING": Phase.running, "COMPLETING": Phase.running,
    "SIGNALING": Phase.running, "STAGE_OUT": Phase.running, "RESIZING": Phase.running,
}  # fmt: skip
# Words of sbatch's refusals -> the options they are about, where they do not name them.
_ABOUT = {
    "partition": ("partition",), "account": ("account", "qos", "partition"), "qos": ("qos",),
    "gres": ("gres",), "generic resource": ("gres",), "time limit": ("time",), "feature": ("constraint",),
    "node configuration": ("nodes", "cpus-per-task", "gres", "mem", "constraint", "nodelist"),
    "memory": ("mem",), "node count": ("nodes",), "node name": ("nodelist", "exclude"), "array": ("array",),
    "cpu count": ("cpus-per-task",), "reservation": ("reservation",), "mail": ("mail-type", "mail-user"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job as SLURM tells it; an array counts as one. `reason` says why it waits or how it ended."""

    job: str
    state: str
    phase: Phase
    reason: str = ""
    nodes: str = ""
    restarts: int = 0

    def __str__(self) -> str:
        """One line for people."""
        where = f" on {self.nodes}" if self.nodes else ""
        why = f" ({self.reason})" if self.reason else ""
        again = f", restart {self.restarts}" if self.restarts else ""
        return f"job {self.job}: {self.state.lower()}{why}{where}{again}"


def parse_states(job: str, text: str) -> JobState | None:
    """Read `scontrol show job -o`; of an array, the task that is furthest from its end speaks for all."""
    found = [_parsed(job, line) for line in text.splitlines() if "JobState=" in line]
    order = (Phase.running, Phase.waiting, Phase.ended)
    return min(found, key=lambda state: order.index(state.phase), default=None)


def _parsed(job: str, line: str) -> JobState:
    fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
    state = fields["JobState"]
    reason = fields.get("Reason", "None")
    nodes = fields.get("NodeList", "")
    return JobState(
        job=job,
        state=state,
        phase=_PHASES.get(state, Phase.ended),
        reason="" if reason == "None" else reason,
        nodes="" if nodes == "(null)" else nodes,
        restarts=int(fields.get("Restarts", "0")),
    )


def parse_sacct(job: str, text: str) -> JobState | None:
    """Read the first line of `sacct -n -P -o State,NodeList`: what is left when the controller has forgotten a job."""
    for line in text.splitlines():
        state, _, nodes = line.partition("|")
        word = state.split()[0] if state.split() else ""
        if word:
            return JobState(job=job, state=word, phase=_PHASES.get(word, Phase.ended), nodes=nodes)
    return None


def state_of(job: str) -> JobState | None:
    """Ask for a job's state; None where neither controller nor accounting knows it.

    Raises:
        UserError: this host has no SLURM, or it does not answer.
    """
    done = command_of_slurm("scontrol", "show", "job", "-o", job)
    if done.returncode == 0:
        return parse_states(job, done.stdout)
    if "Invalid job id" not in done.stderr:
        raise UserError(
            Problem(where=f"job {job}", found=done.stderr.strip() or "no answer", remedy="Ask again, or see `sinfo`.")
        )
    if shutil.which("sacct") is None:
        return None
    return parse_sacct(job, command_of_slurm("sacct", "-n", "-P", "-X", "-o", "State,NodeList", "-j", job).stdout)


def cancel(job: str) -> None:
    """End a job, waiting or running.

    Raises:
        UserError: SLURM does not let us.
    """
    done = command_of_slurm("scancel", job)
    if done.returncode:
        raise UserError(Problem(where=f"job {job}", found=done.stderr.strip(), remedy="See `squeue` and its owner."))


def submitted_job(run_dir: Path) -> str | None:
    """Return the job that was submitted for a run, if any."""
    body = read_json(run_dir / SUBMITTED)
    return None if body is None else str(body.get("job", "")) or None


def record_submission(run_dir: Path, job: str) -> None:
    """Note the job's number for other shells."""
    body: dict[str, Any] = {"schema": 1, "job": job, "submitted_at": int(time.time())}
    (run_dir / SUBMITTED).write_text(json.dumps(body) + "\n", encoding="utf-8")


def parse_job_number(lines: Sequence[str]) -> str | None:
    """Read what `sbatch --parsable` prints: the number, and with several clusters `;NAME`."""
    for line in reversed(lines):
        if match := re.fullmatch(r"(\d+)(;[\w.-]+)?", line.strip()):
            return match[1]
    return None


def refusal(lines: Sequence[str], script: str, script_path: str) -> UserError:
    """Say why sbatch took no script, with the lines of it that the message is about."""
    said = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines if line.strip()]
    text = " / ".join(said[-_SHOWN:]) or "no message"
    directives = [
        (number, line) for number, line in enumerate(script.splitlines(), start=1) if line.startswith("#SBATCH ")
    ]
    about = [f"line {number}: {line}" for number, line in directives if _is_about(text, line)]
    where = "; ".join(about) if about else script_path
    return UserError(
        Problem(
            where=where,
            found=f"sbatch refused it: {text}",
            remedy="Change the launch.* key of that line; `sinfo` shows what there is.",
        )
    )


def _is_about(message: str, directive: str) -> bool:
    option, _, value = directive.removeprefix("#SBATCH --").partition("=")
    low = message.lower()
    if (len(value) > 1 and not value.isdecimal() and value.lower() in low) or f"--{option}" in low:
        return True
    return any(option in options for words, options in _ABOUT.items() if words in low)


def command_of_slurm(*words: str) -> subprocess.CompletedProcess[str]:
    """Run one of SLURM's programs.

    Raises:
        UserError: it is not here, or does not answer.
    """
    try:
        return subprocess.run(  # noqa: S603 - SLURM's own programs
            words, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS
        )
    except FileNotFoundError as error:
        remedy = "Run this where SLURM's commands are, such as the login node."
        raise UserError(Problem(where=words[0], found="no such program on this host", remedy=remedy)) from error
    except subprocess.TimeoutExpired as error:
        found = f"no answer within {_COMMAND_SECONDS:.0f} s"
        raise UserError(
            Problem(where=words[0], found=found, remedy="Is the controller up? Ask again later.")
        ) from error
