"""Shards of the base over machines whose devices differ: budgets from the machine, told in the plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.config import BatchConfig, DataConfig, ModelConfig, RunConfig
from orchestrator.planner.explain import explain
from orchestrator.planner.plan import Plan
from orchestrator.planner.points import places_of
from orchestrator.planner.subsets import choose_worlds
from orchestrator.planner.uneven import HEADROOM, shard_ranks
from orchestrator.planner.variants import job_of
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from topology.presets import preset

Planner = Callable[..., Plan]
MIXED = "4xa100-40gb+4xh100-80gb"
TWO = {"nodes": 2, "batch": BatchConfig(global_=32)}
MODEL = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def test_budgets_follow_the_machine() -> None:
    """H100: 3.35 TB/s against 1.555 of an A100-40: the window of the same pass is that much wider."""
    config = RunConfig(model=ModelConfig(path="8b"), data=DataConfig(path="r"), batch=BatchConfig(global_=32), nodes=2)
    stats = DataStats(rows=99, eval_rows=0, mean_tokens=500, max_tokens=900, total_tokens=49_500, source="counted")
    job = job_of(config, shape_from_config("8b", MODEL), stats)
    world = choose_worlds(config, preset(MIXED))[0]
    ranks, total = shard_ranks(job, next(iter(places_of(job, world))))
    assert len(ranks) == 8
    a100, h100 = ranks[0], ranks[-1]
    assert h100.window_bytes / a100.window_bytes == pytest.approx(3.35 / 1.555, rel=0.03)
    assert h100.device_bytes > a100.device_bytes > 0
    assert 3.2 < total / 2**30 < 3.5
    assert 0 < HEADROOM < 1


def test_a_mixed_machine_is_told_its_cut_and_what_equal_shards_take(plan_for: Planner) -> None:
    plan = plan_for("8b", MIXED, tokens=1024, **TWO)
    assert plan.chosen.strategy.streamed is None
    text = explain(plan)
    assert "Uneven shards over all devices" in text
    assert "a pass through its memory" in text
    (line,) = [line for line in plan.shards if "Equal shards" in line]
    assert "as fast" in line or float(line.split(", ")[1].split(" times")[0]) > 1.0
    assert sum("on the device" in shown for shown in plan.shards) >= 2


def test_equal_devices_are_told_none(plan_for: Planner) -> None:
    assert plan_for("8b", "2x24gb-pcie").shards == ()


def test_rows_by_speed_are_never_slower_than_equal_rows(plan_for: Planner) -> None:
    plan = plan_for("8b", MIXED, tokens=1024, nodes=2, devices=8, batch=BatchConfig(global_=64))
    shares = plan.chosen.strategy.shares
    assert shares[-1] > shares[0]
    assert "micro-batch" in plan.chosen.strategy.label
    (sentence,) = [reason for reason in plan.reasons if "equal shares would take" in reason]
    assert float(sentence.split("would take ")[1].split(" times")[0]) >= 1.0


def test_the_memory_told_is_of_the_device_that_is_the_tightest(plan_for: Planner) -> None:
    """Of ranks with other rows and cards, peak and limit belong to the same device."""
    plan = plan_for("8b", MIXED, tokens=2048, nodes=2, devices=8, batch=BatchConfig(global_=64))
    estimate = plan.chosen.estimate
    assert estimate.memory.device_bytes <= plan.device_memory_bytes
    assert f"on {plan.device_name} while training" in explain(plan)
