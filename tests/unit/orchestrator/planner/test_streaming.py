"""Plans of engine `streamed`: when it is taken, how its layers are cut, and what users may ask of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import BatchConfig, Checkpointing, DataConfig, Engine, EngineConfig, ModelConfig, RunConfig
from orchestrator.errors import NothingFits, UserError
from orchestrator.estimate.calibration import DEVICE_FILL
from orchestrator.lower import launch_spec
from orchestrator.planner.explain import explain
from orchestrator.planner.plan import Plan, dumps, loads
from orchestrator.planner.streamed_plan import StreamedPlan, TierBytes
from orchestrator.planner.subsets import choose_worlds
from orchestrator.planner.ways import conflict_of, ways_for
from topology.presets import preset
from topology.units import GIB, MIB

Planner = Callable[..., Plan]
STREAMED = EngineConfig(name=Engine.streamed)
MIXED = "4xa100-40gb+4xh100-80gb"


def _cut(plan: Plan) -> StreamedPlan:
    streamed = plan.chosen.strategy.streamed
    assert plan.chosen.strategy.engine is Engine.streamed
    assert streamed is not None
    return streamed


def _total(streamed: StreamedPlan, first: int = 0) -> int:
    return sum(streamed.shares[rank].total for rank in streamed.island_of(first))


def test_two_cpu_ranks_share_the_layers_equally(plan_for: Planner) -> None:
    plan = plan_for("tiny", "cpu", devices=2, engine=STREAMED)
    cut = _cut(plan)
    assert cut.island_size == 2
    assert cut.window == 3
    assert abs(cut.shares[0].device - cut.shares[1].device) <= 1
    assert all(share.host == share.nvme == 0 for share in cut.shares)  # device and host are one memory
    assert cut.gather_window_bytes is None
    assert cut.resident_bytes == 0
    assert loads(dumps(plan)) == plan
    assert "engine streamed was asked for" in explain(plan).lower()
    assert "Cut of the layers" in explain(plan)


def test_shards_and_window_are_the_users(plan_for: Planner) -> None:
    engine = replace(STREAMED, shards=(70, 30), window=2, chunk_mib=1)
    plan = plan_for("tiny", "cpu", devices=2, engine=engine)
    cut, even = _cut(plan), _cut(plan_for("tiny", "cpu", devices=2, engine=STREAMED))
    assert _total(cut) == _total(even)
    assert cut.shares[0].device == pytest.approx(0.7 * _total(cut), abs=1)
    assert (cut.window, cut.most_window, cut.chunk_bytes) == (2, 2, MIB)
    assert plan.chosen.strategy.label.startswith("streamed on 2 ranks, window 2, 70/30")
    held = next(term for term in plan.chosen.estimate.memory.train.terms if term.name == "base_shard")
    assert held.bytes == cut.shares[0].device  # of the fullest rank
    assert set(plan.chosen.strategy.shares) == {8}  # rows are another matter


def test_one_cpu_rank_streams_only_if_asked_to(plan_for: Planner) -> None:
    assert _cut(plan_for("tiny", "cpu", devices=1, engine=STREAMED)).island_size == 1
    plan = plan_for("tiny", "cpu", devices=1)
    assert plan.chosen.strategy.engine is Engine.ddp
    assert any("nothing to stream" in entry.reason for entry in plan.rejected)


def test_a_base_that_fits_is_not_streamed(plan_for: Planner) -> None:
    for model, machine in (("tiny", "cpu"), ("8b", "8xh100"), ("8b", "2x24gb-pcie")):
        assert plan_for(model, machine, tokens=1024).chosen.strategy.engine is Engine.ddp


def test_fetching_what_a_whole_copy_has_room_for_is_not_listed(plan_for: Planner) -> None:
    plan = plan_for("tiny", "8xh100")
    assert not any(choice.strategy.engine is Engine.streamed for choice in plan.ranked)
    assert any("a whole copy fits" in entry.reason for entry in plan.rejected)


def test_a_base_larger_than_the_card_waits_in_host_memory(plan_for: Planner) -> None:
    """As little of it as must: the card is full to the rule's limit."""
    plan = plan_for("70b", "1x24gb", tokens=1024)
    cut = _cut(plan)
    memory = plan.chosen.estimate.memory
    assert cut.shares[0].host > cut.shares[0].device > 0
    limit = DEVICE_FILL.value * plan.device_memory_bytes
    assert limit - 64 * MIB < memory.train.device_bytes <= limit
    host = {term.name: term.bytes for term in memory.train.host_terms}
    assert host["offloaded_base"] == cut.shares[0].host
    assert memory.train.pinned_bytes >= cut.shares[0].host
    assert "in host memory" in plan.chosen.strategy.label
    assert cut.most_window == cut.window
    copied = next(term for term in plan.chosen.estimate.time_terms if term.name == "base_copy")
    assert copied.total_seconds > 0
    assert not any(term.name == "base_gather" for term in plan.chosen.estimate.time_terms)


def test_a_host_share_may_be_asked_for(plan_for: Planner) -> None:
    half = _cut(plan_for("8b", "2x24gb-pcie", engine=replace(STREAMED, host_share=0.5)))
    assert sum(share.host for share in half.shares) == pytest.approx(_total(half) / 2, abs=2)
    none = _cut(plan_for("8b", "2x24gb-pcie", engine=replace(STREAMED, host_share=0.0)))
    assert not any(share.host for share in none.shares)
    with pytest.raises(NothingFits, match="a card while training"):
        plan_for("70b", "1x24gb", tokens=1024, engine=replace(STREAMED, host_share=0.0))


def test_a_drive_takes_the_rest_where_host_memory_is_short(plan_for: Planner) -> None:
    machine = preset("1x24gb")
    (host,) = machine.hosts
    small = replace(machine, hosts=(replace(host, memory_bytes=20 * GIB, available_memory_bytes=20 * GIB),))
    with pytest.raises(NothingFits):
        plan_for("70b", small, tokens=1024, engine=STREAMED)
    plan = plan_for("70b", small, tokens=1024, engine=replace(STREAMED, nvme_path="/fast"))
    cut = _cut(plan)
    assert cut.nvme_path == "/fast"
    assert cut.shares[0].nvme > 0
    assert plan.chosen.estimate.memory.host_bytes <= 20 * GIB


def test_all_ranks_of_one_host_share_a_copy(plan_for: Planner) -> None:
    cut = _cut(plan_for("70b", "pcie_4090x8", tokens=1024))
    assert cut.island_size == 8
    assert not any(share.host for share in cut.shares)
    assert max(share.device for share in cut.shares) - min(share.device for share in cut.shares) <= 1
    assert len(cut.window_bytes) == 8
    assert cut.gather_window_bytes == min(pace for pace in cut.window_bytes if pace is not None)
    assert cut.gather_window_bytes % cut.chunk_bytes == 0


def test_two_hosts_with_nvlink_hold_a_copy_each(plan_for: Planner) -> None:
    machine = preset("a100_sxm_x4", nodes=2)
    plan = plan_for("70b", machine, tokens=1024, nodes=2, engine=STREAMED, devices=8)
    cut = _cut(plan)
    assert (cut.island_size, cut.islands) == (4, 2)
    assert _total(cut, 0) == _total(cut, 4)
    assert "a copy in each host" in plan.chosen.strategy.label
    whole = _cut(plan_for("70b", machine, tokens=1024, nodes=2, engine=replace(STREAMED, island=8), devices=8))
    assert (whole.island_size, _total(whole)) == (8, _total(cut))


def test_devices_that_differ_hold_parts_by_their_room(plan_for: Planner) -> None:
    """Every layer is covered, and who holds less has no room for more."""
    batch = BatchConfig(global_=32, micro=4)
    plan = plan_for("70b", MIXED, tokens=2048, nodes=2, devices=8, batch=batch, engine=replace(STREAMED, island=8))
    cut, even = _cut(plan), _cut(plan_for("70b", "8xh100", tokens=1024, devices=8, engine=STREAMED))
    assert _total(cut) + cut.resident_bytes >= 0.99 * (_total(even) + even.resident_bytes)
    assert loads(dumps(plan)) == plan
    assert any("A100" in line for line in cut.told)
    assert plan.shards == cut.told
    small, large = cut.shares[0], cut.shares[-1]
    assert small.device <= large.device


def test_budgets_cap_what_a_rank_holds(plan_for: Planner) -> None:
    batch = BatchConfig(global_=2, micro=1)
    free = _cut(plan_for("8b", "2x24gb-pcie", engine=STREAMED, batch=batch))
    engine = replace(STREAMED, budgets_gib=(20.0, 8.0), host_share=0.0)
    plan = plan_for("8b", "2x24gb-pcie", engine=engine, batch=batch)
    cut = _cut(plan)
    assert _total(cut) + cut.resident_bytes == pytest.approx(_total(free) + free.resident_bytes, rel=0.01)
    assert cut.shares[1].device <= cut.shares[0].device
    assert "(8.0 GiB to fill)" in explain(plan)


@pytest.mark.parametrize("name", [Engine.ddp, Engine.streamed])
def test_a_budget_that_nothing_fits_is_named(plan_for: Planner, name: Engine) -> None:
    with pytest.raises(NothingFits, match=r"engine\.budgets_gib"):
        plan_for("tiny", "cpu", devices=2, engine=EngineConfig(name=name, budgets_gib=(0.001, 0.001)))


def test_budgets_of_cpu_ranks_count_tensors(plan_for: Planner) -> None:
    """A base that one rank's budget does not hold: the parts follow what is left of each."""
    asked = {"tokens": 64, "devices": 2, "batch": BatchConfig(global_=2, micro=1), "checkpointing": Checkpointing.full}
    plain = plan_for("7b", "cpu", engine=STREAMED, **asked)
    memory, total = plain.chosen.estimate.memory, _total(_cut(plain))
    rest = max(memory.train.allocated_bytes, memory.load.allocated_bytes) - _cut(plain).shares[0].device
    budgets = ((rest + 0.8 * total) / GIB, (rest + 0.3 * total) / GIB)
    cut = _cut(plan_for("7b", "cpu", engine=replace(STREAMED, budgets_gib=budgets), **asked))
    assert cut.shares[1].device == pytest.approx(0.3 * total, rel=0.05)
    assert _total(cut) == total


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        (replace(STREAMED, shards=(1.0, 1.0, 1.0)), "engine.shards"),
        (replace(STREAMED, budgets_gib=(1.0,)), "engine.budgets_gib"),
    ],
)
def test_lists_need_a_number_for_each_rank(plan_for: Planner, engine: EngineConfig, where: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_for("tiny", "cpu", devices=2, engine=engine)
    assert [problem.where for problem in caught.value.problems] == [where]


def test_what_cannot_be_streamed_is_told(plan_for: Planner) -> None:
    with pytest.raises(NothingFits, match="islands of 3"):
        plan_for("tiny", "cpu", devices=2, engine=replace(STREAMED, island=3))


def test_code_that_comes_with_the_weights_is_not_streamed() -> None:
    config = RunConfig(model=ModelConfig(path="m", trust_remote_code=True), data=DataConfig(path="d"), engine=STREAMED)
    (world,) = choose_worlds(config, preset("cpu"))
    (first, *_) = ways_for(config, world, 4)
    assert "code that comes with the weights" in (conflict_of(config, world, first, "fp32") or "")


def test_layers_that_arrive_late_are_held_whole_as_far_as_there_is_room(plan_for: Planner) -> None:
    """Over PCIe a short micro-batch computes a layer sooner than the next one arrives."""
    late = _cut(plan_for("70b", "pcie_4090x8", tokens=256, engine=STREAMED, batch=BatchConfig(global_=8, micro=1)))
    early = _cut(plan_for("70b", "8xh100", tokens=2048, engine=STREAMED, devices=8))
    assert late.resident_bytes > 0
    assert early.resident_bytes == 0


def test_the_plan_says_why_and_what_is_waited_for(plan_for: Planner) -> None:
    pays = plan_for("70b", preset(MIXED), tokens=1024, nodes=2)
    assert pays.chosen.strategy.engine is Engine.streamed
    assert any("Partitioning the base pays: ddp would take" in reason for reason in pays.reasons)
    assert any("layers are gathered inside each host" in reason for reason in pays.reasons)
    must = plan_for("70b", "1x24gb", tokens=1024)
    (why,) = [reason for reason in must.reasons if "whole copy does not fit" in reason]
    assert "a step to fetch" in why
    assert "pinned host memory" in "\n".join(must.shards)


def test_a_setting_of_the_cut_is_a_way_out(plan_for: Planner) -> None:
    with pytest.raises(NothingFits) as caught:
        plan_for("70b", "1x24gb", tokens=1024, engine=replace(STREAMED, host_share=0.0))
    outs = [problem.found for problem in caught.value.problems if problem.where.startswith("way out")]
    assert any(out.startswith("engine.host_share=auto would do: streamed") for out in outs)


def test_a_plan_for_streaming_launches_like_ddp(plan_for: Planner) -> None:
    specs = [
        launch_spec(plan_for("tiny", "cpu", devices=2, engine=EngineConfig(name=name)), "/run", "python")
        for name in (Engine.ddp, Engine.streamed)
    ]
    assert specs[0] == specs[1]


def test_rejected_values_of_a_plan() -> None:
    share = TierBytes(device=1)
    with pytest.raises(ValueError, match="a window of 3 of at most 2"):
        StreamedPlan(shares=(share,), island_size=1, resident_bytes=0, window=3, most_window=2, chunk_bytes=1)
