"""Starts the ranks of a batch job, and starts them again within the job where they can go on.

`python -m orchestrator.slurm_supervise RUN_DIR PARTS -- SRUN...`, on the first node. Preemption and the time limit end
a job, which the batch script puts back. What ends the ranks alone (a rank that dies or hangs, memory that runs out)
costs no new place in the queue.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from launch.host_job import dumps as dump_job
from launch.host_job import loads as load_job
from launch.parent_death import die_with_parent
from launch.request import FileToWrite, Request
from launch.spec import ATTEMPT_MARK, Backend
from orchestrator.config import TopologyConfig
from orchestrator.errors import ExitCode, UserError
from orchestrator.inputs import gather
from orchestrator.monitor.beat import attempt_of
from orchestrator.planner.plan import Plan, dumps
from orchestrator.reporting import leave_page
from orchestrator.run_dir import RunDir
from orchestrator.slurm_check import files_of_plan, new_config
from orchestrator.slurm_node import nodes_folder
from orchestrator.supervise import Attempt
from orchestrator.supervisor import supervise
from orchestrator.train.worker import read_plan, report
from topology.model import Topology

__all__ = ["end_steps", "main"]

_STEP_SECONDS: Final = 60.0
_ASK_SECONDS: Final = 20.0


def main(arguments: list[str]) -> int:
    """Run to the end; returns an exit code of `trainmaster`."""
    die_with_parent()
    at = arguments.index("--")
    (folder, parts), argv = arguments[:at], tuple(arguments[at + 1 :])
    try:
        _run(Path(folder), Path(parts), argv)
    except UserError as error:
        report(error)
        return int(error.exit_code)
    return int(ExitCode.DONE)


def _run(folder: Path, parts: Path, argv: tuple[str, ...]) -> None:
    plan = read_plan(folder / "plan.json")
    run = RunDir(path=folder, resuming=True)
    started = attempt_of(folder)  # the script has numbered the first one
    os.environ.pop(ATTEMPT_MARK, None)  # of that one alone
    config, num_nodes = plan.run_config, int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    nodes = nodes_folder(folder, started)
    if len(list(nodes.glob("[0-9]*.json"))) == num_nodes:
        config = new_config(plan, nodes, num_nodes)
    elif (folder / "topology.json").is_file():  # a node told nothing of itself
        config = replace(config, topology=TopologyConfig(path=str(folder / "topology.json")))
    inputs = gather(config)
    made: list[Plan] = []

    def make(plan: Plan, topology: Topology, run: RunDir, *, have_met: bool = False) -> Attempt:  # noqa: ARG001 - srun starts all nodes
        """The same command again, with the files of a plan that is new."""
        files: tuple[FileToWrite, ...] = ()
        number = started
        if made:
            end_steps(os.environ.get("SLURM_JOB_ID", ""))
            number = run.attempt
            _renamed(parts, f"{plan.run_id}-{number}")
            files = (FileToWrite(path=str(folder / f"plan.{number}.json"), text=dumps(plan)),)
        if made and made[-1] is not plan:
            files = (*files_of_plan(plan, topology, run, parts, os.environ), *files)
        made.append(plan)
        return Attempt(
            prepare=None, launch=_request(argv, folder, number, files), number=number, processes=_processes(parts)
        )

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        supervise(config, plan, inputs, run, say, make=make)
    finally:
        leave_page(folder)


def _request(argv: tuple[str, ...], folder: Path, number: int, files: tuple[FileToWrite, ...]) -> Request:
    """The command of one start; the job's own variables go on to the ranks, but for the number of the start."""
    return Request(
        files=files,
        argv=argv,
        env=((ATTEMPT_MARK, str(number)),),
        cwd=str(folder),
        log_path=str(folder / "logs" / f"ranks-{number}.log"),
        backend=Backend.slurm,
    )


def end_steps(job: str) -> None:
    """End what still runs of earlier steps, on all nodes: a killed `srun` leaves its tasks to their nodes."""
    if not job or shutil.which("squeue") is None:
        return
    until = time.monotonic() + _STEP_SECONDS
    while (steps := _steps(job)) and time.monotonic() < until:
        for step in steps:
            _ask("scancel", "--signal=KILL", step)
        time.sleep(1.0)


def _steps(job: str) -> list[str]:
    """Running steps of a job but that of its script."""
    told = _ask("squeue", "--steps", f"--jobs={job}", "--noheader", "--format=%i")
    return [step for step in told.split() if step.rpartition(".")[2].isdecimal()]


def _ask(*words: str) -> str:
    """Run a command of SLURM; what it printed, nothing where it cannot be run."""
    try:
        return subprocess.run(  # noqa: S603 - our own words
            words, check=False, capture_output=True, text=True, timeout=_ASK_SECONDS
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _renamed(parts: Path, name: str) -> None:
    """Give the next start a name of its own: by it nodes know what an earlier one has left there."""
    job = load_job(parts.read_text(encoding="utf-8"))
    parts.write_text(dump_job(replace(job, name=name)), encoding="utf-8")


def _processes(parts: Path) -> tuple[int, ...]:
    return tuple(part.processes for part in load_job(parts.read_text(encoding="utf-8")).parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
