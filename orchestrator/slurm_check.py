"""Before the ranks of a batch job start: is this the machine of the plan, and if not, what is to be done?

`python -m orchestrator.slurm_check RUN_DIR NODES_PARTS ATTEMPT`, once, on the first node, after each node has looked at
itself. A new plan is made here alone, and written to the run directory before any rank starts: all ranks read that one
file, so no two of them can hold different plans.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launch.host_job import HostJob
from launch.host_job import dumps as dump_job
from launch.host_job import loads as load_job
from launch.parent_death import die_with_parent
from launch.request import FileToWrite
from orchestrator import supervise
from orchestrator.config import OnDrift, RunConfig, TopologyConfig
from orchestrator.drift import Drift, compare, places_of_nodes, places_of_plan
from orchestrator.errors import Problem, UserError
from orchestrator.inputs import gather
from orchestrator.machine import machine_to_plan_for
from orchestrator.planner.plan import Plan
from orchestrator.planning import plan_of
from orchestrator.run_dir import RunDir
from orchestrator.slurm_node import nodes_folder
from orchestrator.train.run_files import append_json_line
from orchestrator.train.worker import read_plan, report
from topology.codec import to_json
from topology.errors import TopologyError
from topology.fingerprint import fingerprint
from topology.model import Topology
from topology.probe import read_topology

__all__ = ["check", "files_of_plan", "main", "new_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """This attempt: its run directory, the file of the nodes' parts, its number, and how many nodes there are."""

    run_dir: Path
    parts: Path
    attempt: int
    num_nodes: int

    @property
    def nodes_folder(self) -> Path:
        """Where the nodes left what they found."""
        return nodes_folder(self.run_dir, self.attempt)

    def tell(self, event: str, **details: object) -> None:
        """Append to the events of the run."""
        path = self.run_dir / "events.jsonl"
        append_json_line(path, {"time": time.time(), "event": event, "attempt": self.attempt, **details})


def check(job: Job, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Compare, and plan anew where that is asked for; returns what to say.

    Raises:
        UserError: the machine is another and the job is to stop then, or no plan can be made for it.
    """
    plan = read_plan(job.run_dir / "plan.json")
    is_strict = plan.run_config.launch.on_drift is OnDrift.stop
    names = tuple(path.stem.split("-", 1)[1] for path in sorted(job.nodes_folder.glob("[0-9]*.json")))
    if len(names) != job.num_nodes:
        found = f"{len(names)} of {job.num_nodes} nodes have told what they are ({', '.join(names) or 'none'})"
        if is_strict:
            remedy = "Their errors stand above; launch.on_drift=replan goes on without them."
            raise UserError(Problem(where="launch.on_drift=stop", found=found, remedy=remedy))
        return (f"note: {found}: the plan is not compared with them",)
    machine = machine_to_plan_for(new_config(plan, job.nodes_folder, len(names)))
    _write(job.run_dir / f"topology.{job.attempt}.json", json.dumps(to_json(machine), indent=2) + "\n")
    planned = _planned(job)
    if fingerprint(planned) == plan.topology_fingerprint:
        drift = compare(places_of_plan(plan, planned), places_of_nodes(machine, names))
    else:  # an attempt ended while it wrote a new plan
        drift = Drift(nodes=(), differences=("topology.json is not that of the plan",))
    prints = {"fingerprint": fingerprint(machine), "planned": plan.topology_fingerprint}
    job.tell("topology", nodes=names, **prints, differences=drift.differences)
    if not drift.differences:
        _write(job.parts, _assigned(load_job(job.parts.read_text(encoding="utf-8")), drift.nodes))
        how = "same fingerprint" if len(set(prints.values())) == 1 else "what differs does not matter to the plan"
        return (f"the nodes are as planned ({how})",)
    if is_strict or drift.is_other_kind:
        raise UserError(*_stopped(drift, plan))
    return (*(f"not as planned: {text}" for text in drift.differences), *_plan_anew(job, plan, machine, environ))


def new_config(plan: Plan, folder: Path, num_nodes: int) -> RunConfig:
    """The configuration of the plan for the nodes that the folder describes; those of the job are all there are."""
    config = plan.run_config
    launch = config.launch
    if plan.chosen.strategy.num_nodes == 1 and launch.nodes > 1:  # CPU ranks of one host, spread over the nodes
        return replace(config, topology=TopologyConfig(path=str(folder)))
    return replace(config, topology=TopologyConfig(path=str(folder)), nodes=num_nodes, launch=replace(launch, nodes=0))


def _planned(job: Job) -> Topology:
    path = job.run_dir / "topology.json"
    try:
        return read_topology(path)
    except TopologyError as error:
        problems = (Problem(where=str(path), found=text, remedy="Plan the run anew.") for text in error.problems)
        raise UserError(*problems) from error


def _stopped(drift: Drift, plan: Plan) -> list[Problem]:
    asked = f"launch.on_drift={OnDrift.stop.value}"
    if drift.is_other_kind:
        asked = f"a plan for {plan.device_kind}s"
        remedy = "Ask for nodes with such devices (launch.gres, launch.constraint), or plan for those that there are."
    else:
        remedy = (
            "Plan with what `trainmaster probe launch=slurm` finds, ask for other nodes, or use launch.on_drift=replan."
        )
    return [Problem(where=asked, found=text, remedy=remedy) for text in drift.differences]


def _plan_anew(job: Job, old: Plan, machine: Topology, environ: Mapping[str, str]) -> tuple[str, ...]:
    config = new_config(old, job.nodes_folder, job.num_nodes)
    notes = []
    if machine.gpus and config.devices > len(machine.gpus):
        notes.append(f"note: devices={config.devices} were asked for, {len(machine.gpus)} are there")
        config = replace(config, devices=0)
    inputs = gather(config)
    plan = plan_of(config, inputs, old.run_id, environ)
    run = RunDir(path=job.run_dir, resuming=True)
    for file in files_of_plan(plan, inputs.topology, run, job.parts, environ):
        _write(Path(file.path), file.text)
    _write(job.run_dir / f"plan.{job.attempt}.json", (job.run_dir / "plan.json").read_text(encoding="utf-8"))
    labels = {"old": old.chosen.strategy.label, "new": plan.chosen.strategy.label}
    job.tell("replanned", **labels, old_hash=old.plan_hash, new_hash=plan.plan_hash)
    return (*notes, f"planned anew: {labels['new']} in place of {labels['old']}", plan.machine)


def files_of_plan(
    plan: Plan, topology: Topology, run: RunDir, parts: Path, environ: Mapping[str, str]
) -> list[FileToWrite]:
    """Return the files of a plan that is made within a job: all but its script, the parts where the job reads them."""
    files = []
    for file in supervise.make_attempt(plan, topology, run, environ=environ).launch.files:
        name = Path(file.path).name
        if name.endswith(".sbatch"):  # it is running
            continue
        if Path(file.path).parent.name == "launch" and name.endswith(".json"):
            job = _with_devices(load_job(file.text), plan, topology)
            files.append(FileToWrite(path=str(parts), text=_assigned(job, _nodes_of(plan, topology))))
        else:
            files.append(file)
    return files


def _nodes_of(plan: Plan, machine: Topology) -> tuple[str, ...]:
    """The nodes in the order of their ranks; none where ranks of one host are spread over all of them."""
    if plan.chosen.strategy.num_nodes == 1 and plan.run_config.launch.nodes > 1:
        return ()
    home = {device.id: device.host for device in machine.devices}
    return tuple(dict.fromkeys(home[name] for name in plan.chosen.strategy.device_ids))


def _with_devices(job: HostJob, plan: Plan, machine: Topology) -> HostJob:
    """Where devices were lost, name those that are left: SLURM still shows each node all that the job was given."""
    nodes = _nodes_of(plan, machine)
    lost = plan.setbacks is not None and plan.setbacks.lost_slots
    uuids = {device.id: device.uuid or device.id for device in machine.gpus}
    if not lost or not uuids or len(nodes) != len(job.parts):
        return job
    home = {device.id: device.host for device in machine.gpus}
    parts = []
    for part, node in zip(job.parts, nodes, strict=True):
        own = [uuids[name] for name in plan.chosen.strategy.device_ids if home.get(name) == node]
        env = {**dict(part.env), "CUDA_VISIBLE_DEVICES": ",".join(own)}
        parts.append(replace(part, env=tuple(env.items())))
    return replace(job, parts=tuple(parts))


def _assigned(parts: HostJob, nodes: tuple[str, ...]) -> str:
    """The text of the nodes' parts, each with the node it is for."""
    if len(nodes) == len(parts.parts):
        named = (replace(part, node=node) for part, node in zip(parts.parts, nodes, strict=True))
        parts = replace(parts, parts=tuple(named))
    return dump_job(parts)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def main(arguments: list[str]) -> int:
    """Check this attempt; returns an exit code of `trainmaster`."""
    die_with_parent()
    run_dir, parts, attempt = arguments
    num_nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    job = Job(run_dir=Path(run_dir), parts=Path(parts), attempt=int(attempt), num_nodes=num_nodes)
    try:
        for line in check(job, os.environ):
            print(f"trainmaster: {line}" if not line.startswith("note: ") else line, flush=True)
    except UserError as error:
        report(error)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
