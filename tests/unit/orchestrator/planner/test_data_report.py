"""What lengths cost: the same numbers that a plan with the change would show, and words for people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.config import BatchConfig, DataConfig, Engine, EngineConfig, ModelConfig, RunConfig
from orchestrator.dataset.duplicates import Duplicates
from orchestrator.planner.build import make_plan
from orchestrator.planner.explain import explain
from orchestrator.planner.explain_data import data_text
from orchestrator.planner.plan import Plan, dumps, loads
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.row_counting import row_facts
from orchestrator.workload.row_facts import SourceFacts
from topology.presets import preset

SHAPE = shape_from_config(
    "8b",
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
)


def stats_of(lengths: list[int], seq_len: int = 2048) -> DataStats:
    tokens = np.array(lengths)
    ordered = sorted(lengths)
    facts = row_facts(tokens, tokens // 2, np.full(len(lengths), 2), np.ones(len(lengths)), seq_len)
    return DataStats(
        rows=len(lengths),
        eval_rows=10,
        mean_tokens=sum(lengths) / len(lengths),
        max_tokens=max(lengths),
        total_tokens=sum(lengths),
        source="counted",
        quantiles=tuple(ordered[(2 * i + 1) * len(ordered) // 64] for i in range(32)),
        facts=facts,
    )


def plan_of(stats: DataStats, **data: Any) -> Plan:
    config = RunConfig(
        model=ModelConfig(path="8b"),
        data=DataConfig(path="rows.jsonl", **data),
        batch=BatchConfig(micro=2),
        engine=EngineConfig(name=Engine.ddp),
    )
    return make_plan(config, preset("a100_80gb"), SHAPE, stats, "run")


LONG_TAIL = [*range(100, 400)] * 3 + [2000] * 5


def test_what_the_longest_cost_is_what_a_plan_without_them_saves() -> None:
    plan = plan_of(stats_of(LONG_TAIL))
    assert plan.data is not None
    assert plan.data.longest is not None
    p99 = plan.data.longest.tokens
    assert p99 == plan.data.facts.p99 < 400
    without = plan_of(stats_of([min(tokens, p99) for tokens in LONG_TAIL]), seq_len=p99)
    assert without.chosen.strategy.label == plan.chosen.strategy.label
    saved = plan.chosen.estimate.memory.train.device_bytes - without.chosen.estimate.memory.train.device_bytes
    assert plan.data.longest.memory_bytes == pytest.approx(saved, rel=0.02)
    assert plan.data.longest.rows == len(LONG_TAIL) - -(-99 * len(LONG_TAIL) // 100)
    assert 0 < plan.data.longest.step_percent < 20


def test_advice_is_a_plan_with_that_setting() -> None:
    plan = plan_of(stats_of(LONG_TAIL))
    assert plan.data is not None
    advice = {one.setting: one for one in plan.data.advice}
    tight = plan.data.facts.tighter
    assert tight is not None
    shorter = plan_of(stats_of(LONG_TAIL), seq_len=tight.seq_len)
    before = plan.chosen.estimate.memory.train.device_bytes
    one = advice[f"data.seq_len={tight.seq_len}"]
    assert one.memory_bytes == shorter.chosen.estimate.memory.train.device_bytes - before
    assert (one.rows_cut, one.answer_tokens_lost) == (5, 5 * 1000)
    packed = plan_of(stats_of(LONG_TAIL), packing=True)
    assert advice["data.packing=true"].memory_bytes == packed.chosen.estimate.memory.train.device_bytes - before
    assert advice["data.packing=true"].time_percent < -10
    assert advice["data.group_by_length=true"].memory_bytes == 0
    assert advice["data.group_by_length=true"].time_percent < 0
    assert [one.time_percent for one in plan.data.advice] == sorted(one.time_percent for one in plan.data.advice)


def test_rows_that_are_alike_or_packed_cost_nothing_extra() -> None:
    even = plan_of(stats_of([256] * 1000))
    assert even.data is not None
    assert (even.data.longest, even.data.padding) == (None, 0.0)
    packed = plan_of(stats_of(LONG_TAIL), packing=True)
    assert packed.data is not None
    assert (packed.data.longest, packed.data.advice, packed.data.padding) == (None, (), 0.0)


def test_the_report_is_kept_in_the_plan_and_old_plans_have_none() -> None:
    plan = plan_of(stats_of(LONG_TAIL))
    assert loads(dumps(plan)) == plan
    old = plan_of(replace(stats_of(LONG_TAIL), facts=None))
    assert old.data is None
    assert '"data": null' not in dumps(old)
    assert loads(dumps(old)) == old
    assert data_text(None) == ""


def test_people_read_bars_cuts_costs_sources_and_duplicates() -> None:
    stats = stats_of(LONG_TAIL, seq_len=1024)
    assert stats.facts is not None
    sources = tuple(
        SourceFacts(name=name, rows=rows, epoch_rows=seen, eval_rows=5, mean_tokens=250, weight=2, share=share)
        for name, rows, seen, share in (("chat", 400, 800, 0.0), ("code.csv", 505, 343, 0.3))
    )
    pairs = (("a.jsonl, line 1", "a.jsonl, line 9"),)
    found = Duplicates(
        train_rows=905,
        eval_rows=10,
        repeated=4,
        leaked=2,
        leaked_eval=1,
        repeated_examples=pairs,
        leaked_examples=pairs,
    )
    facts = replace(stats.facts, sources=sources, duplicates=found)
    text = explain(plan_of(replace(stats, facts=facts), seq_len=1024))
    for line in (
        "  chat            400 rows of 250 tokens, 5 held out; 800 in an epoch (2.00 times, 70%): weight 2",
        "(0.68 times, 30%): share 0.3 of the rows",
        "99% up to 398, the longest about 2,000",
        "  up to 2,000  #                                 5  cut",
        "  up to   400  ################################  597",
        "5 of 905 rows are cut at 1,024 tokens: about 4,880 of",
        "The longest 1% (9 rows) cost",
        "4 of 905 training rows stand further up already",
        "    a.jsonl, line 9 repeats a.jsonl, line 1",
        "2 training rows are also held out (1 of 10 held-out rows)",
    ):
        assert line in text, text
