"""A host that is cut off in the middle of a run and, in another one, comes back."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def events(run_dir: Path, name: str) -> list[dict[str, Any]]:
    try:
        lines = (run_dir / "events.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [event for event in map(json.loads, lines) if event["event"] == name]


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_left_out_and_taken_in_again(
    hosts: Any, tmp_path: Path, command: Callable[..., list[str]], wait_for: Callable[..., Any]
) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "said"
    names = ",".join(hosts.address(at) for at in range(2))
    words = [
        "train",
        "experiment=demo",
        "engine=ddp",
        "devices=2",
        "batch.max_steps=150",
        "batch.global=8",
        "checkpoint.every=2",
        "data.max_eval_rows=4",
        f"launch.hosts=[{names}]",
        f"launch.ssh={hosts.ssh()}",
        f"run_dir={run_dir}",
    ]
    port = ["ip", "-n", hosts.made.names[1], "link", "set", "eth0"]
    with log.open("w") as stream:
        process = subprocess.Popen(command(*words), cwd=tmp_path, stdout=stream, stderr=stream)
        try:
            wait_for(lambda: events(run_dir, "checkpoint"), "a checkpoint", seconds=120)
            subprocess.run([*port, "down"], check=True)
            cut = time.time()
            wait_for(lambda: events(run_dir, "replanned"), "a plan without the host", seconds=120)
            wait_for(lambda: len(events(run_dir, "first_step")) > 1, "a step without the host", seconds=120)
            subprocess.run([*port, "up"], check=True)
            wait_for(lambda: len(events(run_dir, "replanned")) > 1, "a plan with the host", seconds=120)
            assert process.wait(timeout=200) == 0, log.read_text()
        finally:
            subprocess.run([*port, "up"], check=True)
            process.kill()
    said = log.read_text()
    (hang, lost) = events(run_dir, "fault_detected")
    assert hang["kind"] == "hang", said
    assert hang["time"] - cut < 20
    assert lost["kind"] == "host_lost"
    assert hosts.address(1) in lost["evidence"]
    assert [event["world_size"] for event in events(run_dir, "attempt_started")] == [2, 2, 1, 2]
    assert [event["attempt"] for event in events(run_dir, "attempt_started")] == [1, 2, 3, 4]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["world_size"]) == ("done", 150, 2)
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps if "loss" in record] == list(range(1, 151))
