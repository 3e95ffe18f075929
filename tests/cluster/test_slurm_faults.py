"""What ends the ranks of a batch job, but not the job: it goes on in the same place of the queue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.mark.slow
def test_a_killed_rank_costs_no_new_place_in_the_queue(
    slurm: Any,
    tmp_path: Path,
    command: Callable[..., list[str]],
    wait_for: Callable[..., Any],
    records: Callable[[Path], list[dict[str, Any]]],
) -> None:
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        command(
            *("train", "experiment=demo", "launch=slurm", "launch.nodes=2", "devices=2", "launch.submit=true"),
            *("batch.max_steps=12", "batch.global=4", "checkpoint.every=2", "data.max_rows=60", "data.max_eval_rows=4"),
            f"run_dir={run_dir}",
        ),
        cwd=tmp_path,
        env=slurm.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for((run_dir / "checkpoints" / "step-00000002").is_dir, "a checkpoint", seconds=240)
        beat = json.loads((run_dir / "beats" / "rank-00001.json").read_text())
        os.kill(beat["pid"], signal.SIGKILL)
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, output
    attempts = records(run_dir / "attempts.jsonl")
    assert [entry["what"] for entry in attempts] == ["start", "done"]
    # Which rank is named depends on whose launcher is the first to report.
    assert "starting again: rank " in output
    events = records(run_dir / "events.jsonl")
    started = [event["attempt"] for event in events if event["event"] == "attempt_started"]
    assert started == [1, 2]
    assert sorted(path.name for path in run_dir.glob("plan.[0-9]*.json")) == ["plan.1.json", "plan.2.json"]
    steps = [line["step"] for line in records(run_dir / "metrics.jsonl") if "loss" in line]
    assert steps == list(range(1, 13))
    assert any(event["event"] == "resumed" for event in events)
