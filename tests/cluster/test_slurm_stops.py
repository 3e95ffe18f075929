"""What ends a job before its run is done: its time limit, a job of more priority, and no more restarts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.backends import slurm as backend
from launch.execute import write_files
from launch.slurm_options import SlurmOptions
from launch.spec import DeviceKind, LaunchSpec

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
TRAINING = (
    *("train", "experiment=demo", "devices=1", "batch.max_steps=14", "batch.global=4", "checkpoint.every=0"),
    *("data.max_rows=60", "data.max_eval_rows=2", "eval.before=false"),
)


def submit(lab: Any, run_dir: Path, options: SlurmOptions) -> str:
    """Submit one rank of `rank.py` that waits to be asked to stop; returns the job's number."""
    (run_dir / "logs").mkdir(parents=True)
    spec = LaunchSpec(
        module="rank",
        args=("stop",),
        run_dir=str(run_dir),
        processes_per_node=1,
        env=(("PYTHONPATH", f"{Path(__file__).parent}:{ROOT}"),),
        python=sys.executable,
        name="job-1",
        device_kind=DeviceKind.cpu,
    )
    request = backend.build(spec, options, prepare="this")
    write_files(request)
    (run_dir / "plan.json").write_text("{}")
    return str(lab.run(*request.argv)).strip()


def fields(lab: Any, job: str) -> dict[str, str]:
    words = lab.run("scontrol", "show", "job", "-o", job).split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def take_node_of(lab: Any, job: str) -> str:
    """Submit a short job of more priority to the node of that one."""
    node = fields(lab, job)["NodeList"]
    words = ("sbatch", "--parsable", "--partition=high", f"--nodelist={node}", "--exclusive", "--output=/dev/null")
    return str(lab.run(*words, "--wrap=sleep 1")).strip()


@pytest.mark.slow
def test_a_time_limit_that_nears_is_a_requeue(
    slurm: Any, tmp_path: Path, wait_for: Callable[..., Any], records: Callable[[Path], list[dict[str, Any]]]
) -> None:
    # Due 10 s after the start; SLURM looks twice a minute.
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, SlurmOptions(time="10", signal_seconds=590))
    wait_for((run_dir / "rank-0.1.json").exists, "the rank of the second start", seconds=150)
    wait_for(lambda: fields(slurm, job)["JobState"] == "COMPLETED", "the end of the job")
    attempts = records(run_dir / "attempts.jsonl")
    assert [entry["what"] for entry in attempts] == ["start", "stopped", "requeue", "start", "done"]
    assert [entry["restart"] for entry in attempts] == [0, 0, 0, 1, 1]
    assert "USR1 received" in (run_dir / "logs" / f"slurm-{job}.out").read_text()


def test_without_another_restart_a_preempted_job_ends_resumable(
    slurm: Any, tmp_path: Path, wait_for: Callable[..., Any], records: Callable[[Path], list[dict[str, Any]]]
) -> None:
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, SlurmOptions(partition="low", signal_seconds=0, max_requeues=0))
    wait_for((run_dir / "rank-0.0.json").exists, "the rank")
    take_node_of(slurm, job)
    wait_for(lambda: fields(slurm, job)["JobState"] == "FAILED", "the end of the job")
    assert fields(slurm, job)["ExitCode"] == "75:0"
    assert [entry["what"] for entry in records(run_dir / "attempts.jsonl")] == ["start", "stopped"]
    assert "not requeued: launch.max_requeues=0" in (run_dir / "logs" / f"slurm-{job}.out").read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float]]:
    """Steps and losses of the training that nothing interrupts."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    words = [sys.executable, "-m", "orchestrator.cli", *TRAINING, f"run_dir={run_dir}"]
    subprocess.run(words, cwd=run_dir.parent, capture_output=True, check=True, timeout=200)
    return curve(run_dir)


def curve(run_dir: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


@pytest.mark.slow
def test_a_preempted_fine_tune_goes_on_as_if_nothing_had_been(
    slurm: Any,
    tmp_path: Path,
    command: Callable[..., list[str]],
    wait_for: Callable[..., Any],
    records: Callable[[Path], list[dict[str, Any]]],
    undisturbed: list[tuple[int, float]],
) -> None:
    """A job of more priority takes the node: checkpoint, requeue, resume; `logs` follows through all of it."""
    run_dir = tmp_path / "run"
    own = ("launch=slurm", "launch.partition=low", "launch.submit=true", "launch.follow=false", f"run_dir={run_dir}")
    subprocess.run(command(*TRAINING, *own), cwd=tmp_path, env=slurm.env, check=True, capture_output=True, timeout=60)
    job = json.loads((run_dir / "launch" / "submitted.json").read_text())["job"]
    follower = subprocess.Popen(
        command("logs", str(run_dir), "follow=true"), env=slurm.env, stdout=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: sum("loss" in x for x in records(run_dir / "metrics.jsonl")) >= 2, "two steps", seconds=200)
        taker = take_node_of(slurm, job)
        shown, _ = follower.communicate(timeout=200)
    finally:
        follower.kill()
        follower.communicate()
    assert follower.returncode == 0
    assert fields(slurm, taker)["JobState"] == "COMPLETED"
    assert "restart 0" in shown
    assert "restart 1" in shown
    assert "held-out loss" in shown
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("done", 14)
    attempts = records(run_dir / "attempts.jsonl")
    assert [entry["what"] for entry in attempts] == ["start", "stopped", "requeue", "start", "done"]
    assert [step for step, _ in curve(run_dir)] == list(range(1, 15))
    assert curve(run_dir) == undisturbed
