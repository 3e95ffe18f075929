"""When nothing fits: changes that were planned for, cheapest first. And what memory costs when something does."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config import (
    AdapterConfig,
    BaseConfig,
    BatchConfig,
    Checkpointing,
    DataConfig,
    Engine,
    EngineConfig,
    ModelConfig,
    Precision,
    Quant,
    RunConfig,
)
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import NothingFits
from orchestrator.planner.build import make_plan
from orchestrator.planner.explain import explain
from orchestrator.planner.plan import Plan
from orchestrator.planner.solve import Asked
from orchestrator.planner.stacked_experts import unpacked_experts
from orchestrator.planner.subsets import choose_worlds
from orchestrator.workload.batch import DataStats
from orchestrator.workload.named import preset_shape
from topology.presets import preset

Planner = Callable[..., Plan]
RATE = re.compile(r"([\d,]+) tokens/s")


def _outs(error: NothingFits) -> list[str]:
    return [str(problem) for problem in error.problems if problem.where.startswith("way out")]


def test_a_forced_micro_batch_is_the_first_to_be_given_up(plan_for: Planner) -> None:
    data = DataConfig(path="rows.jsonl", seq_len=4096, packing=True)
    with pytest.raises(NothingFits) as caught:
        plan_for("8b", "1x24gb", data=data, batch=BatchConfig(global_=16, micro=16))
    outs = _outs(caught.value)
    assert len(outs) == 3
    assert "batch.micro=auto would do: ddp" in outs[0]
    again = plan_for("8b", "1x24gb", data=data)
    rate = RATE.search(outs[0])
    assert rate is not None
    assert rate[1] == f"{again.chosen.estimate.tokens_per_second:,.0f}"
    assert "of 24.0 GiB a device" in outs[0]


@pytest.mark.parametrize(("machine", "nodes"), [("pcie_5090x2", 1), ("pcie_5090x2", 3)])
def test_a_way_out_sees_the_links_of_the_machine(machine: str, nodes: int) -> None:
    """Of many hosts two are looked at, with all that joins them: at other rates another way would be told."""
    topology = preset(machine, nodes=nodes)
    config = RunConfig(
        model=ModelConfig(path="llama-2-70b"),
        data=DataConfig(path="rows.jsonl"),
        engine=EngineConfig(name=Engine.zero3),
        nodes=nodes,
    )
    stats = DataStats(rows=500, eval_rows=0, mean_tokens=48, max_tokens=100, total_tokens=24_000, source="counted")
    shape = preset_shape("Llama-2-70b")
    with pytest.raises(NothingFits) as caught:
        make_plan(config, topology, shape, stats, "run")
    opened = replace(config, engine=EngineConfig(), nodes=min(nodes, 2))
    plan = make_plan(opened, preset(machine, nodes=min(nodes, 2)), shape, stats, "run")
    first = next(out for out in _outs(caught.value) if "engine=auto would do" in out)
    assert f"engine=auto would do: {plan.chosen.strategy.label}," in first
    rate = RATE.search(first)
    assert rate is not None
    assert rate[1] == f"{plan.chosen.estimate.tokens_per_second:,.0f}"


def test_every_way_out_fits_when_it_is_taken(plan_for: Planner) -> None:
    """Long rows, a wide adapter and no checkpointing do not fit 24 GB; each setting told makes them fit."""
    asked = {
        "adapter": AdapterConfig(rank=512),
        "checkpointing": Checkpointing.none,
        "data": DataConfig(path="rows.jsonl", seq_len=4096, packing=True),
        "engine": EngineConfig(name=Engine.ddp),
    }
    with pytest.raises(NothingFits) as caught:
        plan_for("8b", "1x24gb", tokens=4096, **asked)
    outs = _outs(caught.value)
    assert len(outs) == 3
    for out in outs:
        plan_for("8b", "1x24gb", tokens=4096, **_changed(asked, _settings_of(out)))


def _settings_of(out: str) -> dict[str, str]:
    """What the user is told to type."""
    words = out.partition(" would do")[0].split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def _changed(asked: dict[str, Any], told: dict[str, str]) -> dict[str, Any]:
    """The fields of the configuration with these settings, as a command line would give them."""
    raw = dump_config(RunConfig(model=ModelConfig(path="8b"), **asked))
    assert told
    for key, value in told.items():
        group, _, name = key.partition(".")
        if not name and isinstance(raw[group], dict):
            name = "name"
        typed = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
        if name:
            raw[group][name] = typed
        else:
            raw[group] = typed
    config = parse_config(raw)
    return {name: getattr(config, name) for name in ("adapter", "base", "checkpointing", "data", "engine", "optimizer")}


def test_three_ways_out_for_70b_on_two_small_cards(plan_for: Planner) -> None:
    """All of the card's memory is short while loading, so neither rank, length, offload nor more cards help zero3."""
    with pytest.raises(NothingFits) as caught:
        plan_for("70b", "2x24gb-pcie", tokens=1024, engine=EngineConfig(name=Engine.zero3))
    outs = [out.partition(": ")[2].partition(" would do")[0] for out in _outs(caught.value)]
    assert len(set(outs)) == 3
    assert outs[0] == "engine=auto"  # which streams the layers
    assert any("card" in out for out in outs[1:])
    assert "cheapest first" in caught.value.problems[0].remedy


def test_what_is_enough_alone_is_not_told_with_something_else(plan_for: Planner) -> None:
    with pytest.raises(NothingFits) as caught:
        plan_for("70b", "1x24gb", tokens=2048, engine=EngineConfig(name=Engine.zero3))
    outs = [out.partition(": ")[2].partition(" would do")[0] for out in _outs(caught.value)]
    assert outs
    for out in outs:
        assert not any(out.startswith(f"{other} with ") for other in outs)
    if len(outs) < 3:
        assert "No other of the changes" in caught.value.problems[0].remedy


def test_the_tree_frees_more_at_each_branch_and_costs_more(plan_for: Planner) -> None:
    plan = plan_for("8b", "2x24gb-pcie", tokens=1024)
    freed = [branch.freed_bytes for branch in plan.tree]
    # Sharding stands where 1.35 times its time would, or 1.15 times.
    certain = [branch for branch in plan.tree if "engine=" not in " ".join(branch.settings)]
    percents = [round(branch.time_percent, 1) for branch in certain]
    assert freed == sorted(freed)
    assert percents == sorted(percents)
    assert any(len(branch.settings) > 1 for branch in plan.tree)
    assert freed[-1] >= max(trade.saved_bytes for trade in plan.trades)
    text = explain(plan)
    assert "Decision tree" in text
    assert " ".join(plan.tree[0].settings) in text


def test_a_branch_is_what_a_plan_with_its_settings_says(plan_for: Planner) -> None:
    asked = {"engine": EngineConfig(name=Engine.ddp), "data": DataConfig(path="rows.jsonl")}
    plan = plan_for("8b", "8xh100", tokens=1024, **asked)
    branch = next(one for one in plan.tree if len(one.settings) > 1 and "batch" not in " ".join(one.settings))
    told = dict(setting.split("=", 1) for setting in " ".join(branch.settings).split())
    strategy = plan.chosen.strategy
    held = {"devices": strategy.world_size, "batch": BatchConfig(global_=16, micro=max(strategy.micro))}
    changed = plan_for("8b", "8xh100", tokens=1024, **_changed(asked, told), **held)
    before, after = plan.chosen.estimate, changed.chosen.estimate
    assert branch.freed_bytes == before.memory.train.device_bytes - after.memory.train.device_bytes
    assert branch.time_percent == pytest.approx((after.step_seconds / before.step_seconds - 1) * 100)


def test_layers_share_what_a_change_of_all_of_them_saves(plan_for: Planner) -> None:
    plan = plan_for("8b", "8xh100", tokens=1024)
    assert {(entry.layers, entry.count) for entry in plan.layers} == {("0-31", 32)}
    assert len(plan.layers) >= 2
    for entry in plan.layers:
        if "checkpointing_layers=N" in entry.change:
            parts = [trade for trade in plan.trades if "checkpointing_layers=" in trade.change]
            shares = [int(trade.change.rpartition("=")[2].rstrip(")")) / 32 for trade in parts]
            assert entry.saved_bytes in {round(x.saved_bytes / share) for x, share in zip(parts, shares, strict=True)}
            continue
        (trade,) = [trade for trade in plan.trades if trade.change == entry.change]
        assert entry.saved_bytes == trade.saved_bytes
        assert entry.time_percent == pytest.approx(trade.time_percent)


def test_larger_cards_are_a_way_out_for_70b(plan_for: Planner) -> None:
    with pytest.raises(NothingFits) as caught:
        plan_for("70b", "2x24gb-pcie", tokens=1024, engine=EngineConfig(name=Engine.ddp))
    outs = _outs(caught.value)
    assert any("cards of" in out for out in outs)
    assert all("A step takes about" in out for out in outs)
    missing = [float(found) for found in re.findall(r"([\d.]+) GiB missing", str(caught.value))]
    assert missing == sorted(missing)
    assert missing


def test_16_bit_weights_are_told_to_be_quantised(plan_for: Planner) -> None:
    with pytest.raises(NothingFits) as caught:
        plan_for("8b", "4xv100-16gb", base=BaseConfig(quant=Quant.none), engine=EngineConfig(name=Engine.ddp))
    assert any("base.quant=nf4" in out for out in _outs(caught.value))


def test_conflicts_alone_have_no_way_out(plan_for: Planner) -> None:
    with pytest.raises(NothingFits) as caught:
        plan_for("8b", "2x24gb-pcie", engine=EngineConfig(name=Engine.zero3), checkpointing=Checkpointing.selective)
    assert _outs(caught.value) == []


def test_trades_are_what_a_plan_with_the_change_says(plan_for: Planner) -> None:
    plan = plan_for("8b", "8xh100", tokens=1024, engine=EngineConfig(name=Engine.ddp))
    strategy = plan.chosen.strategy
    assert strategy.checkpointing is Checkpointing.none
    (trade,) = [trade for trade in plan.trades if "checkpointing=full)" in trade.change]
    changed = plan_for(
        "8b",
        "8xh100",
        tokens=1024,
        engine=EngineConfig(name=Engine.ddp),
        checkpointing=Checkpointing.full,
        devices=strategy.world_size,
        batch=BatchConfig(global_=16, micro=max(strategy.micro)),
    )
    before, after = plan.chosen.estimate, changed.chosen.estimate
    assert trade.step_seconds == pytest.approx(after.step_seconds)
    assert trade.saved_bytes == before.memory.train.device_bytes - after.memory.train.device_bytes
    assert trade.time_percent == pytest.approx((after.step_seconds / before.step_seconds - 1) * 100)
    text = explain(plan)
    assert "If memory runs short, in this order" in text
    assert trade.change in text


def test_trades_stand_in_the_order_of_their_price(plan_for: Planner) -> None:
    for machine in ("2x24gb-pcie", "8xh100"):
        trades = plan_for("8b", machine, tokens=1024).trades
        # Sharding stands where 1.35 times its time would, or 1.15 times.
        trades = tuple(trade for trade in trades if "engine=" not in trade.change)
        paid = [t for t in trades if t.saved_bytes > 0 and t.time_percent >= 0.1]
        prices = [trade.saved_bytes / trade.time_percent for trade in paid]
        assert prices == sorted(prices, reverse=True)
        kinds = [2 if t.saved_bytes <= 0 else 1 if t.time_percent >= 0.1 else 0 for t in trades]
        assert kinds == sorted(kinds)


def test_a_near_miss_tells_what_would_let_a_whole_copy_fit(plan_for: Planner) -> None:
    """A little more memory than 24 GB: rows of 16 GiB cards, where 8B with a wide adapter must be partitioned."""
    wide = AdapterConfig(rank=256)
    plan = plan_for("8b", "4xv100-16gb", tokens=1024, adapter=wide)
    assert plan.chosen.strategy.engine is Engine.zero3
    found = [trade for trade in plan.trades if "a whole copy on each device" in trade.change]
    for trade in found:
        assert trade.fits
        assert "engine=ddp" in trade.change
    if ranks := [re.search(r"adapter.rank=(\d+)", trade.change) for trade in found]:
        told = next(rank for rank in ranks if rank is not None)
        again = plan_for(
            "8b",
            "4xv100-16gb",
            tokens=1024,
            adapter=AdapterConfig(rank=int(told[1])),
            engine=EngineConfig(name=Engine.ddp),
        )
        assert again.chosen.strategy.engine is Engine.ddp


MEMORY = re.compile(r"([\d.]+) GiB of (?:the )?([\d.]+) GiB")


@pytest.mark.parametrize(
    ("model", "machine"), [("7b", "cpu"), ("8b", "cpu"), ("70b", "2x24gb-pcie"), ("70b", "4xa100-40gb+4xh100-80gb")]
)
def test_no_way_out_takes_more_than_there_then_is(plan_for: Planner, model: str, machine: str) -> None:
    """The room told is that after the change: more host memory, larger cards, offload."""
    with pytest.raises(NothingFits) as caught:
        plan_for(model, machine, tokens=4096, base=BaseConfig(quant=Quant.none), engine=EngineConfig(name=Engine.ddp))
    outs = _outs(caught.value)
    assert outs
    for out in outs:
        told = MEMORY.search(out)
        assert told is not None, out
        assert float(told[1]) <= float(told[2]), out
        assert ("a device" in out) == (machine != "cpu")


def test_experts_in_one_tensor_are_told_where_nothing_fits() -> None:
    config = RunConfig(model=ModelConfig(path="mixtral"), data=DataConfig(path="rows.jsonl"))
    stats = DataStats(rows=9, eval_rows=1, mean_tokens=64, max_tokens=128, total_tokens=576, source="counted")
    with pytest.raises(NothingFits) as caught:
        make_plan(config, preset("1x24gb"), preset_shape("mixtral-8x7b"), stats, "run")
    told = next(str(problem) for problem in caught.value.problems if problem.where == "base.quant=nf4")
    assert "one 3-D tensor a layer, which bitsandbytes does not quantise" in told
    assert "45.1 billion of 46.7 billion parameters stay in 16 bits and take 84.0 GiB" in told
    assert "3-D tensor" not in _outs(caught.value)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": Precision.fp32}, "stay in 32 bits and take 168.0 GiB"),
        ({"precision": Precision.fp16}, "stay in 16 bits and take 84.0 GiB"),
        ({"base": BaseConfig(quant=Quant.none)}, ""),
    ],
)
def test_experts_are_told_by_their_own_width(changes: dict[str, Any], words: str) -> None:
    config = replace(RunConfig(model=ModelConfig(path="m"), data=DataConfig(path="r")), **changes)
    stats = DataStats(rows=9, eval_rows=1, mean_tokens=64, max_tokens=128, total_tokens=576, source="counted")
    machine = preset("1x24gb")
    asked = Asked(config=config, topology=machine, model=preset_shape("mixtral-8x7b"), data=stats)
    told = unpacked_experts(asked, choose_worlds(config, machine)[0])
    assert [words in str(problem) for problem in told] == ([True] if words else [])


def test_a_dense_model_is_not_told_about_experts(plan_for: Planner) -> None:
    with pytest.raises(NothingFits) as caught:
        plan_for("70b", "2x24gb-pcie", engine=EngineConfig(name=Engine.ddp))
    assert "3-D" not in str(caught.value)
