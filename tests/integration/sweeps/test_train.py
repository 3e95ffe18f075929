"""Sweeps of real runs: side by side, one refused, one interrupted; and trials that Optuna chooses."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

# The process that sweeps must never load torch, which is how it could hold memory of a GPU.
GO = """
import sys
from orchestrator.cli import main
code = main(sys.argv[1:])
assert not {"torch", "transformers"} & sys.modules.keys()
sys.exit(code)
"""
TINY = (
    *("experiment=demo", "devices=1", "batch.global=2", "batch.epochs=200", "checkpoint.every=0"),
    *("data.max_rows=12", "data.max_eval_rows=2"),
)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", GO, "train", "-m", *TINY, *arguments]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two trials at once need two cores")
def test_trials_side_by_side_end_in_one_table_also_when_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    process = subprocess.Popen(
        _command("batch.max_steps=1,-5,400", "sweep.parallel=2", f"run_dir={folder}"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    metrics, done = folder / "2" / "metrics.jsonl", folder / "0" / "summary.json"
    try:
        while not (done.exists() and metrics.exists() and '"loss"' in metrics.read_text()):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 2, output  # the refused one; a stop alone is 75
    rows = list(csv.DictReader((folder / "sweep.csv").open()))
    assert [(row["batch.max_steps"], row["status"]) for row in rows] == [
        ("1", "done"), ("-5", "bad input"), ("400", "stopped"),
    ]  # fmt: skip
    assert float(rows[0]["eval_loss_after"]) < float(rows[0]["eval_loss_before"])
    assert float(rows[0]["tokens_per_second"]) > 0
    assert int(rows[0]["peak_bytes"]) > 2**20
    assert "batch.max_steps: found -5" in rows[1]["reason"]
    assert 0 < int(rows[2]["steps"]) < 400
    assert list((folder / "2" / "checkpoints").glob(f"step-{int(rows[2]['steps']):08d}"))
    cores = [set(row["devices"].removeprefix("cores ").split(",")) for row in rows]
    assert cores[1] == cores[2], "the one that was refused left its cores to the next"
    assert not cores[0] & cores[2]
    assert "best: trial 0" in output
    assert f"This table: {folder / 'sweep.csv'}" in output


@pytest.mark.slow
def test_optuna_minimises_the_held_out_loss_past_a_trial_that_fails(tmp_path: Path) -> None:
    space = ("adapter.rank=4,0", "optimizer.lr=tag(log, interval(1e-4, 1e-2))")
    words = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "batch.max_steps=1", "run_dir=s", "format=json")
    done = subprocess.run(
        _command(*space, *words), cwd=tmp_path, capture_output=True, text=True, timeout=140, check=False
    )
    assert done.returncode == 2, done.stderr
    body = json.loads(done.stdout)
    assert sorted(trial["status"] for trial in body["trials"]) == ["bad input", "done"]
    best = body["trials"][body["best"]]
    kept = json.loads((tmp_path / "s" / "optimization_results.yaml").read_text())
    assert kept["best_value"] == best["eval_loss_after"]
    assert kept["best_evaluated_params"]["adapter.rank"] == int(best["values"]["adapter.rank"]) == 4
    assert 1e-4 <= float(best["values"]["optimizer.lr"]) <= 1e-2
    assert (tmp_path / "s" / "optuna.log").is_file()
