"""Ranks that a user's own launcher starts: which numbers the plan allows, on which hosts."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config import BatchConfig, DataConfig, Engine, EngineConfig, ModelConfig, RunConfig, TopologyConfig
from orchestrator.errors import UserError
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan
from orchestrator.train.started import changed_words, check_started, layout_problem, size_problem
from orchestrator.workload.batch import DataStats
from orchestrator.workload.named import preset_shape
from topology.network import merge
from topology.presets import preset

STATS = DataStats(rows=1000, eval_rows=0, mean_tokens=350.0, max_tokens=1100, total_tokens=350_000, source="counted")


def _plan(*names: str, **changes: Any) -> Plan:
    machine = merge([preset(name) for name in names])
    fields: dict[str, Any] = {
        "model": ModelConfig(path="llama-3-8b"),
        "data": DataConfig(path="r"),
        "topology": TopologyConfig(path="machines"),
        "nodes": len(machine.hosts),
        "batch": BatchConfig(global_=16),
    }
    config = RunConfig(**{**fields, **changes})
    return make_plan(config, machine, preset_shape("llama-3-8b"), STATS, "run-1")


@pytest.fixture(scope="module")
def unequal() -> Plan:
    return _plan("4xv100-16gb", "2x24gb-pcie", devices=6)


def test_any_number_of_ranks_that_the_rows_feed_is_allowed(unequal: Plan) -> None:
    assert all(size_problem(unequal, ranks) is None for ranks in (1, 5, 6, 16))
    problem = size_problem(unequal, 17)
    assert problem is not None
    assert problem.found.startswith("17 ranks started, but a step has 16 rows")
    assert problem.remedy.startswith("Start 6 ranks on 2 hosts (4 and 2), as planned, or any number up to 16")


def test_copies_of_the_base_ask_for_multiples() -> None:
    plan = _plan(
        "a100_sxm_x4", "2x24gb-pcie", devices=6, engine=EngineConfig(name=Engine.zero3), batch=BatchConfig(global_=24)
    )
    extras = plan.chosen.strategy.extras
    assert extras is not None
    assert extras.hpz_partition_size == 2
    assert size_problem(plan, 4) is None
    problem = size_problem(plan, 5)
    assert problem is not None
    assert "each 2 of them share a copy" in problem.found
    assert "a multiple of 2 up to 24" in problem.remedy


def test_ranks_on_other_hosts_than_planned_are_refused(unequal: Plan) -> None:
    planned = [4, 4, 4, 4, 2, 2]
    assert layout_problem(unequal, planned) is None
    assert layout_problem(unequal, [None] * 6) is None  # nobody tells
    assert layout_problem(unequal, [3, 3, 3]) is None  # another number: rows are shared out anew
    problem = layout_problem(unequal, [3] * 6)
    assert problem is not None
    assert problem.found == "rank 0 is one of 3 on its host, 4 were planned there"
    said: list[str] = []
    with pytest.raises(UserError, match="4 and 2"):
        check_started(unequal, 6, lambda _: [2, 2, 4, 4, 4, 4], said.append)
    check_started(unequal, 6, lambda _: planned, said.append)
    assert said == []


def test_ranks_that_are_alike_may_run_anywhere() -> None:
    assert layout_problem(_plan("2x24gb-pcie"), [1, 1]) is None


def test_another_number_is_told(unequal: Plan) -> None:
    assert changed_words(unequal, 6) == ""
    said: list[str] = []
    check_started(unequal, 4, lambda value: [value] * 4, said.append)
    (line,) = said
    assert line.startswith("note: 4 ranks started, the plan is for 6 ranks on 2 hosts (4 and 2): the rows")
