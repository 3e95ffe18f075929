"""The generated batch script on a real SLURM: stopped and requeued, a lost node, scancel, arrays, GPUs."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch.backends import slurm as backend
from launch.execute import write_files
from launch.slurm_options import SlurmOptions
from launch.spec import DeviceKind, HostShare, LaunchSpec

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def submit(lab: Any, run_dir: Path, mode: str, options: SlurmOptions, **changes: Any) -> str:
    """Submit ranks of `rank.py`, one on each of two nodes; returns the job's number."""
    (run_dir / "logs").mkdir(parents=True)
    given = {
        "module": "rank",
        "args": (mode,),
        "run_dir": str(run_dir),
        "num_nodes": 2,
        "processes_per_node": 1,
        "env": (("PYTHONPATH", f"{Path(__file__).parent}:{ROOT}"), ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")),
        "python": sys.executable,
        "name": "job-1",
        "device_kind": DeviceKind.cpu,
    }
    request = backend.build(LaunchSpec(**{**given, **changes}), options, prepare="this")
    write_files(request)
    (run_dir / "plan.json").write_text("{}")
    return lab.run(*request.argv).strip()


def state(lab: Any, job: str) -> str:
    words = lab.run("scontrol", "show", "job", "-o", job).split()
    return next(word.partition("=")[2] for word in words if word.startswith("JobState="))


def told(run_dir: Path, restart: int, count: int = 2) -> list[dict[str, Any]]:
    """What the ranks of that start wrote, in the order of ranks; none as long as one is missing."""
    paths = [run_dir / f"rank-{rank}.{restart}.json" for rank in range(count)]
    return [json.loads(path.read_text()) for path in paths] if all(path.exists() for path in paths) else []


def test_a_fine_tune_is_stopped_requeued_and_goes_on(
    slurm: Any,
    tmp_path: Path,
    command: Callable[..., list[str]],
    wait_for: Callable[..., Any],
    records: Callable[[Path], list[dict[str, Any]]],
) -> None:
    """One job on two nodes shows the life of a preempted run, seen from the command and from another shell."""
    run_dir = tmp_path / "run"
    metrics = run_dir / "metrics.jsonl"

    def ask(verb: str, *more: str) -> str:
        words = command(verb, str(run_dir), *more)
        return subprocess.run(words, env=slurm.env, capture_output=True, text=True, check=True, timeout=60).stdout

    process = subprocess.Popen(
        command(
            *("train", "experiment=demo", "launch=slurm", "launch.nodes=2", "devices=2", "launch.submit=true"),
            *("batch.max_steps=20", "batch.global=4", "checkpoint.every=0", "data.max_rows=60", "data.max_eval_rows=4"),
            f"run_dir={run_dir}",
        ),
        cwd=tmp_path,
        env=slurm.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(lambda: sum("loss" in line for line in records(metrics)) >= 2, "two steps", seconds=240)
        job = json.loads((run_dir / "launch" / "submitted.json").read_text())["job"]
        # What a preemption or the time limit sends, to the script alone.
        slurm.run("scancel", "--batch", "--signal=USR1", job)
        wait_for((run_dir / "plan.2.json").exists, "the second start", seconds=120)
        seen = json.loads(ask("status", "format=json"))
        assert (seen["status"], seen["attempt"]) == ("running", 2)
        assert (seen["job"]["id"], seen["job"]["state"]) == (job, "RUNNING")
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, output
    steps = [line["step"] for line in records(metrics) if "loss" in line]
    assert steps == list(range(1, 21))
    attempts = records(run_dir / "attempts.jsonl")
    assert [entry["what"] for entry in attempts] == ["start", "stopped", "requeue", "start", "done"]
    assert [entry["attempt"] for entry in attempts] == [1, 1, 1, 2, 2]
    assert (run_dir / "plan.2.json").read_bytes() == (run_dir / "plan.json").read_bytes()
    assert "USR1 received" in output
    assert "restart 1" in output
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["world_size"]) == ("done", 20, 2)
    losses = [line["loss"] for line in records(metrics) if "loss" in line]
    assert losses[-1] < losses[0]
    assert "done" in ask("status")
    assert "USR1 received" in ask("logs")
    assert len(list((run_dir / "logs" / "host1").rglob("stdout.log"))) == 2


def test_a_lost_node_is_a_requeue_and_scancel_leaves_no_process(
    slurm: Any, tmp_path: Path, wait_for: Callable[..., Any], processes_of: Callable[[Path], list[psutil.Process]]
) -> None:
    job = submit(slurm, tmp_path / "run", "wait", SlurmOptions(signal_seconds=0))
    run_dir = tmp_path / "run"
    first = wait_for(lambda: told(run_dir, 0), "ranks of the first start")
    assert [body["SLURMD_NODENAME"] for body in first] == ["node1", "node2"]
    slurm.run("scontrol", "update", "nodename=node2", "state=DOWN", "reason=test")
    wait_for(lambda: state(slurm, job) == "PENDING", "the job back in the queue")
    if "down" in slurm.run("sinfo", "-h", "-n", "node2", "-o", "%T"):  # else its daemon has reported back already
        slurm.run("scontrol", "update", "nodename=node2", "state=RESUME")
    second = wait_for(lambda: told(run_dir, 1), "ranks of the second start", seconds=120)
    old = {body["pid"] for body in first}
    assert not old & {process.pid for process in processes_of(run_dir)}
    assert {body["pid"] for body in second} <= {process.pid for process in processes_of(run_dir)}
    slurm.run("scancel", job)
    wait_for(lambda: not processes_of(run_dir), "no process after scancel", seconds=30)
    wait_for(lambda: state(slurm, job) == "CANCELLED", "the job cancelled")


def test_an_array_is_a_chain_and_gpus_are_those_of_the_node(
    slurm: Any, tmp_path: Path, wait_for: Callable[..., Any], records: Callable[[Path], list[dict[str, Any]]]
) -> None:
    """A dry job with two GPUs on each of two nodes; the second job of the chain finds the run done."""
    run_dir = tmp_path / "run"
    options = SlurmOptions(array="1-2%1", signal_seconds=60, time="5")
    job = submit(slurm, run_dir, "tell", options, processes_per_node=2, device_kind=DeviceKind.gpu)
    wait_for(lambda: not slurm.run("squeue", "-h", "-j", job).strip(), "the end of the chain", seconds=90)
    outputs = [(run_dir / "logs" / f"slurm-{job}_{at}.out").read_text() for at in (1, 2)]
    ranks = told(run_dir, 0, 4)
    assert ranks, outputs
    assert [body["CUDA_VISIBLE_DEVICES"] for body in ranks] == ["0,1"] * 4
    assert [body["SLURMD_NODENAME"] for body in ranks] == ["node1", "node1", "node2", "node2"]
    assert [body["LOCAL_RANK"] for body in ranks] == ["0", "1", "0", "1"]
    assert f"nothing to do in {run_dir}" in outputs[1]
    assert [entry["what"] for entry in records(run_dir / "attempts.jsonl")] == ["start", "done"]


@pytest.mark.slow
def test_gpus_of_nodes_that_differ(slurm: Any, tmp_path: Path, wait_for: Callable[..., Any]) -> None:
    """Two ranks on a node of two GPUs, one on a node of one, which has half the cores."""
    run_dir = tmp_path / "run"
    options = SlurmOptions(partition="all", nodelist="node[2-3]", time="5", signal_seconds=0)
    hosts = (HostShare(processes=2), HostShare(processes=1))
    gpus: dict[str, Any] = {"device_kind": DeviceKind.gpu, "processes_per_node": 2, "hosts": hosts}
    job = submit(slurm, run_dir, "tell", options, threads_per_process=2, **gpus)
    wait_for(lambda: not slurm.run("squeue", "-h", "-j", job).strip(), "the end of the job", seconds=90)
    ranks = told(run_dir, 0, 3)
    assert ranks, (run_dir / "logs" / f"slurm-{job}.out").read_text()
    assert [body["SLURMD_NODENAME"] for body in ranks] == ["node2", "node2", "node3"]
    assert [body["CUDA_VISIBLE_DEVICES"] for body in ranks] == ["0,1", "0,1", "0"]
    assert [body["LOCAL_RANK"] for body in ranks] == ["0", "1", "0"]


def test_sbatchs_refusal_comes_with_our_line(slurm: Any, tmp_path: Path, command: Callable[..., list[str]]) -> None:
    done = subprocess.run(
        command(
            *("train", "experiment=demo", "launch=slurm", "launch.nodes=2", "devices=2", "launch.submit=true"),
            *("launch.partition=nowhere", f"run_dir={tmp_path / 'run'}"),
        ),
        cwd=tmp_path,
        env=slurm.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "#SBATCH --partition=nowhere: sbatch refused it: invalid partition specified: nowhere" in done.stderr


@pytest.mark.slow
def test_cancel_and_ctrl_c_from_without(
    slurm: Any, tmp_path: Path, command: Callable[..., list[str]], wait_for: Callable[..., Any]
) -> None:
    """Without a terminal Ctrl-C leaves the job alone; `cancel` ends one that waits."""
    run_dir = tmp_path / "run"
    slurm.run("scontrol", "update", "partitionname=main", "state=DOWN")  # jobs wait
    try:
        process = subprocess.Popen(
            command(
                *("train", "experiment=demo", "launch=slurm", "launch.nodes=2", "devices=2", "launch.submit=true"),
                f"run_dir={run_dir}",
            ),
            cwd=tmp_path,
            env=slurm.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        line = next(line for line in process.stdout if ": pending" in line)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0, rest
        assert f"goes on; to end it: trainmaster cancel {run_dir}" in rest
        job = line.split()[1].rstrip(":")
        assert state(slurm, job) == "PENDING"
        words = command("train", f"resume={run_dir}")
        again = subprocess.run(words, env=slurm.env, capture_output=True, text=True, check=False, timeout=60)
        assert again.returncode == 2, again.stdout
        assert f"in use by job {job}: pending" in again.stderr
        words = command("cancel", str(run_dir))
        done = subprocess.run(words, env=slurm.env, capture_output=True, text=True, check=True, timeout=60)
        assert f"cancelled job {job}" in done.stdout
        wait_for(lambda: state(slurm, job) == "CANCELLED", "the job cancelled")
        assert (run_dir / "cancelled").exists()
        code, shown = at_a_terminal(command("train", f"resume={run_dir}"), slurm.env, tmp_path, answer="c")
        assert code == 75, shown
        assert "leave the job running (Enter), or cancel it (c)?" in shown
        assert "cancelled before the ranks could save" in shown
    finally:
        slurm.run("scontrol", "update", "partitionname=main", "state=UP")


def at_a_terminal(words: list[str], env: dict[str, str], cwd: Path, *, answer: str) -> tuple[int, str]:
    """Run a command with a terminal, interrupt it when its job waits and answer what it asks."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, env=env, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, is_interrupted, is_answered = "", False, False
    try:
        while select.select([ours], [], [], 120)[0]:
            try:
                shown += os.read(ours, 4096).decode()
            except OSError:  # the other side is closed
                break
            if ": pending" in shown and not is_interrupted:
                process.send_signal(signal.SIGINT)
                is_interrupted = True
            if "cancel it (c)?" in shown and not is_answered:
                os.write(ours, f"{answer}\n".encode())
                is_answered = True
        return process.wait(timeout=60), shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_tasks_of_srun_are_ranks(slurm: Any, tmp_path: Path, command: Callable[..., list[str]]) -> None:
    """Without any launcher: rank, size and the meeting point come from SLURM's own variables."""
    run_dir = tmp_path / "run"
    few = ("batch.max_steps=1", "batch.global=4", "data.max_rows=40", "data.max_eval_rows=2", "checkpoint.every=0")
    words = command("plan", "experiment=demo", "devices=2", *few, f"run_dir={run_dir}")
    subprocess.run(words, env=slurm.env, capture_output=True, check=True, timeout=60)
    worker = (sys.executable, "-m", "orchestrator.train.worker", str(run_dir / "plan.json"))
    # The lab's nodes have names that nothing resolves.
    slurm.run("srun", "-N2", "-n2", "--export=ALL,MASTER_ADDR=127.0.0.1,PYTHONSAFEPATH=1", *worker, timeout=200)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["world_size"]) == ("done", 2)
