"""`adapter.rank=auto`: rows, modules and memory each hold it back, and the plan says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.config import (
    AdapterConfig,
    AdapterInit,
    AdapterKind,
    BatchConfig,
    DataConfig,
    Engine,
    EngineConfig,
    ResizeConfig,
    RunConfig,
)
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import NothingFits, UserError
from orchestrator.planner.plan import Plan
from orchestrator.planner.rank_choice import LADDER

AUTO = AdapterConfig(rank=None)


def _rank(plan: Plan) -> int:
    rank = plan.run_config.adapter.rank
    assert rank is not None
    return rank


def _why(plan: Plan) -> str:
    return next(reason for reason in plan.reasons if "adapter.rank=auto" in reason)


def test_long_rows_and_much_memory_take_the_top(plan_for: Callable[..., Plan]) -> None:
    data = DataConfig(path="rows.jsonl", seq_len=4096)
    plan = plan_for("8b", "dgx_h100", tokens=8192, adapter=AUTO, data=data)
    assert _rank(plan) == LADDER[-1]
    assert "the top of the ladder fits" in _why(plan)


def test_short_rows_reduce(plan_for: Callable[..., Plan]) -> None:
    plan = plan_for("8b", "dgx_h100", tokens=512, adapter=AUTO)  # 256 tokens on average
    assert _rank(plan) == 16
    assert "rows of 256 tokens" in _why(plan)


def test_memory_reduces_and_the_next_one_is_worse(plan_for: Callable[..., Plan]) -> None:
    """One 24 GB card: the rank above needs another way, or more time."""
    plan = plan_for("8b", "rtx4090", tokens=8192, adapter=AUTO)
    rank = _rank(plan)
    assert rank < LADDER[-1]
    small, own, above = (
        plan_for("8b", "rtx4090", tokens=8192, adapter=AdapterConfig(rank=r)).chosen
        for r in (8, rank, LADDER[LADDER.index(rank) + 1])
    )
    assert own.strategy.engine is small.strategy.engine
    assert own.estimate.tokens_per_second * 1.06 > small.estimate.tokens_per_second
    assert above.estimate.tokens_per_second < small.estimate.tokens_per_second
    assert f"rank {LADDER[LADDER.index(rank) + 1]} " in _why(plan)


def test_narrow_modules_get_less(plan_for: Callable[..., Plan]) -> None:
    plan = plan_for("tiny", "dgx_h100", tokens=8192, adapter=AUTO)  # keys and values are 128 wide, rows 1024 at most
    adapter = plan.run_config.adapter
    assert adapter.rank == 64
    assert dict(adapter.rank_pattern) == {"k_proj": 32.0, "v_proj": 32.0}


@pytest.mark.parametrize("one", [{"init": AdapterInit.eva, "rho": 1.0}, {"resize": ResizeConfig(under_pressure=True)}])
def test_narrow_modules_get_the_same_where_all_have_one_rank(
    plan_for: Callable[..., Plan], one: dict[str, Any]
) -> None:
    plan = plan_for("tiny", "dgx_h100", tokens=8192, adapter=AdapterConfig(rank=None, **one))
    assert plan.run_config.adapter.rank == 64
    assert parse_config(plan.config) == plan.run_config


def test_patterns_of_the_user_stay(plan_for: Callable[..., Plan]) -> None:
    adapter = AdapterConfig(rank=None, rank_pattern=(("q_proj", 4.0),))
    assert plan_for("tiny", "dgx_h100", tokens=8192, adapter=adapter).run_config.adapter.rank_pattern == (
        ("q_proj", 4.0),
    )


def test_nothing_fits_is_told_as_ever(plan_for: Callable[..., Plan]) -> None:
    with pytest.raises(NothingFits):
        plan_for("70b", "rtx4090", adapter=AUTO, batch=BatchConfig(), engine=EngineConfig(name=Engine.ddp))


def test_adapters_keep_their_patterns_on_disk() -> None:
    raw = {"model": {"path": "m"}, "data": {"path": "d"}, "adapter": {"rank_pattern": {"q_proj": 4, r"a\.b": 8}}}
    config = parse_config(raw)
    assert config.adapter.rank_pattern == (("q_proj", 4.0), (r"a\.b", 8.0))
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ({"kind": "adalora", "dora": True}, "AdaLoRA decides on ranks"),
        ({"kind": "adalora", "rank": None}, "nothing to fit"),
        ({"kind": "adalora", "rank": 8, "init_rank": 4}, "starts with rank 4"),
        ({"init_rank": 4}, "keeps its rank"),
        ({"init": "pissa", "dora": True}, "magnitudes of a base"),
        ({"init": "eva", "rank_pattern": "q_proj:4"}, "EVA gives each module its rank"),
        ({"rank_pattern": "q_proj:1.5"}, "whole numbers"),
        ({"rank_pattern": "q_proj"}, "PATTERN:NUMBER"),
        ({"rho": 0.5}, "largest rank over"),
    ],
)
def test_contradictions(adapter: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_config({"model": {"path": "m"}, "data": {"path": "d"}, "adapter": adapter})


@pytest.mark.parametrize("quant", ["int8", "none"])
def test_loftq_needs_four_bits(quant: str) -> None:
    raw = {"model": {"path": "m"}, "data": {"path": "d"}, "adapter": {"init": "loftq"}, "base": {"quant": quant}}
    with pytest.raises(UserError, match="LoftQ makes up for the error of a 4-bit base"):
        parse_config(raw)


@pytest.mark.parametrize(
    "adapter",
    [AdapterConfig(dora=True), AdapterConfig(kind=AdapterKind.adalora), AdapterConfig(init=AdapterInit.pissa)],
)
def test_zero3_is_left_out_with_a_reason(plan_for: Callable[..., Plan], adapter: AdapterConfig) -> None:
    plan = plan_for("8b", "dgx_h100", adapter=adapter)
    assert any("ZeRO-3 has partitioned" in entry.reason for entry in plan.rejected)
    raw = dump_config(RunConfig(model=plan.run_config.model, data=plan.run_config.data, adapter=adapter))
    with pytest.raises(UserError, match="ZeRO-3 has partitioned"):
        parse_config({**raw, "engine": {"name": "zero3"}})
