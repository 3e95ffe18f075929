"""From a plan for hosts with 2 and 1 devices to what each launcher is told, whole, and from hostfiles to such plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch import backends
from launch.backends import slurm
from launch.host_job import loads as load_job
from launch.hosts import NamedHost
from launch.request import render
from launch.slurm_options import SlurmOptions
from launch.spec import Backend
from orchestrator.cli import main
from orchestrator.config import Backend as BackendKey
from orchestrator.config import BatchConfig, DataConfig, LaunchConfig, ModelConfig, RunConfig, TopologyConfig
from orchestrator.drift import compare, places_of_nodes, places_of_plan
from orchestrator.errors import UserError
from orchestrator.lower import launch_spec
from orchestrator.machine import machine_to_plan_for
from orchestrator.named_hosts import ranks_of_hosts
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan
from orchestrator.workload.batch import DataStats
from orchestrator.workload.named import preset_shape
from topology.model import Topology
from topology.presets import preset

GOLDEN = Path(__file__).with_name("golden")
STATS = DataStats(rows=1000, eval_rows=0, mean_tokens=350.0, max_tokens=1100, total_tokens=350_000, source="counted")
NAMES = [NamedHost(name="big"), NamedHost(name="small")]
MODULES = {
    "measure": "orchestrator.slurm_node",
    "compare": "orchestrator.slurm_check",
    "watch": "orchestrator.slurm_supervise",
}


def config(launch: LaunchConfig | None = None, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "model": ModelConfig(path="llama-3-8b"),
        "data": DataConfig(path="rows.jsonl"),
        "topology": TopologyConfig(path="machines"),
        "batch": BatchConfig(global_=24),
        "nodes": 2,
        "launch": launch or LaunchConfig(),
    }
    return RunConfig(**{**fields, **changes})


@pytest.fixture(scope="module")
def machine() -> Topology:
    """Two RTX 4090 on one host, one on another with fewer cores."""
    drawn = preset("2x24gb-pcie", nodes=2)
    first, second = drawn.hosts
    gone = second.devices[1].id
    return replace(
        drawn,
        hosts=(first, replace(second, cores=4, devices=second.devices[:1])),
        links=tuple(link for link in drawn.links if gone not in {link.a, link.b}),
        pairs=tuple(pair for pair in drawn.pairs if gone not in {pair.a, pair.b}),
    )


@pytest.fixture(scope="module")
def plan(machine: Topology) -> Plan:
    return make_plan(config(devices=3), machine, preset_shape("llama-3-8b"), STATS, "run-1")


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "slurm"])
def test_whole_dry_runs(plan: Plan, machine: Topology, launcher: str) -> None:
    launch = LaunchConfig(backend=BackendKey(launcher))
    wanted = replace(plan, config={**plan.config, "launch": {**plan.config["launch"], "backend": launcher}})
    named = () if launch.backend is BackendKey.slurm else NAMES
    spec = launch_spec(wanted, "/runs/a", "/venv/bin/python", topology=machine, named=named)
    threads = (None, None) if launcher == "slurm" else (8, 4)
    assert [(share.processes, share.threads) for share in spec.shares] == list(zip((2, 1), threads, strict=True))
    if launch.backend is BackendKey.slurm:
        request = slurm.build(spec, SlurmOptions(signal_seconds=0), prepare="orchestrator.train.prepare", **MODULES)
    else:
        request = backends.build(Backend(launcher), spec)
    assert render(request) == (GOLDEN / f"{launcher}-2+1.sh").read_text()


def test_hosts_with_the_numbers_of_the_plan_stand_for_it(plan: Plan, machine: Topology) -> None:
    """In any order; one GPU less is told."""
    planned = places_of_plan(plan, machine)
    assert [place.ranks for place in planned] == [2, 1]
    names = [host.name for host in machine.hosts]
    found = places_of_nodes(machine, names[::-1])
    assert compare(planned, found).nodes == tuple(names)
    alone = preset("1x24gb")
    assert compare(planned, [*found[:1], *places_of_nodes(alone, [alone.hosts[0].name])]).differences


def test_slots_of_a_hostfile_are_the_ranks_of_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=1\nb slots=2\n")
    launch = LaunchConfig(hostfile=str(file))
    cpus = preset("cpu", nodes=2)
    assert ranks_of_hosts(config(launch), cpus) == (1, 2)
    assert ranks_of_hosts(config(launch, devices=3), cpus) == (1, 2)
    assert ranks_of_hosts(config(launch, devices=2), cpus) == (1, 1)
    assert ranks_of_hosts(config(LaunchConfig(hosts=("a", "b")), devices=3), cpus) == (2, 1)
    assert ranks_of_hosts(config(devices=3), cpus) == ()
    with pytest.raises(UserError, match="4 ranks on 2 hosts"):
        ranks_of_hosts(config(launch, devices=4), cpus)
    quads = preset("4xv100-16gb", nodes=2)
    assert ranks_of_hosts(config(launch), quads) == (1, 2)
    assert ranks_of_hosts(config(launch, devices=5), quads) == ()  # the search's to say, or the slots' to refuse
    file.write_text("a slots=4\nb slots=4\n")
    assert ranks_of_hosts(config(launch), quads) == ()


def test_cpu_hosts_that_are_named_are_like_the_one_described() -> None:
    launch = LaunchConfig(hosts=("a", "b", "c"))
    drawn = config(launch, topology=TopologyConfig(preset="cpu"), nodes=1)
    assert len(machine_to_plan_for(drawn).hosts) == 3
    assert len(machine_to_plan_for(replace(drawn, launch=LaunchConfig())).hosts) == 1
    assert len(machine_to_plan_for(replace(drawn, launch=LaunchConfig(), nodes=2)).hosts) == 2
    gpus = config(launch, topology=TopologyConfig(preset="2x24gb-pcie"), nodes=1)
    assert len(machine_to_plan_for(gpus).hosts) == 1


def test_a_dry_run_on_cpu_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`topology=cpu nodes=2 devices=3`, from the command to the parts of both hosts."""
    words = ["experiment=demo", "topology=cpu", "nodes=2", "devices=3", "launch.hosts=[a,b]", "dry_run=true"]
    assert main(["train", *words, f"run_dir={tmp_path}/run", "format=json"]) == 0
    body = json.loads(capsys.readouterr().out)
    (described,) = [file["text"] for file in body["launch"]["files"] if file["path"].endswith("-1.json")]
    parts = load_job(described).parts
    assert [(part.name, part.processes) for part in parts] == [("a", 2), ("b", 1)]
    assert [dict(part.env)["OMP_NUM_THREADS"] for part in parts] == ["1", "2"]
