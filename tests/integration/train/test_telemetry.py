"""What a run records of itself, and that recording changes nothing."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from launch.execute import free_port
from orchestrator.monitor.readings import HostReading, RankReading
from orchestrator.monitor.store import read_run
from orchestrator.monitor.tables import table_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
RANK = Path(__file__).parent / "waits_rank.py"
LONGER_SECONDS = 0.08


def test_a_slow_rank_is_told_from_the_one_that_waits_for_it() -> None:
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK)],
            env={**os.environ, **common, "RANK": str(rank), "PYTHONPATH": str(RANK.parents[3])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = dict(json.loads(rank.communicate(timeout=60)[0].splitlines()[-1]) for rank in ranks)
    seconds = {rank: statistics.median(step[0] for step in steps[1:]) for rank, steps in found.items()}
    busy = {rank: statistics.median(step[1] for step in steps[1:]) for rank, steps in found.items()}
    waits = {rank: statistics.median(step[2] for step in steps[1:]) for rank, steps in found.items()}
    assert seconds[0] == pytest.approx(seconds[1], rel=0.2)  # by the whole step nobody can tell
    assert busy[1] - busy[0] > LONGER_SECONDS / 2
    assert waits[0] - waits[1] > LONGER_SECONDS / 2


def test_a_run_records_each_step_of_each_rank(runs: Any, ddp: str) -> None:
    folder = runs.root / ddp
    readings = list(read_run(folder))
    ranks = [reading for reading in readings if isinstance(reading, RankReading)]
    losses = runs.losses(ddp)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tokens = {one["step"]: one["tokens_per_second"] * one["step_seconds"] for one in metrics if "step_seconds" in one}
    assert sorted((one.step, one.rank) for one in ranks) == [(step, rank) for step in losses for rank in range(2)]
    for one in ranks:
        assert one.loss == losses[one.step]
        assert one.grad_norm is not None
        assert one.busy_seconds is not None
        assert one.communication_seconds is not None
        assert 0 < one.busy_seconds <= one.step_seconds
        assert 0 <= one.communication_seconds < one.step_seconds
        assert one.host_bytes is not None
        assert one.host_bytes > 2**26
        assert dict(one.live_bytes)["adapters"] > 0
    for step, wanted in tokens.items():
        assert sum(one.tokens or 0.0 for one in ranks if one.step == step) == pytest.approx(wanted)
    hosts = [reading for reading in readings if isinstance(reading, HostReading)]
    assert len(hosts) > 2
    assert any(name == "lo" for name, _, _ in hosts[-1].network)
    assert parquet.read_table(table_file(folder, "rank")).num_rows == len(ranks)
    assert parquet.read_table(table_file(folder, "host")).num_rows == len(hosts)


def test_recording_takes_less_than_half_a_percent_of_a_step(runs: Any, ddp: str) -> None:
    events = [json.loads(line) for line in (runs.root / ddp / "events.jsonl").read_text().splitlines()]
    (cost,) = [event for event in events if event["event"] == "telemetry"]
    print(f"{cost['cpu_seconds_per_step'] * 1e6:.0f} us of a CPU a step, {cost['share_of_step']:.3%} of it")
    assert cost["share_of_step"] < 0.005
    assert cost["lost_readings"] == 0


@pytest.mark.slow
def test_without_the_monitor_the_losses_are_the_same_and_nothing_is_written(runs: Any, ddp: str) -> None:
    runs.train("unwatched", "engine=ddp", "checkpoint.keep=9", "monitor.enabled=false")
    assert runs.losses("unwatched") == runs.losses(ddp)
    assert not (runs.root / "unwatched" / "telemetry").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["streamed", "zero3"])
def test_other_engines_record_what_they_wait_for(runs: Any, engine: str) -> None:
    name = f"metered_{engine}"
    runs.train(name, f"engine={engine}", "batch.max_steps=3")
    ranks = [one for one in read_run(runs.root / name, ("rank",)) if isinstance(one, RankReading)]
    assert len(ranks) == 6
    for one in ranks:
        assert one.busy_seconds is not None
        assert 0 < one.busy_seconds <= one.step_seconds
        assert (one.prefetch_seconds is not None) == (engine == "streamed")
        assert (one.communication_seconds is not None) == (engine == "streamed")
