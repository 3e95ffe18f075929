"""A trial as a process of this host."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial

from launch.parent_death import die_with_parent
from orchestrator.sweeps.allot import Place
from orchestrator.sweeps.trial import TrialJob, trial_environment


class ProcessHandle:
    """A started process; it knows the two steps of a stop itself."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Watch this process."""
        self._process = process

    def poll(self) -> int | None:
        """Return its exit code once it has ended."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask it to end with a checkpoint; asked again, end it at once."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    @property
    def reason(self) -> str:
        """Why it ended, where its own output cannot tell."""
        code = self._process.poll()
        return f"ended by {signal.Signals(-code).name}" if code is not None and code < 0 else ""


def start_process(job: TrialJob, place: Place) -> ProcessHandle:
    """Start a trial in a session of its own: the terminal's Ctrl-C reaches us alone, and we pass it on."""
    tie = partial(_before, place.cores, os.getpid())
    with job.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            job.argv(),
            env=trial_environment(os.environ, place.devices),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tie,  # noqa: PLW1509 - two system calls, no lock; this process has one thread
        )
    return ProcessHandle(process)


def _before(cores: tuple[int, ...], parent_pid: int) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    die_with_parent(signal_number=signal.SIGTERM, expected_parent_pid=parent_pid)
