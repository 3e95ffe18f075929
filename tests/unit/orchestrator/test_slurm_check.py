"""Before the ranks of a job start: the nodes' readings, the plan, and a new plan where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.host_job import loads as load_job
from orchestrator import slurm_check, supervise
from orchestrator.compose import compose
from orchestrator.errors import UserError
from orchestrator.inputs import gather
from orchestrator.planner.plan import Plan, loads
from orchestrator.planning import plan_of
from orchestrator.recovery.event import Ended, Kind
from orchestrator.replanning import replanned
from orchestrator.run_dir import RunDir
from orchestrator.slurm_check import Job, check, files_of_plan
from orchestrator.slurm_node import nodes_folder, renamed
from topology.codec import to_json
from topology.model import Topology
from topology.presets import preset

Planned = Callable[..., Job]


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """Write a run that was planned for a drawn machine, and what the job's nodes tell; returns the job."""

    def build(machine: str, *nodes: str, count: int = 0, options: tuple[str, ...] = ()) -> Job:
        run_dir = tmp_path / "run"
        words = ["experiment=demo", "launch=slurm", f"topology={machine}", f"run_dir={run_dir}", *options]
        config, _ = compose(words)
        inputs = gather(config)
        plan = plan_of(config, inputs, "run", {})
        attempt = supervise.make_attempt(plan, inputs.topology, RunDir(path=run_dir, resuming=False), environ={})
        for file in attempt.launch.files:
            Path(file.path).parent.mkdir(parents=True, exist_ok=True)
            Path(file.path).write_text(file.text)
        folder = nodes_folder(run_dir, 1)
        folder.mkdir()
        for at, node in enumerate(nodes):
            body = to_json(renamed(preset(node), f"n{at + 1}"))
            (folder / f"{at:05d}-n{at + 1}.json").write_text(json.dumps(body))
        number = count or len(nodes)
        return Job(run_dir=run_dir, parts=run_dir / "launch" / "run-1.json", attempt=1, num_nodes=number)

    return build


def plan_in(job: Job) -> Plan:
    return loads((job.run_dir / "plan.json").read_text())


def events(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.run_dir / "events.jsonl").read_text().splitlines()]


def test_nodes_as_planned_leave_the_plan_alone(planned: Planned) -> None:
    job = planned("dgx_h100", "dgx_h100")
    before = (job.run_dir / "plan.json").read_bytes()
    assert check(job, {}) == ("the nodes are as planned (same fingerprint)",)
    assert (job.run_dir / "plan.json").read_bytes() == before
    assert [part.node for part in load_job(job.parts.read_text()).parts] == ["n1"]
    (told,) = events(job)
    assert (told["event"], told["nodes"], told["differences"]) == ("topology", ["n1"], [])
    assert told["fingerprint"] == told["planned"] == plan_in(job).topology_fingerprint


def test_another_machine_is_planned_for_as_if_it_had_been_known(planned: Planned) -> None:
    """The same pure function: the plan of the job is the one that planning for its nodes at first gives."""
    job = planned("dgx_h100", "pcie_4090x2", options=("seed=3",))
    old = plan_in(job)
    lines = check(job, {})
    new = plan_in(job)
    assert lines[0] == "not as planned: n1: 2 x NVIDIA GeForce RTX 4090, the plan is for 2 x NVIDIA H100 80GB HBM3"
    assert new.topology_fingerprint != old.topology_fingerprint
    assert "RTX 4090" in new.machine
    assert (new.run_config.seed, new.run_id) == (3, old.run_id)
    config = slurm_check.new_config(old, job.nodes_folder, 1)
    assert plan_of(config, gather(config), old.run_id, {}) == new
    assert (job.run_dir / "plan.1.json").read_bytes() == (job.run_dir / "plan.json").read_bytes()
    devices = json.loads((job.run_dir / "topology.json").read_text())["hosts"][0]["devices"]
    assert set(new.chosen.strategy.device_ids) <= {device["id"] for device in devices}
    parts = load_job(job.parts.read_text()).parts
    assert [(part.node, part.processes) for part in parts] == [("n1", new.chosen.strategy.processes_per_node)]
    told = events(job)
    assert [entry["event"] for entry in told] == ["topology", "replanned"]
    assert (told[1]["old_hash"], told[1]["new_hash"]) == (old.plan_hash, new.plan_hash)
    # The next attempt on such nodes finds them as planned.
    again = replace(job, attempt=2)
    job.nodes_folder.rename(again.nodes_folder)
    assert check(again, {}) == ("the nodes are as planned (same fingerprint)",)


def test_a_job_that_is_to_stop_says_what_differs_and_leaves_all_as_it_is(planned: Planned) -> None:
    job = planned("dgx_h100", "dgx_a100", options=("launch.on_drift=stop",))
    before = {path: path.read_bytes() for path in job.run_dir.glob("*.json")}
    with pytest.raises(UserError) as caught:
        check(job, {})
    assert int(caught.value.exit_code) == 2
    (problem,) = caught.value.problems
    assert problem.where == "launch.on_drift=stop"
    assert problem.found == "n1: 8 x NVIDIA A100-SXM4-80GB, the plan is for 2 x NVIDIA H100 80GB HBM3"
    assert {path: path.read_bytes() for path in before} == before
    assert events(job)[0]["differences"] == [problem.found]


def test_more_devices_than_there_are_is_no_reason_to_give_up(planned: Planned) -> None:
    job = planned("8x4090", "pcie_4090x2", options=("devices=8",))
    assert "note: devices=8 were asked for, 2 are there" in check(job, {})
    assert plan_in(job).chosen.strategy.world_size <= 2


def test_no_new_plan_turns_gpus_into_cpus(planned: Planned) -> None:
    job = planned("rtx4090", "cpu", options=("devices=1",))
    with pytest.raises(UserError, match="a plan for gpus: n1: ") as caught:
        check(job, {})
    assert "launch.gres" in caught.value.problems[0].remedy


def test_a_node_that_tells_nothing(planned: Planned) -> None:
    job = planned("dgx_h100", "dgx_h100", count=2)
    assert check(job, {}) == ("note: 1 of 2 nodes have told what they are (n1): the plan is not compared with them",)


def test_a_node_that_tells_nothing_where_drift_is_to_stop_the_job(planned: Planned) -> None:
    job = planned("dgx_h100", count=2, options=("launch.on_drift=stop",))
    with pytest.raises(UserError, match=r"0 of 2 nodes have told what they are \(none\)"):
        check(job, {})


def test_after_an_attempt_that_ended_while_it_wrote(planned: Planned) -> None:
    job = planned("dgx_h100", "dgx_h100")
    (job.run_dir / "topology.json").write_text(json.dumps(to_json(preset("pcie_4090x2"))))
    assert "not as planned: topology.json is not that of the plan" in check(job, {})
    devices = json.loads((job.run_dir / "topology.json").read_text())["hosts"][0]["devices"]
    assert set(plan_in(job).chosen.strategy.device_ids) <= {device["id"] for device in devices}


def test_a_gpu_that_is_lost_within_the_job_is_not_shown_to_the_ranks(planned: Planned) -> None:
    job = planned("dgx_h100", "dgx_h100", options=("devices=8", "batch.global=64"))
    check(job, {})
    config = slurm_check.new_config(plan_in(job), job.nodes_folder, 1)
    inputs = gather(config)
    first = plan_of(config, inputs, "run", {})
    gone = first.chosen.strategy.device_ids[2]
    found = replanned(config, first, inputs, Ended(kind=Kind.device_lost, attempt=1, devices=(gone,)), {})
    run = RunDir(path=job.run_dir, resuming=True)

    def shown(plan: Plan, topology: Topology) -> str | None:
        files = files_of_plan(plan, topology, run, job.parts, {})
        (text,) = [file.text for file in files if file.path == str(job.parts)]
        (part,) = load_job(text).parts
        return dict(part.env).get("CUDA_VISIBLE_DEVICES")

    assert shown(first, inputs.topology) is None
    own = (shown(found.plan, found.topology) or "").split(",")
    uuids = {device.id: device.uuid or device.id for device in inputs.topology.devices}
    assert own == [uuids[name] for name in found.plan.chosen.strategy.device_ids]
    assert uuids[gone] not in own
    assert 1 <= len(own) <= 7
