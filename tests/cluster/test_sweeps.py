"""A sweep of `train` as a job array of a real SLURM."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

TINY = (
    *("experiment=demo", "devices=1", "batch.max_steps=1", "batch.global=2", "checkpoint.every=0"),
    *("data.max_rows=12", "data.max_eval_rows=2"),
)


def trial_processes(run_dir: Path) -> list[psutil.Process]:
    """Living processes that were told to train there."""
    found = []
    for process in psutil.process_iter():
        try:
            if f"run_dir='{run_dir}'" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_an_array_of_trials_ends_in_one_table(
    slurm: Any, tmp_path: Path, command: Callable[..., list[str]], wait_for: Callable[..., Any]
) -> None:
    """One trial trains, one is refused, one is killed by SLURM: each is a row, and none stops another."""
    folder = tmp_path / "sweep"
    process = subprocess.Popen(
        command(
            *("train", "-m", *TINY, "hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5"),
            *("hydra.launcher.array_parallelism=3", "adapter.rank=4,0,8", f"run_dir={folder}", "format=json"),
        ),
        cwd=tmp_path,
        env=slurm.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("job array "))
        array = line.split()[2].rstrip(":")
        wait_for(lambda: trial_processes(folder / "2"), "the process of trial 2")
        slurm.run("scancel", "--signal=KILL", f"{array}_2")
        output, errors = process.communicate(timeout=150)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 4, errors
    body = json.loads(output)
    assert [trial["status"] for trial in body["trials"]] == ["done", "bad input", "failed"]
    assert [trial["exit_code"] for trial in body["trials"]] == [0, 2, 4]
    assert body["best"] == 0
    done, refused, killed = body["trials"]
    assert done["eval_loss_after"] < done["eval_loss_before"]
    assert done["step_seconds"] > 0
    assert "adapter.rank: found 0" in refused["reason"]
    assert f"job {array}_2" in killed["reason"]
    rows = list(csv.DictReader((folder / "sweep.csv").open()))
    assert [row["adapter.rank"] for row in rows] == ["4", "0", "8"]
    assert (folder / "0" / "adapter" / "adapter_model.safetensors").is_file()
    wait_for(lambda: not trial_processes(folder / "2"), "no process of the killed trial", seconds=10)


def test_what_sbatch_refuses_is_bad_input(slurm: Any, tmp_path: Path, command: Callable[..., list[str]]) -> None:
    words = ("train", "-m", *TINY, "hydra/launcher=submitit_slurm", "hydra.launcher.partition=nowhere", "seed=1,2")
    done = subprocess.run(
        command(*words), cwd=tmp_path, env=slurm.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "invalid partition specified: nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_stops_the_array_with_a_checkpoint(
    slurm: Any, tmp_path: Path, command: Callable[..., list[str]], wait_for: Callable[..., Any]
) -> None:
    """The trial that runs saves; the one that waits is cancelled; both are rows."""
    folder = tmp_path / "sweep"
    metrics = folder / "0" / "metrics.jsonl"
    process = subprocess.Popen(
        command(
            *("train", "-m", *TINY, "batch.max_steps=400", "batch.epochs=200", "hydra/launcher=submitit_slurm"),
            *("hydra.launcher.array_parallelism=1", "seed=1,2", f"run_dir={folder}"),
        ),
        cwd=tmp_path,
        env=slurm.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(lambda: metrics.exists() and '"loss"' in metrics.read_text(), "a step", seconds=120)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 75, output
    rows = list(csv.DictReader((folder / "sweep.csv").open()))
    assert [row["status"] for row in rows] == ["stopped", "stopped"]
    assert list((folder / "0" / "checkpoints").glob(f"step-{int(rows[0]['steps']):08d}"))
    assert not (folder / "1").exists()
