"""Trials as jobs of submitit: an array of SLURM, or processes that submitit starts on this host.

Submitit's own launcher for Hydra waits for the results in turn and raises at the first job that died; here each job
is watched for itself. A job whose state SLURM knows needs no accounting (`sacct`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from launch.parent_death import die_with_parent
from orchestrator.attempt_files import STOP_FILE
from orchestrator.errors import ExitCode, Problem, UserError
from orchestrator.report.trained import INTERRUPTED
from orchestrator.slurm import Phase, state_of
from orchestrator.sweeps.allot import WHOLE, Place
from orchestrator.sweeps.trial import TrialJob, trial_environment

_ASK_SECONDS = 2.0  # between two questions to SLURM about a job
_RESULT_SECONDS = 10.0  # a shared file system shows the result of a job some time after its end
_LOOK_SECONDS = 0.2  # between two looks for a request to stop
_STOP_SECONDS = 90.0  # a step and a checkpoint, within the notice that preemption gives


@dataclass(frozen=True, slots=True, kw_only=True)
class InJob:
    """What runs inside a job: the trial's own process. Submitit pickles it."""

    trial: TrialJob
    place: Place = WHOLE

    def __call__(self) -> int:
        """Run the trial to its end, and pass on requests to stop; returns its exit code."""
        if self.place.cores:
            os.sched_setaffinity(0, self.place.cores)
        num_passed = 0
        with self.trial.log.open("ab") as log:
            child = self._start(log)
            while child.poll() is None:
                num_asked = _num_stops(self.trial)
                for _ in range(num_asked - num_passed):
                    child.send_signal(signal.SIGINT)
                num_passed = num_asked
                time.sleep(_LOOK_SECONDS)
        return child.returncode

    def _start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            self.trial.argv(),
            env=trial_environment(os.environ, self.place.devices),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(_before, os.getpid()),  # noqa: PLW1509 - two system calls, no lock
        )

    def checkpoint(self) -> Any:  # noqa: ANN401 - submitit's own type
        """Called before preemption or the time limit: stop with a checkpoint, and go on from it in the next job."""
        from submitit.helpers import DelayedSubmission

        if not (self.trial.run_dir / "plan.json").exists():
            return DelayedSubmission(self)  # nothing to save yet
        (self.trial.run_dir / STOP_FILE).write_text("", encoding="utf-8")
        end = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < end and not (self.trial.run_dir / "summary.json").is_file():
            time.sleep(0.5)
        return DelayedSubmission(self)


def _stops(trial: TrialJob) -> Path:
    """A file with one byte for each request to stop: jobs on other hosts see it."""
    return trial.folder / f"{trial.number}.stop"


def _num_stops(trial: TrialJob) -> int:
    return _stops(trial).stat().st_size if _stops(trial).exists() else 0


class JobHandle:
    """A job of submitit."""

    def __init__(self, job: Any, trial: TrialJob, *, is_slurm: bool) -> None:  # noqa: ANN401 - submitit's own type
        """Watch this job."""
        self._job, self._trial, self._is_slurm = job, trial, is_slurm
        self._asked_at = self._gone_since = 0.0
        self._code: int | None = None
        self.reason = ""

    def poll(self) -> int | None:
        """Return its exit code once it has ended; a job that died without a result has failed."""
        if self._code is None and self._job.paths.result_pickle.exists():
            self._read_result()
        elif self._code is None and (why := self._why_gone()):
            self._code = INTERRUPTED if _num_stops(self._trial) else int(ExitCode.RUN_FAILED)
            self.reason = why
        return self._code

    def _read_result(self) -> None:
        try:
            self._code = int(self._job.result())
        except Exception as error:  # noqa: BLE001 - whatever the job raised, pickled
            self._code = int(ExitCode.RUN_FAILED)
            self.reason = f"the job failed: {str(error).strip().splitlines()[-1]}; see {self._job.paths.stderr}"

    def _why_gone(self) -> str:
        """Say how a job ended that left no result, once it had time to."""
        now = time.monotonic()
        if now - self._asked_at < _ASK_SECONDS:
            return ""
        self._asked_at = now
        told = self._state()
        self._gone_since = (self._gone_since or now) if told else 0.0
        # What was stopped before it began needs no time.
        has_had_time = now - self._gone_since > _RESULT_SECONDS or not self._trial.log.stat().st_size
        return told if told and has_had_time else ""

    def _state(self) -> str:
        """How the job ended; empty while it lives."""
        if not self._is_slurm:
            return "the job's process has ended without a result" if self._job.done() else ""
        try:
            state = state_of(self._job.job_id)
        except UserError:
            return ""  # the controller does not answer now
        if state is None:
            return f"SLURM no longer knows job {self._job.job_id}"
        return f"SLURM ended {state}" if state.phase is Phase.ended else ""

    def stop(self) -> None:
        """Ask it to end with a checkpoint; asked again, end it at once. A job that waits is cancelled."""
        with _stops(self._trial).open("ab") as file:
            file.write(b"x")
        if self._is_slurm and not self._trial.log.stat().st_size:
            self._job.cancel(check=False)


class Jobs:
    """Starts trials as jobs; with SLURM those of a batch are one array, submitted together."""

    def __init__(self, cluster: str, params: Mapping[str, Any]) -> None:
        """Take the cluster of submitit (`local`, `slurm`) and the keys of its launcher for Hydra."""
        self.cluster = cluster
        self._params = dict(params)
        self._submitted: dict[TrialJob, JobHandle] = {}

    def submit(self, trials: Sequence[TrialJob]) -> str:
        """Submit an array; returns its number.

        Raises:
            UserError: SLURM takes no such job.
        """
        jobs = self._map([InJob(trial=trial) for trial in trials])
        handles = [JobHandle(job, trial, is_slurm=True) for job, trial in zip(jobs, trials, strict=True)]
        self._submitted |= dict(zip(trials, handles, strict=True))
        return str(jobs[0].job_id).partition("_")[0]

    def start(self, trial: TrialJob, place: Place) -> JobHandle:
        """Start a trial here, or find its job of the array."""
        if trial in self._submitted:
            return self._submitted.pop(trial)
        (job,) = self._map([InJob(trial=trial, place=place)])
        return JobHandle(job, trial, is_slurm=False)

    def _map(self, calls: Sequence[InJob]) -> list[Any]:
        from submitit.core.utils import FailedJobError

        executor = self._executor()
        # Jobs inherit it: neither may the working directory hide our packages there.
        os.environ |= {key: trial_environment(os.environ)[key] for key in ("PYTHONPATH", "PYTHONSAFEPATH")}
        try:
            # Not map_array: submitit asks the function itself for a checkpoint.
            with executor.batch():
                jobs = [executor.submit(call) for call in calls]
        except FailedJobError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            remedy = "Change the hydra.launcher.* key it is about; `sinfo` shows what there is."
            problem = Problem(where="hydra/launcher=submitit_slurm", found=" / ".join(lines[-3:]), remedy=remedy)
            raise UserError(problem) from error
        return jobs

    def _executor(self) -> Any:  # noqa: ANN401 - submitit's own type
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        shared = BaseQueueConf.__dataclass_fields__.keys()
        params = dict(self._params)
        made = {"folder": params.pop("submitit_folder")}
        if "max_num_timeout" in params:
            made[f"{self.cluster}_max_num_timeout"] = params.pop("max_num_timeout")
        try:
            executor = submitit.AutoExecutor(cluster=self.cluster, **made)
        except RuntimeError as error:
            remedy = "Run this where SLURM's commands are, such as the login node."
            problem = Problem(where=f"hydra/launcher=submitit_{self.cluster}", found=str(error), remedy=remedy)
            raise UserError(problem) from error
        keys = {key if key in shared else f"{self.cluster}_{key}": value for key, value in params.items()}
        executor.update_parameters(**keys)
        return executor


def _before(parent_pid: int) -> None:
    """The notice of preemption is for submitit, and ends who does not know it; a killed job takes its trial along."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    die_with_parent(signal_number=signal.SIGTERM, expected_parent_pid=parent_pid)
