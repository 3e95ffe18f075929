"""`trainmaster train` as a child process that cannot hang: with a time limit, and started again where it was killed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from launch.parent_death import die_with_parent
from orchestrator.fault_runs.row import Left
from orchestrator.faults import marks
from orchestrator.leftovers import end_leftovers
from orchestrator.overrides import quote
from orchestrator.run_dir import read_json
from orchestrator.sweeps.trial import trial_environment
from orchestrator.train.run_files import read_json_lines

_LOOK_SECONDS: Final = 0.2
_STOP_SECONDS: Final = 15.0
_MOST_STARTS: Final = 20  # of one that is killed each few steps
_ERROR: Final = "error: "
_READ_BYTES: Final = 64 * 1024  # of the end of a log, where the errors stand
_PROBE_SECONDS: Final = 10.0

Say = Callable[[str], None]
Look = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training to run.

    Attributes:
        words: overrides of `trainmaster train`, without the run directory.
        prefix: of the command, such as one that makes a file system.
        restarts: it is started again, with resume, when it was killed.
        limit_seconds: for all starts together.
    """

    run_dir: Path
    words: tuple[str, ...]
    limit_seconds: float
    prefix: tuple[str, ...] = ()
    restarts: bool = False

    @property
    def log(self) -> Path:
        """Everything the command prints."""
        return self.run_dir.with_name(f"{self.run_dir.name}.log")

    def argv(self, *, again: bool, python: str = sys.executable) -> tuple[str, ...]:
        """The command, or the one that continues it."""
        words = (
            (f"resume={quote(str(self.run_dir))}",) if again else (*self.words, f"run_dir={quote(str(self.run_dir))}")
        )
        return (*self.prefix, python, "-m", "orchestrator.cli", "train", *words)


def run_job(job: Job, look: Look = lambda: None, environ: Mapping[str, str] = os.environ) -> Left:
    """Run a training to its end, or end it when its time is up; returns what it left.

    Args:
        job: what is run.
        look: is called several times a second meanwhile.
        environ: of this process.
    """
    began = time.monotonic()
    code: int | None = None
    try:
        for start in range(_MOST_STARTS):
            code = _run_once(job, began, look, environ, again=start > 0)
            if not (job.restarts and code == -signal.SIGKILL):
                break
            # Whoever watches the supervisor (a person, a service manager) sees that it is gone.
            evidence = "`trainmaster train` was ended by SIGKILL"
            marks.tell(job.run_dir, "fault_detected", kind="supervisor_lost", evidence=evidence)
    finally:
        end_leftovers(job.run_dir, lambda _: None, grace_seconds=0.0)
    return left_of(job.run_dir, job.log, code, time.monotonic() - began)


def _run_once(job: Job, began: float, look: Look, environ: Mapping[str, str], *, again: bool) -> int | None:
    """Return the exit code; None if its time was up."""
    job.run_dir.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            job.argv(again=again),
            env=trial_environment(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal_number=signal.SIGTERM, expected_parent_pid=os.getpid()),  # noqa: PLW1509
        )
    try:
        while process.poll() is None:
            look()
            if time.monotonic() - began > job.limit_seconds:
                return None
            time.sleep(_LOOK_SECONDS)
    finally:
        _end(process)
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it if it lives: first by asking twice, as a user would, then by force."""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_STOP_SECONDS)


def left_of(run_dir: Path, log: Path, code: int | None, seconds: float) -> Left:
    """Read what a run left."""
    return Left(
        events=tuple(read_json_lines(run_dir / marks.EVENTS)),
        metrics=tuple(read_json_lines(run_dir / "metrics.jsonl")),
        summary=read_json(run_dir / "summary.json") or {},
        code=code,
        words=_errors(log),
        seconds=seconds,
    )


def _errors(log: Path) -> str:
    """The errors that a command ended with, in one line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _READ_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "; ".join(line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR))


def newest_step(run_dir: Path) -> int:
    """Return the last step that the run has written down."""
    steps = [record.get("step") for record in read_json_lines(run_dir / "metrics.jsonl") if "loss" in record]
    return max((step for step in steps if isinstance(step, int)), default=0)


def own_namespace() -> tuple[str, ...]:
    """Return the words that run a command with mounts of its own; none where that is not allowed."""
    for words in (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")):
        if runs((*words, "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /tmp")):
            return words
    return ()


def small_disk(namespace: Sequence[str], run_dir: Path, nbytes: int) -> tuple[str, ...]:
    """Return a prefix that puts the checkpoints of a run on a file system of so many bytes.

    It is mounted when the run has made its folder, since a run does not begin where there are checkpoints; nothing of
    it is left when the last process of the run has ended.
    """
    folder, plan = (shlex.quote(str(run_dir / name)) for name in ("checkpoints", "plan.json"))
    waits = f"while [ ! -e {plan} ] && kill -0 $$; do sleep 0.1; done"
    mounts = f"mkdir -p {folder} && mount -t tmpfs -o size={nbytes} tmpfs {folder}"
    return (*namespace, "sh", "-c", f'({waits}; {mounts}) & exec "$@"', "sh")


def has_own_network(ssh: str, hosts: Sequence[str]) -> bool:
    """Whether each host of a run is a network namespace that is not its machine's own."""
    # As the ranks judge it. (`readlink` of the first process's may be forbidden.)
    asked = (
        "first=$(readlink /proc/1/ns/net) "
        '&& [ "$(readlink /proc/self/ns/net)" != "$first" ] || { [ -z "$first" ] && [ -n "$(ip netns identify)" ]; }'
    )
    return bool(hosts) and all(runs((*shlex.split(ssh or "ssh"), host, asked)) for host in hosts)


def runs(words: Sequence[str]) -> bool:
    """Whether a short command succeeds."""
    try:
        done = subprocess.run(words, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PROBE_SECONDS)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
