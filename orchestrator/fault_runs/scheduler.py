"""Faults that the scheduler of a cluster does: a job that preempts the run's, a node that goes down."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Final

from orchestrator.config import Fault, FaultsConfig
from orchestrator.fault_runs.outside import newest_step
from orchestrator.faults import marks
from orchestrator.run_dir import read_json

_COMMAND_SECONDS: Final = 60.0
_ASK_SECONDS: Final = 1.0  # between two questions whether the job runs
_AWAY: Final = ("DOWN", "DRAIN", "FAIL")


class Scheduler:
    """Waits for the step, then does it once; `mend` takes back what would outlast the run."""

    def __init__(self, config: FaultsConfig, fault: Fault, run_dir: Path) -> None:
        """Take which fault, and the run whose job it is for."""
        self._config, self._fault, self._run_dir = config, fault, run_dir
        self._is_done = False
        self._next_seconds = 0.0
        self._node = ""

    def look(self) -> None:
        """Do it if the step has come, and the job runs: one that waits has no node yet."""
        job = (read_json(self._run_dir / "launch" / "submitted.json") or {}).get("job")
        step = newest_step(self._run_dir) + 1
        if self._is_done or job is None or step < self._config.step or time.monotonic() < self._next_seconds:
            return
        self._next_seconds = time.monotonic() + _ASK_SECONDS
        try:
            shown = _run("scontrol", "show", "job", "-o", str(job))
            if _named(shown, "JobState") != "RUNNING":
                return
            self._is_done = True
            nodes = _run("scontrol", "show", "hostnames", _named(shown, "NodeList")).split()
            self._node = nodes[min(self._config.rank or 0, len(nodes) - 1)]
            told = {"fault": self._fault.value, "step": step, "steps_done": step - 1, "node": self._node}
            marks.tell(self._run_dir, "fault_injected", **told)
            self._act()
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            self._is_done = True
            why = str(getattr(error, "stderr", None) or error).strip()
            marks.tell(self._run_dir, "fault_refused", fault=self._fault.value, step=step, why=why)

    def _act(self) -> None:
        if self._fault is Fault.slurm_node_down:
            _run("scontrol", "update", f"nodename={self._node}", "state=down", "reason=trainmaster-faults")
            return
        words = ("--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        _run("sbatch", f"--partition={self._config.partition}", f"--nodelist={self._node}", *words)

    def mend(self) -> str:
        """Bring a node back that was taken down; returns what a person must do where that fails.

        A node whose daemon registers again may be back already (ReturnToService), and is not resumed twice.
        """
        if self._fault is not Fault.slurm_node_down or not self._node:
            return ""
        words = ("scontrol", "update", f"nodename={self._node}", "state=resume")
        try:
            if any(state in _state(self._node) for state in _AWAY):
                _run(*words)
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            why = str(getattr(error, "stderr", None) or error).strip()
            return f"node {self._node} could not be brought back ({why}): run `{' '.join(words)}`"
        return ""


def _state(node: str) -> str:
    return _named(_run("scontrol", "show", "node", "-o", node), "State")


def _named(told: str, name: str) -> str:
    for key, _, value in (word.partition("=") for word in told.split()):
        if key == name:
            return value
    raise LookupError(f"scontrol tells no {name}")


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS)  # noqa: S603
    return done.stdout
