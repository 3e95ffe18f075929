"""What the nodes are: asked from a login node, and compared with the plan inside the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.backends import slurm as backend
from launch.execute import write_files
from launch.host_job import dumps as dump_job
from launch.host_job import loads as load_job
from launch.slurm_options import SlurmOptions
from launch.spec import DeviceKind, LaunchSpec
from orchestrator.planner.plan import loads
from topology.codec import from_json
from topology.probe import read_topology

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
SMALL = ("batch.max_steps=2", "batch.global=4", "checkpoint.every=0", "data.max_rows=40", "data.max_eval_rows=2")


@pytest.fixture
def ask(slurm: Any, tmp_path: Path, command: Callable[..., list[str]]) -> Callable[..., tuple[int, str, str]]:
    """Run a command of `trainmaster` where SLURM is: exit code, output, errors."""

    def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        done = subprocess.run(
            command(*words),
            cwd=tmp_path,
            env=env or slurm.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_one_node_of_each_kind_is_asked(ask: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    code, shown, errors = ask("probe", "launch=slurm", "launch.partition=all", f"save={path}")
    assert code == 0, errors
    assert "asking node1 of 2 like it: 2 x GPU, 4 CPUs" in errors
    assert "asking node3 of 1 like it: 1 x GPU, 2 CPUs" in errors
    assert "note: node3: SLURM counts 1 GPUs, the probe saw 0" in errors  # its device file is none of a driver's
    assert "3 hosts" in shown
    found = read_topology(path)
    assert [host.name for host in found.hosts] == ["node1", "node2", "node3"]
    assert len({device.id for device in found.devices}) == len(found.devices)
    code, plan, errors = ask("plan", "experiment=demo", f"topology={path}", "nodes=2", "devices=2", "format=json")
    assert code == 0, errors
    assert json.loads(plan)["chosen"]["strategy"]["device_ids"] == ["node1/cpu0", "node2/cpu0"]


def test_a_dry_run_says_what_would_be_run(ask: Callable[..., tuple[int, str, str]]) -> None:
    code, shown, errors = ask("probe", "launch=slurm", "launch.account=team", "dry_run=true")
    assert code == 0, errors
    lines = shown.splitlines()
    assert lines[0].startswith("sinfo -h -N -p main -o ")  # where a job goes that names no partition
    assert lines[1].startswith("# 2 x GPU, 4 CPUs, 2.0 GiB of memory")
    assert lines[2].startswith("srun --job-name=trainmaster-probe --nodes=1 --ntasks=1 --nodelist=node1 ")
    assert " --gres=gpu:2 " in lines[2]
    assert " --account=team " in lines[2]


def test_what_keeps_nodes_from_being_asked(slurm: Any, ask: Callable[..., tuple[int, str, str]]) -> None:
    """A wrong partition or feature, a program that is not there, no free node, no SLURM."""
    code, _, errors = ask("probe", "launch=slurm", "launch.partition=nowhere")
    assert (code, errors) == (
        2,
        "error: launch.partition=nowhere: no partition nowhere; there are all, main, low, high. Give one of these.\n",
    )
    code, _, errors = ask("probe", "launch=slurm", "launch.constraint=none-such")
    assert code == 2
    assert "launch.constraint=none-such: srun refused the probe: Invalid feature specification" in errors
    code, _, errors = ask("probe", "launch=slurm", "launch.partition=main", "launch.venv=/nowhere")
    assert code == 2
    assert "the probe of node1 failed: " in errors
    assert "the probe of node2 failed: " in errors
    assert "sinfo tells of such nodes: 2 x GPU, 4 CPUs, 2.0 GiB of memory (2 idle)" in errors
    job = slurm.run("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 60").strip()
    try:
        code, _, errors = ask("probe", "launch=slurm", "launch.partition=main", "launch.probe_seconds=1")
    finally:
        slurm.run("scancel", job)
    assert code == 2
    assert "no node came free within 1 s; sinfo tells of such nodes: 2 x GPU, 4 CPUs" in errors
    code, _, errors = ask("probe", "launch=slurm", env=dict(os.environ))
    assert code == 2
    assert "sinfo: no such program on this host" in errors


def test_ranks_start_on_the_nodes_that_the_parts_name(
    slurm: Any, tmp_path: Path, wait_for: Callable[..., Any], records: Callable[[Path], list[dict[str, Any]]]
) -> None:
    """Nodes of two and of one GPU, a rank on each, rank 0 on the one that SLURM counts last, as planned."""
    run_dir = tmp_path / "run"
    (run_dir / "logs").mkdir(parents=True)
    spec = LaunchSpec(
        module="rank",
        args=("add",),
        run_dir=str(run_dir),
        num_nodes=2,
        processes_per_node=1,
        env=(("PYTHONPATH", f"{Path(__file__).parent}:{ROOT}"),),
        python=sys.executable,
        name="job-1",
        device_kind=DeviceKind.gpu,
    )
    request = backend.build(spec, SlurmOptions(partition="all", nodelist="node[1,3]"), prepare="this")
    write_files(request)
    (run_dir / "plan.json").write_text("{}")
    path = run_dir / "launch" / "job-1.json"
    job = load_job(path.read_text())
    parts = tuple(replace(part, node=node) for part, node in zip(job.parts, ("node3", "node1"), strict=True))
    path.write_text(dump_job(replace(job, parts=parts)))
    slurm.run(*request.argv)
    attempts = run_dir / "attempts.jsonl"
    wait_for(lambda: [entry["what"] for entry in records(attempts)][1:], "the end of the job", seconds=120)
    found = [json.loads((run_dir / f"rank-{rank}.0.json").read_text()) for rank in (0, 1)]
    assert [(body["SLURMD_NODENAME"], body["sum"]) for body in found] == [("node3", 3.0), ("node1", 3.0)]
    assert [body["CUDA_VISIBLE_DEVICES"] for body in found] == ["0", "0"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine with another CPU: what somebody may plan for elsewhere."""
    folder = tmp_path_factory.mktemp("drawn")
    words = [sys.executable, "-m", "orchestrator.cli", "probe", "format=json"]
    text = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
    body = json.loads(text)
    for device in body["hosts"][0]["devices"]:
        device["name"] = "another CPU"
    from_json(body)
    (folder / "drawn.json").write_text(json.dumps(body))
    return folder / "drawn.json"


def test_on_other_nodes_than_planned_for_the_job_stops_where_asked_to(
    ask: Callable[..., tuple[int, str, str]], tmp_path: Path, drawn: Path
) -> None:
    run_dir = tmp_path / "run"
    own = ("launch=slurm", "launch.submit=true", "launch.on_drift=stop", f"topology={drawn}", f"run_dir={run_dir}")
    code, shown, errors = ask("train", "experiment=demo", "devices=1", *SMALL, *own)
    assert code == 2, shown
    assert "error: launch.on_drift=stop: node" in errors
    assert ", the plan is for 1 x another CPU. Plan with" in errors
    assert not (run_dir / "metrics.jsonl").exists()
    assert not (run_dir / "plan.2.json").exists()


@pytest.mark.slow
def test_or_it_plans_anew_once_and_every_rank_reads_that_plan(
    ask: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    drawn: Path,
    records: Callable[[Path], list[dict[str, Any]]],
) -> None:
    run_dir = tmp_path / "run"
    own = ("launch=slurm", "launch.nodes=2", "launch.submit=true", f"topology={drawn}", f"run_dir={run_dir}")
    code, shown, errors = ask("train", "experiment=demo", "devices=2", *SMALL, *own)
    assert code == 0, shown + errors
    assert "not as planned: node2: " in shown
    assert "planned anew: ddp on 2 ranks" in shown
    told = {entry["event"]: entry for entry in records(run_dir / "events.jsonl")}
    plan = loads((run_dir / "plan.json").read_text())
    assert plan.topology_fingerprint == told["topology"]["fingerprint"] != told["topology"]["planned"]
    assert told["replanned"]["new_hash"] == plan.plan_hash != told["replanned"]["old_hash"]
    assert "another CPU" not in plan.machine
    assert (run_dir / "plan.1.json").read_bytes() == (run_dir / "plan.json").read_bytes()
    assert [host.name for host in read_topology(run_dir / "topology.1.json").hosts] == ["node1", "node2"]
    # All ranks start with the path of that one file, and none before it stood there.
    parts = json.loads((run_dir / "launch" / "run-1.json").read_text())["parts"]
    assert {part["argv"][-1] for part in parts} == {str(run_dir / "plan.json")}
    assert (run_dir / "plan.json").stat().st_mtime < min(x.stat().st_mtime for x in run_dir.glob("logs/host*"))
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["world_size"], summary["steps"]) == ("done", 2, 2)
