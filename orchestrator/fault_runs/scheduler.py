"""Faults that the scheduler of a cluster does: a job that preempts the run's, a node that goes down."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from orchestrator.config import Fault, FaultsConfig
from orchestrator.fault_runs.outside import newest_step
from orchestrator.faults import marks
from orchestrator.run_dir import read_json

_COMMAND_SECONDS: Final = 60.0


class Scheduler:
    """Waits for the step, then does it once; `mend` takes back what would outlast the run."""

    def __init__(self, config: FaultsConfig, fault: Fault, run_dir: Path) -> None:
        """Take which fault, and the run whose job it is for."""
        self._config, self._fault, self._run_dir = config, fault, run_dir
        self._is_done = False
        self._node = ""

    def look(self) -> None:
        """Do it if the step has come."""
        job = (read_json(self._run_dir / "launch" / "submitted.json") or {}).get("job")
        step = newest_step(self._run_dir) + 1
        if self._is_done or job is None or step < self._config.step:
            return
        self._is_done = True
        try:
            nodes = _run("scontrol", "show", "hostnames", _field(str(job), "NodeList")).split()
            self._node = nodes[min(self._config.rank or 0, len(nodes) - 1)]
            told = {"fault": self._fault.value, "step": step, "steps_done": step - 1, "node": self._node}
            marks.tell(self._run_dir, "fault_injected", **told)
            self._act()
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            why = str(getattr(error, "stderr", None) or error).strip()
            marks.tell(self._run_dir, "fault_refused", fault=self._fault.value, step=step, why=why)

    def _act(self) -> None:
        if self._fault is Fault.slurm_node_down:
            _run("scontrol", "update", f"nodename={self._node}", "state=down", "reason=trainmaster-faults")
            return
        words = ("--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        _run("sbatch", f"--partition={self._config.partition}", f"--nodelist={self._node}", *words)

    def mend(self) -> None:
        """Bring a node back that was taken down."""
        if self._fault is Fault.slurm_node_down and self._node:
            _run("scontrol", "update", f"nodename={self._node}", "state=resume")


def _field(job: str, name: str) -> str:
    pairs = (word.partition("=") for word in _run("scontrol", "show", "job", "-o", job).split())
    return next(value for key, _, value in pairs if key == name)


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS)  # noqa: S603
    return done.stdout
