"""Recomputing some layers: when it is chosen, how it is asked for, and how it is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import BatchConfig, Checkpointing, Engine, EngineConfig, ModelConfig
from orchestrator.errors import UserError
from orchestrator.planner.explain import explain
from orchestrator.planner.parts import is_open
from orchestrator.planner.plan import Plan, dumps, loads
from orchestrator.planner.strategy import Recomputed

Planner = Callable[..., Plan]
V100 = "4xv100-16gb"  # 8B keeps all but a few layers' activations there
DDP = EngineConfig(name=Engine.ddp)


def test_a_few_layers_are_recomputed_where_nearly_all_fit(plan_for: Planner) -> None:
    plan = plan_for("8b", V100, tokens=1024)
    strategy = plan.chosen.strategy
    assert strategy.recomputed == Recomputed(layers=3, of=32)
    assert "checkpointing full for 3 of 32 layers" in strategy.label
    every = plan_for("8b", V100, tokens=1024, checkpointing=Checkpointing.full)
    assert every.chosen.strategy.recomputed is None
    assert plan.chosen.estimate.tokens_per_second > 1.2 * every.chosen.estimate.tokens_per_second


def test_one_layer_less_does_not_fit_or_the_time_is_worth_it(plan_for: Planner) -> None:
    """The fewest that fit set the pace; more are taken within 2% of it, for the memory."""
    asked = {"tokens": 1024, "engine": DDP, "devices": 4, "checkpointing": Checkpointing.full}
    chosen = plan_for("8b", V100, tokens=1024).chosen
    found = {}
    for layers in range(1, 6):
        try:
            found[layers] = plan_for("8b", V100, checkpointing_layers=layers, **asked).chosen
        except UserError:
            continue
    fewest = min(layers for layers, choice in found.items() if choice.strategy.micro == chosen.strategy.micro)
    recomputed = chosen.strategy.recomputed
    assert recomputed is not None
    assert recomputed.layers >= fewest > 1
    pace = found[fewest].estimate.step_seconds
    assert found[recomputed.layers].estimate == chosen.estimate
    assert chosen.estimate.step_seconds <= 1.02 * pace < found[recomputed.layers + 1].estimate.step_seconds


def test_a_plan_with_a_part_reads_back(plan_for: Planner) -> None:
    plan = plan_for("8b", V100, tokens=1024)
    assert loads(dumps(plan)) == plan
    assert loads(dumps(plan)).chosen.strategy.recomputed == Recomputed(layers=3, of=32)


@pytest.mark.parametrize("engine", [Engine.ddp, Engine.zero3])
def test_a_number_that_is_asked_for_is_kept(plan_for: Planner, engine: Engine) -> None:
    asked = {"engine": EngineConfig(name=engine), "checkpointing_layers": 20}
    plan = plan_for("8b", "2x24gb-pcie", **asked)
    assert {choice.strategy.recomputed for choice in plan.ranked} == {Recomputed(layers=20, of=32)}
    assert Checkpointing.none not in {choice.strategy.checkpointing for choice in plan.ranked}
    assert any(" for 20 of 32 layers (a step takes about" in reason for reason in plan.reasons)
    full = plan_for("8b", "2x24gb-pcie", **asked, checkpointing=Checkpointing.full)
    assert full.chosen.strategy.checkpointing is Checkpointing.full


def test_all_layers_are_no_part(plan_for: Planner) -> None:
    plan = plan_for("8b", "2x24gb-pcie", checkpointing=Checkpointing.full, checkpointing_layers=32)
    assert plan.chosen.strategy.recomputed is None
    assert "checkpointing full, bf16" in plan.chosen.strategy.label


def test_more_layers_than_there_are(plan_for: Planner) -> None:
    with pytest.raises(UserError, match="found 33, 8b has 32 layers") as caught:
        plan_for("8b", "2x24gb-pcie", checkpointing_layers=33)
    assert caught.value.problems[0].where == "checkpointing_layers"


def test_other_peoples_code_recomputes_all_or_none(plan_for: Planner) -> None:
    """It need not have layers that can be told apart."""
    config = plan_for("8b", V100, tokens=1024).run_config
    config = replace(config, checkpointing=Checkpointing.auto)
    assert is_open(config, 32)
    assert not is_open(config, 1)
    assert not is_open(replace(config, model=ModelConfig(path="8b", trust_remote_code=True)), 32)


def test_levers_are_named_by_their_layers(plan_for: Planner) -> None:
    plan = plan_for("8b", V100, tokens=1024)
    changes = [trade.change for trade in plan.trades]
    assert "recompute layers 0-15 (checkpointing=full checkpointing_layers=16)" in changes
    assert "recompute each layer (checkpointing=full)" in changes
    assert "keep all activations (checkpointing=none)" in changes
    text = explain(plan)
    assert "all layers change together" not in text
    assert "checkpointing=full checkpointing_layers=16" in text
    # What is recomputed already is a group of its own, with no more to recompute.
    names = {entry.layers: entry.count for entry in plan.layers}
    assert names == {"0-2": 3, "3-31": 29}
    assert not any("recompute" in entry.change for entry in plan.layers if entry.layers == "0-2")


def test_a_lever_is_what_a_plan_with_it_says(plan_for: Planner) -> None:
    plan = plan_for("8b", V100, tokens=1024)
    (trade,) = [trade for trade in plan.trades if "checkpointing_layers=16" in trade.change]
    changed = plan_for(
        "8b",
        V100,
        tokens=1024,
        engine=DDP,
        devices=4,
        checkpointing=Checkpointing.full,
        checkpointing_layers=16,
        batch=replace(plan.run_config.batch, micro=max(plan.chosen.strategy.micro)),
    ).chosen.estimate
    before = plan.chosen.estimate
    assert trade.saved_bytes == before.memory.train.device_bytes - changed.memory.train.device_bytes
    assert trade.step_seconds == pytest.approx(changed.step_seconds)


def test_branches_of_the_tree_hold_no_number_of_another_mode(plan_for: Planner) -> None:
    for machine in (V100, "2x24gb-pcie", "8xh100"):
        plan = plan_for("8b", machine, tokens=1024)
        assert any("checkpointing_layers" in " ".join(branch.settings) for branch in plan.tree)
        for branch in plan.tree:
            told = dict(setting.split("=") for setting in " ".join(branch.settings).split())
            assert "checkpointing" in told or "checkpointing_layers" not in told
        freed = [branch.freed_bytes for branch in plan.tree]
        assert freed == sorted(freed)


def test_fixed_layers_are_left_open_as_a_way_out(plan_for: Planner) -> None:
    with pytest.raises(UserError) as caught:
        plan_for(
            "8b", "1x24gb", tokens=2048, checkpointing_layers=1, engine=DDP, batch=BatchConfig(global_=16, micro=8)
        )
    outs = [problem.found for problem in caught.value.problems if problem.where.startswith("way out")]
    assert any(re.match(r"checkpointing_layers=auto|batch.micro=auto", out) for out in outs)
