"""Runs whose layers stream: the same numbers as replicated ones, over a resume too, on as many bytes as planned."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.planner.plan import Plan, dumps, loads

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ASKED = ("engine=streamed", "engine.shards=[70,30]", "engine.window=2", "checkpoint.keep=9")


@pytest.fixture(scope="module")
def streamed(runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An uninterrupted run of two ranks, which keeps its packed base in a folder of its own."""
    cache = tmp_path_factory.mktemp("cache")
    done = runs.run(
        *("train", "experiment=demo", "batch.max_steps=6", "checkpoint.every=2", "data.max_eval_rows=16"),
        *(f"run_dir={runs.root / 'streamed'}", *ASKED),
        XDG_CACHE_HOME=str(cache),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return cache


def test_numbers_are_those_of_a_replicated_run(runs: Any, ddp: str, streamed: Path) -> None:
    assert runs.losses("streamed") == runs.losses(ddp)
    ours, plain = runs.summary("streamed"), runs.summary(ddp)
    assert ours["eval_row_losses"] == plain["eval_row_losses"]
    for file in ("adapter/adapter_model.safetensors", "eval/logits.safetensors"):
        assert (runs.root / "streamed" / file).read_bytes() == (runs.root / ddp / file).read_bytes()


def test_bytes_are_those_of_the_plan(runs: Any, ddp: str, streamed: Path) -> None:
    summary = runs.summary("streamed")
    live, planned = summary["measured"]["live"], summary["predicted"]["live"]
    assert {name: live[name] for name in planned} == pytest.approx(planned, rel=0.01)
    shards = [rank["shard_bytes"]["device"] for rank in summary["streamed"]["ranks"]]
    assert shards[0] == live["base_shard"]
    assert shards[0] / sum(shards) == pytest.approx(0.7, rel=0.01)
    base = runs.summary(ddp)["measured"]["live"]
    assert sum(shards) == pytest.approx(base["base_packed"] + base["absmax"], rel=0.02)
    events = map(json.loads, (runs.root / "streamed" / "events.jsonl").read_text().splitlines())
    checked = next(event for event in events if event["event"] == "base_checked")
    assert checked["found_bytes"] == pytest.approx(checked["planned_bytes"], rel=0.01)


@pytest.mark.slow
def test_each_rank_reads_its_part_and_the_next_start_the_cache(
    runs: Any, demo: tuple[str, ...], streamed: Path
) -> None:
    first = [rank["read"] for rank in runs.summary("streamed")["streamed"]["ranks"]]
    assert all(read["file_bytes"] > 0 and read["cache_bytes"] == 0 for read in first)
    folder = runs.copy_at("streamed", "resumed", 2)
    done = runs.run("train", *demo, *ASKED, f"run_dir={folder}", "resume=true", XDG_CACHE_HOME=str(streamed))
    assert done.returncode == 0, done.stdout + done.stderr
    again = [rank["read"] for rank in runs.summary("resumed")["streamed"]["ranks"]]
    assert all(read["cache_bytes"] > 0 for read in again)
    assert runs.losses("resumed") == runs.losses("streamed")
    adapter = Path("adapter") / "adapter_model.safetensors"
    assert (folder / adapter).read_bytes() == (runs.root / "streamed" / adapter).read_bytes()


def test_a_base_larger_than_planned_stops_the_run(runs: Any, demo: tuple[str, ...]) -> None:
    folder = runs.root / "guarded"
    planned = runs.run("plan", *demo, "devices=1", "engine=ddp", f"run_dir={folder}")
    assert planned.returncode == 0, planned.stderr
    path = folder / "plan.json"
    path.write_text(dumps(_with_a_quarter(loads(path.read_text()), "base_unquantised")))
    command = [sys.executable, "-m", "orchestrator.train.worker", str(path)]
    done = subprocess.run(command, cwd=runs.root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "of the base live on the device" in done.stdout
    assert "were planned" in done.stdout
    assert not (folder / "adapter").exists()


def _with_a_quarter(plan: Plan, name: str) -> Plan:
    """The plan, with a quarter of what was counted for a term of training."""
    memory = plan.chosen.estimate.memory
    terms = tuple(replace(x, bytes=x.bytes // 4) if x.name == name else x for x in memory.train.terms)
    memory = replace(memory, train=replace(memory.train, terms=terms))
    chosen = replace(plan.chosen, estimate=replace(plan.chosen.estimate, memory=memory))
    return replace(plan, chosen=chosen, ranked=(chosen, *plan.ranked[1:]))


@pytest.mark.slow
def test_unequal_rows_change_losses_by_rounding_alone(runs: Any, ddp: str) -> None:
    """Ranks that take 12 and 4 rows weigh their gradients by tokens: the sums are the same, in another order."""
    runs.train("unequal", "engine=streamed", "engine.speeds=[3,1]")
    strategy = loads((runs.root / "unequal" / "plan.json").read_text()).chosen.strategy
    assert strategy.shares == (12, 4)
    assert runs.losses("unequal") == pytest.approx(runs.losses(ddp), rel=1e-5)
    assert runs.summary("unequal")["eval_row_losses"] == pytest.approx(runs.summary(ddp)["eval_row_losses"], rel=1e-4)
