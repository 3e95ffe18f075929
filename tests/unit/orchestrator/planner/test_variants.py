"""Packing and optimizer left open: what is tried, what is not, and what a packed row holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.config import (
    AdapterConfig,
    BatchConfig,
    Checkpointing,
    DataConfig,
    Engine,
    EngineConfig,
    Optimizer,
    OptimizerConfig,
    Padding,
)
from orchestrator.planner.plan import Plan
from orchestrator.planner.variants import block_fill, packed_rows
from orchestrator.workload.batch import DataStats

Planner = Callable[..., Plan]
OPEN = DataConfig(path="rows.jsonl", packing=None)
ANY = OptimizerConfig(name=Optimizer.auto)


def _stats(lengths: list[int]) -> DataStats:
    return DataStats(
        rows=len(lengths),
        eval_rows=0,
        mean_tokens=sum(lengths) / len(lengths),
        max_tokens=max(lengths),
        total_tokens=sum(lengths),
        source="counted",
        quantiles=tuple(sorted(lengths)),
    )


def test_rows_of_half_a_block_and_one_token_waste_half_of_it() -> None:
    assert block_fill(_stats([513] * 64), 1024) == pytest.approx(513 / 1024, rel=0.02)
    assert block_fill(_stats([512] * 64), 1024) == pytest.approx(1.0)
    assert block_fill(_stats([700, 300] * 32), 1000) == pytest.approx(1.0)
    assert packed_rows(_stats([513] * 64), 1024) == 64


@settings(max_examples=40)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=64), st.integers(100, 300))
def test_a_block_is_never_more_than_full_and_rows_of_half_of_it_fill_two_thirds(
    lengths: list[int], seq_len: int
) -> None:
    """Best fit, longest first: of blocks with rows no longer than half, only the last is less than two thirds full."""
    fill = block_fill(_stats(lengths), seq_len)
    assert 0 < fill <= 1
    if max(lengths) <= seq_len // 2:
        assert fill > 0.6


def test_nothing_is_open_by_default(plan_for: Planner) -> None:
    plan = plan_for("8b", "2x24gb-pcie")
    assert {(c.strategy.packing, c.strategy.optimizer) for c in plan.ranked} == {(False, Optimizer.adamw)}


def test_packing_is_chosen_for_short_rows_and_its_effect_on_the_batch_is_told(plan_for: Planner) -> None:
    plan = plan_for("8b", "2x24gb-pcie", tokens=256, data=replace(OPEN, seq_len=1024), batch=BatchConfig(global_=4))
    assert plan.chosen.strategy.packing
    assert plan.run_config.data.packing is True
    assert {c.strategy.packing for c in plan.ranked} == {True, False}
    (reason,) = [reason for reason in plan.reasons if reason.startswith("Rows are packed")]
    assert "lower batch.global" in reason
    unpacked = next(c for c in plan.ranked if not c.strategy.packing)
    assert plan.chosen.estimate.tokens_per_second > unpacked.estimate.tokens_per_second
    assert plan.workload.rows_per_epoch < plan.workload.rows


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (replace(OPEN, padding=Padding.static), "padding=static"),
        (replace(OPEN, group_by_length=True), "group_by_length"),
        (replace(OPEN, seq_len=4096), "does not fill a batch"),
    ],
)
def test_packing_that_cannot_be_is_a_rejection_with_its_reason(plan_for: Planner, data: DataConfig, words: str) -> None:
    plan = plan_for("8b", "2x24gb-pcie", tokens=64, data=data)
    assert not plan.chosen.strategy.packing
    (rejection,) = [entry for entry in plan.rejected if entry.strategy == "data.packing=true"]
    assert words in rejection.reason
    assert any(words in reason for reason in plan.reasons)


def test_moments_in_8_bits_are_not_taken_without_need(plan_for: Planner) -> None:
    plan = plan_for("8b", "8xh100", optimizer=ANY)
    assert plan.chosen.strategy.optimizer is Optimizer.adamw
    assert plan.run_config.optimizer.name is Optimizer.adamw
    assert any("Optimizer adamw" in reason for reason in plan.reasons)


def test_moments_in_8_bits_where_only_they_fit(plan_for: Planner) -> None:
    """A wide adapter: two fp32 moments of 5 GiB each are what is too much."""
    asked = {
        "adapter": AdapterConfig(rank=320),
        "engine": EngineConfig(name=Engine.ddp),
        "checkpointing": Checkpointing.full,
    }
    plan = plan_for("8b", "1x24gb", optimizer=ANY, **asked)
    assert plan.chosen.strategy.optimizer in {Optimizer.adamw_8bit, Optimizer.paged_adamw_8bit}
    assert plan.chosen.strategy.optimizer.value in plan.chosen.strategy.label
    assert any("with another one nothing fits" in reason or "pays" in reason for reason in plan.reasons)


def test_zero3_is_told_to_need_adamw(plan_for: Planner) -> None:
    plan = plan_for("8b", "2x24gb-pcie", optimizer=ANY)
    assert any("8-bit optimizers cannot checkpoint" in entry.reason for entry in plan.rejected)
    forced = plan_for("8b", "2x24gb-pcie", optimizer=ANY, engine=EngineConfig(name=Engine.zero3))
    assert forced.chosen.strategy.optimizer is Optimizer.adamw


def test_cpu_ranks_keep_adamw(plan_for: Planner) -> None:
    assert plan_for("tiny", "cpu", optimizer=ANY).chosen.strategy.optimizer is Optimizer.adamw
