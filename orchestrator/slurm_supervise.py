"""Starts the ranks of a batch job, and starts them again within the job where they can go on.

`python -m orchestrator.slurm_supervise RUN_DIR PARTS -- SRUN...`, on the first node. Preemption and the time limit end
a job, which the batch script puts back. What ends the ranks alone (a rank that dies or hangs, memory that runs out)
costs no new place in the queue.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launch.host_job import loads as load_job
from launch.parent_death import die_with_parent
from launch.request import FileToWrite, Request
from launch.spec import Backend
from orchestrator.errors import ExitCode, UserError
from orchestrator.inputs import gather
from orchestrator.planner.plan import Plan, dumps
from orchestrator.run_dir import RunDir
from orchestrator.slurm_check import files_of_plan, new_config
from orchestrator.slurm_node import nodes_folder
from orchestrator.supervise import Attempt
from orchestrator.supervisor import supervise
from orchestrator.train.worker import read_plan, report
from topology.model import Topology

__all__ = ["main"]


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
    started = run.attempt - 1  # the script has numbered the first one
    config = new_config(plan, nodes_folder(folder, started), int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))
    if not nodes_folder(folder, started).is_dir():
        config = plan.run_config
    inputs = gather(config)
    made: list[Plan] = []

    def make(plan: Plan, topology: Topology, run: RunDir) -> Attempt:
        """The same command again, with the files of a plan that is new."""
        files: tuple[FileToWrite, ...] = ()
        number = started
        if made:
            number = run.attempt
            files = (FileToWrite(path=str(folder / f"plan.{number}.json"), text=dumps(plan)),)
        if made and made[-1] is not plan:
            files = (*files_of_plan(plan, topology, run, parts, os.environ), *files)
        made.append(plan)
        request = Request(
            files=files,
            argv=argv,
            env=(),
            cwd=str(folder),
            log_path=str(folder / "logs" / f"ranks-{number}.log"),
            backend=Backend.slurm,
        )
        return Attempt(prepare=None, launch=request, number=number, processes=_processes(parts))

    def say(line: str) -> None:
        print(line, flush=True)

    supervise(config, plan, inputs, run, say, make=make)


def _processes(parts: Path) -> tuple[int, ...]:
    return tuple(part.processes for part in load_job(parts.read_text(encoding="utf-8")).parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
