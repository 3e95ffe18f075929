"""From keys and plan to hosts with their ranks and devices, for ssh and for SLURM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.errors import LaunchError
from launch.hosts import NamedHost
from launch.spec import HostShare
from orchestrator.cli import main
from orchestrator.config import Backend, DataConfig, LaunchConfig, ModelConfig, RunConfig, TopologyConfig
from orchestrator.errors import UserError
from orchestrator.launch_inputs import check_keys, named_hosts, slurm_options
from orchestrator.lower import launch_spec
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from topology.model import Topology
from topology.presets import preset

TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}
STATS = DataStats(rows=100, eval_rows=0, mean_tokens=50.0, max_tokens=100, total_tokens=5000, source="counted")
SLURM = LaunchConfig(backend=Backend.slurm)


def planned(machine: str, nodes: int = 1, **changes: Any) -> tuple[Plan, Topology]:
    topology = preset(machine, nodes=nodes)
    config = RunConfig(
        model=ModelConfig(path="tiny"),
        data=DataConfig(path="rows.jsonl"),
        topology=TopologyConfig(preset=machine),
        nodes=nodes,
    )
    config = replace(config, **changes)
    return make_plan(config, topology, shape_from_config("tiny", TINY), STATS, "run-1"), topology


def named(*names: str) -> list[NamedHost]:
    return [NamedHost(name=name) for name in names]


def test_planned_hosts_get_their_names_and_devices() -> None:
    plan, topology = planned("2x24gb-pcie", nodes=2, devices=4)
    spec = launch_spec(plan, "/runs/a", "python", topology=topology, named=named("a", "b"))
    assert [(host.name, host.processes) for host in spec.hosts] == [("a", 2), ("b", 2)]
    for host, machine in zip(spec.hosts, topology.hosts, strict=True):
        assert set(host.device_ids) == {device.uuid or device.id for device in machine.devices}


def test_under_slurm_nodes_have_neither() -> None:
    plan, topology = planned("2x24gb-pcie", nodes=2, devices=4, launch=SLURM)
    spec = launch_spec(plan, "/runs/a", "python", topology=topology)
    assert spec.hosts == (HostShare(processes=2),) * 2
    assert spec.device_ids == ()


def test_as_many_names_as_hosts_were_planned_for() -> None:
    plan, topology = planned("2x24gb-pcie", nodes=2, devices=4)
    with pytest.raises(UserError, match="1 named, the plan is for 2"):
        launch_spec(plan, "/runs/a", "python", topology=topology, named=named("a"))
    hosts = [NamedHost(name="a", slots=2), NamedHost(name="b", slots=1)]
    with pytest.raises(UserError, match=r"too few slots: b \(slots=1, 2 ranks\)"):
        launch_spec(plan, "/runs/a", "python", topology=topology, named=hosts)


def test_gpus_of_one_host_are_not_spread_over_several() -> None:
    plan, topology = planned("2x24gb-pcie", devices=2)
    with pytest.raises(UserError, match="for the GPUs of one"):
        launch_spec(plan, "/runs/a", "python", topology=topology, named=named("a", "b"))
    spec = launch_spec(plan, "/runs/a", "python", topology=topology, named=named("a"))
    assert [host.name for host in spec.hosts] == ["a"]
    assert len(spec.hosts[0].device_ids) == 2


def test_cpu_ranks_are_spread() -> None:
    plan, topology = planned("cpu", devices=3)
    hosts = [NamedHost(name="a", slots=2), NamedHost(name="b", slots=1)]
    spec = launch_spec(plan, "/runs/a", "python", topology=topology, named=hosts)
    assert [(host.name, host.processes) for host in spec.hosts] == [("a", 2), ("b", 1)]
    assert (spec.num_nodes, spec.processes_per_node, spec.world_size) == (2, 2, 3)
    plan, topology = planned("cpu", devices=3, launch=replace(SLURM, nodes=2))
    assert [host.processes for host in launch_spec(plan, "/runs/a", "python").shares] == [2, 1]
    plan, _ = planned("cpu", devices=1)
    with pytest.raises(LaunchError):
        launch_spec(plan, "/runs/a", "python", named=named("a", "b"))


def test_interfaces_and_ssh() -> None:
    plan, topology = planned("2xa100-40gb+2xt4", nodes=1, devices=4)
    spec = launch_spec(plan, "/runs/a", "python", topology=topology, named=named("a", "b"))
    assert spec.interfaces == ("eth0",)
    own = replace(LaunchConfig(), interface="ib0", ssh="ssh -p 2222 -i 'my key'", join_seconds=9)
    plan, topology = planned("cpu", devices=2, launch=own)
    spec = launch_spec(plan, "/runs/a", "python", topology=topology, named=named("a", "b"))
    assert (spec.interfaces, spec.join_seconds) == (("ib0",), 9)
    assert spec.ssh == ("ssh", "-p", "2222", "-i", "my key")
    plan, topology = planned("cpu", devices=2, launch=replace(own, ssh="ssh 'x"))
    with pytest.raises(LaunchError, match="close the quotes"):
        launch_spec(plan, "/runs/a", "python", topology=topology, named=named("a", "b"))


def test_hosts_by_name_or_by_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\n")
    assert named_hosts(LaunchConfig(hosts=("a", "b"))) == tuple(named("a", "b"))
    assert named_hosts(LaunchConfig(hostfile=str(file))) == (NamedHost(name="a", slots=2),)
    assert named_hosts(LaunchConfig()) == ()
    with pytest.raises(UserError, match="Give one of the two"):
        named_hosts(LaunchConfig(hosts=("a",), hostfile=str(file)))
    with pytest.raises(UserError, match="No such file"):
        named_hosts(LaunchConfig(hostfile=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("launch", "keys"),
    [
        (LaunchConfig(partition="x", submit=True), "launch.submit, launch.partition"),
        (LaunchConfig(backend=Backend.local, hosts=("a",)), "launch.hosts"),
        (LaunchConfig(backend=Backend.slurm, ssh="x"), "launch.ssh"),
    ],
)
def test_keys_of_another_launcher_are_refused(launch: LaunchConfig, keys: str) -> None:
    with pytest.raises(UserError) as caught:
        check_keys(launch)
    assert caught.value.problems[0].where == keys


def test_options_of_the_job() -> None:
    options = slurm_options(replace(SLURM, partition="gpu", modules=("cuda", "gcc"), max_requeues=3))
    assert (options.partition, options.modules, options.mounts, options.max_requeues) == ("gpu", ("cuda", "gcc"), (), 3)


def test_the_dry_run_shows_the_script_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["experiment=demo", "launch=slurm", "launch.nodes=2", "devices=2", "launch.partition=gpu", "dry_run=true"]
    assert main(["train", *words, "format=json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert "prepare" not in body
    (script,) = [file["text"] for file in body["launch"]["files"] if file["path"].endswith("job.sbatch")]
    assert "#SBATCH --partition=gpu\n#SBATCH --signal" in script
    assert list(tmp_path.iterdir()) == []
    assert main(["train", *words]) == 0
    assert "#SBATCH --partition=gpu" in capsys.readouterr().out


def test_several_hosts_need_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "experiment=demo", "topology=2x24gb-pcie", "nodes=2", "dry_run=true"]) == 2
    assert "launch.hosts=[a,b]" in capsys.readouterr().err
    words = ["topology=2x24gb-pcie", "nodes=2", "devices=4", "launch.hosts=a,b", "dry_run=true", "format=json"]
    assert main(["train", "experiment=demo", *words]) == 0
    assert "launch.fan_out" in json.loads(capsys.readouterr().out)["launch"]["argv"]
