"""Another plan after something has happened: same rows and adapters, and less memory after an out of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.calibration_file import Chosen
from orchestrator.config import (
    BatchConfig,
    Checkpointing,
    DataConfig,
    Engine,
    EngineConfig,
    LaunchConfig,
    RecoveryConfig,
)
from orchestrator.errors import NothingFits, UserError
from orchestrator.planner.ceilings import factors_for
from orchestrator.planner.events import Back, Lost, OutOfMemory, SlowNetwork, SlowRanks, phase_of_estimate
from orchestrator.planner.plan import Plan, dumps, loads
from orchestrator.planner.replan import Ground, Replanned, replan
from orchestrator.planner.setbacks import Ceiling, Setbacks, SlowLink, device_of, slots_of
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from tests.unit.orchestrator.conftest import MODELS
from topology.model import Topology
from topology.network import NetworkSpec, repeated
from topology.presets import preset
from topology.units import GIB, MIB

Planner = Callable[..., Plan]


def _stats(tokens: int = 512) -> DataStats:
    return DataStats(
        rows=1000,
        eval_rows=50,
        mean_tokens=tokens / 2,
        max_tokens=tokens,
        total_tokens=500 * tokens,
        source="counted",
    )


def _ground(model: str, topology: Topology, tokens: int = 512, **more: Any) -> Ground:
    shape = shape_from_config(model, {"model_type": "llama", **MODELS[model]})
    return Ground(topology=topology, model=shape, data=_stats(tokens), known=Chosen(), **more)


def _needed(plan: Plan, phase: str = "train", where: str = "device") -> int:
    found: int = getattr(getattr(plan.chosen.estimate.memory, phase), f"{where}_bytes")
    return found


def _same_work(before: Plan, after: Plan) -> None:
    """The rows of a step, their cut, the adapters, the base and the arithmetic: what a checkpoint is bound to."""
    one, other = before.run_config, after.run_config
    assert one.batch.global_ == other.batch.global_ == after.chosen.strategy.global_batch
    assert (one.seed, one.base, one.data.packing, one.data.group_by_length) == (
        other.seed,
        other.base,
        other.data.packing,
        other.data.group_by_length,
    )
    assert (one.adapter, one.optimizer, one.model) == (other.adapter, other.optimizer, other.model)
    assert before.chosen.strategy.precision == after.chosen.strategy.precision
    assert before.rows_tokens == after.rows_tokens


def _down_the_ladder(plan: Plan, ground: Ground, event: OutOfMemory, most: int = 40) -> tuple[list[Replanned], str]:
    """All plans until the refusal, and its words."""
    found: list[Replanned] = []
    for _ in range(most):
        try:
            again = replan(plan, ground, event)
        except NothingFits as error:
            return found, str(error)
        found.append(again)
        plan = loads(dumps(again.plan))  # as a supervisor that was started anew would read it
    raise AssertionError(f"{most} plans and no end")


@pytest.mark.parametrize(
    ("model", "machine", "tokens", "rows"),
    [("8b", "2x24gb-pcie", 2048, 32), ("7b", "1x24gb", 1024, 16)],
)
def test_each_plan_after_an_out_of_memory_needs_less_until_none_is_left(
    plan_for: Planner, model: str, machine: str, tokens: int, rows: int
) -> None:
    first = plan_for(model, machine, tokens=tokens, batch=BatchConfig(global_=rows))
    found, words = _down_the_ladder(
        first, _ground(model, preset(machine), tokens), OutOfMemory(where="device", phase="train")
    )
    assert found
    plans = [first, *(again.plan for again in found)]
    needs = [_needed(plan) for plan in plans]
    assert needs == sorted(needs, reverse=True)
    assert len(set(needs)) == len(needs)
    assert len({plan.chosen.strategy for plan in plans}) == len(plans)
    for again in found:
        _same_work(first, again.plan)
        assert again.changes
        assert not again.lossy
    assert "no plan that needs less is left" in words
    assert "streamed on" in words


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(
        st.tuples(
            st.sampled_from(["device", "host"]),
            st.sampled_from(["load", "train", "save"]),
            st.sampled_from([None, 0, 1]),
            st.integers(0, 4),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_runs_out_no_plan_comes_back(plan_for: Planner, kinds: list[tuple[str, str, int | None, int]]) -> None:
    ground = _ground("tiny", preset("2x24gb-pcie"))
    plan = plan_for("tiny", "2x24gb-pcie", batch=BatchConfig(global_=32))
    limits: dict[tuple[str, str], int] = {}
    seen = {plan.chosen.strategy}
    for where, phase, rank, asked in kinds:
        event = OutOfMemory(
            where=where,
            phase=phase,
            rank=None if rank is None else min(rank, plan.chosen.strategy.world_size - 1),
            used_bytes=4 * GIB,
            asked_bytes=asked * GIB,
            free_bytes=100 * MIB,
        )
        limits[where, phase] = _needed(plan, phase, where)
        try:
            plan = replan(plan, ground, event).plan
        except NothingFits:
            return
        assert all(_needed(plan, phase, where) < limit for (where, phase), limit in limits.items())
        assert plan.chosen.strategy not in seen
        seen.add(plan.chosen.strategy)


def test_a_micro_batch_is_halved_before_anything_slower_is_done(plan_for: Planner) -> None:
    first = plan_for("8b", "1x24gb", tokens=2048, batch=BatchConfig(global_=16))
    again = replan(first, _ground("8b", preset("1x24gb"), 2048), OutOfMemory(where="device", phase="train", rank=0))
    assert any(change.startswith(("micro-batch ", "activations ")) for change in again.changes)
    assert again.plan.chosen.strategy.engine is first.chosen.strategy.engine


def test_settings_of_the_user_are_opened_one_by_one(plan_for: Planner) -> None:
    fixed = {
        "batch": BatchConfig(global_=16, micro=4),
        "checkpointing": Checkpointing.none,
        "engine": EngineConfig(name=Engine.ddp),
    }
    first = plan_for("8b", "1x24gb", tokens=512, **fixed)
    found, _ = _down_the_ladder(
        first, _ground("8b", preset("1x24gb"), 512), OutOfMemory(where="device", phase="train", rank=0)
    )
    opened = [again.plan.setbacks.opened for again in found if again.plan.setbacks is not None]
    assert opened[0] == ("batch.micro=auto",)
    assert all(one == other[: len(one)] for one, other in pairwise(opened))
    assert opened[-1][-1] in {"checkpointing=auto", "engine=auto"}


def test_what_the_rank_says_counts_where_it_asks_for_more_than_a_tenth_less() -> None:
    event = OutOfMemory(where="device", phase="train", used_bytes=5 * GIB, asked_bytes=10 * GIB, free_bytes=GIB)
    assert factors_for(event) == (0.4, 0.9, 0.95, 0.98)
    assert factors_for(replace(event, asked_bytes=GIB + 1)) == (0.9, 0.95, 0.98)
    assert factors_for(OutOfMemory(where="host", phase="load")) == (0.9, 0.95, 0.98)


def test_the_host_running_out_takes_the_offload_back(plan_for: Planner) -> None:
    engine = EngineConfig(name=Engine.streamed, host_share=0.5)
    first = plan_for("8b", "2x24gb-pcie", tokens=512, batch=BatchConfig(global_=16), engine=engine)
    assert first.chosen.strategy.streamed is not None
    assert any(share.host for share in first.chosen.strategy.streamed.shares)
    again = replan(first, _ground("8b", preset("2x24gb-pcie")), OutOfMemory(where="host", phase="train", rank=1))
    assert _needed(again.plan, "train", "host") < _needed(first, "train", "host")
    assert again.plan.setbacks is not None
    assert again.plan.setbacks.opened


def test_cpu_ranks_need_less_of_the_host(plan_for: Planner) -> None:
    topology = preset("cpu")
    first = plan_for("tiny", topology, tokens=512, batch=BatchConfig(global_=32))
    found, _ = _down_the_ladder(first, _ground("tiny", topology), OutOfMemory(where="host", phase="train", rank=1))
    needs = [_needed(plan, "train", "host") for plan in (first, *(again.plan for again in found))]
    assert len(needs) > 2
    assert all(other < one for one, other in pairwise(needs))


def test_the_longest_rows_are_cut_last_and_only_where_it_is_allowed(plan_for: Planner) -> None:
    data, recovery = DataConfig(path="rows.jsonl", seq_len=1024), RecoveryConfig(allow_lossy=True)
    first = plan_for("7b", "1x24gb", tokens=1024, batch=BatchConfig(global_=4), data=data, recovery=recovery)
    ground = _ground("7b", preset("1x24gb"), 1024)
    lossy, _ = _down_the_ladder(first, ground, OutOfMemory(where="device", phase="train"))
    cut = [again.lossy for again in lossy]
    assert any(cut)
    assert cut == sorted(cut)
    assert "lossy" in lossy[-1].changes[0]
    assert lossy[-1].plan.chosen.strategy.seq_len < 1024
    _same_work(first, lossy[-1].plan)
    last = next(again.plan for again in reversed(lossy) if not again.lossy)
    setbacks = last.setbacks
    assert setbacks is not None
    config = {**setbacks.config, "recovery": {**setbacks.config["recovery"], "allow_lossy": False}}
    event = OutOfMemory(where="device", phase="train")
    with pytest.raises(NothingFits):
        replan(replace(last, setbacks=replace(setbacks, config=config)), ground, event)


def test_a_rank_on_a_smaller_card_lowers_its_own_kind_alone(plan_for: Planner) -> None:
    machine = "2xa100-40gb+2xt4"
    first = plan_for("7b", machine, tokens=1024, batch=BatchConfig(global_=32), devices=4, nodes=2)
    ids = first.chosen.strategy.device_ids
    names = [device.name for device in preset(machine).devices]
    rank = next(at for at in range(4) if "T4" in names[at])
    again = replan(first, _ground("7b", preset(machine), 1024), OutOfMemory(where="device", phase="train", rank=rank))
    assert len(ids) == 4
    assert again.plan.setbacks is not None
    (ceiling,) = again.plan.setbacks.ceilings
    assert "T4" in ceiling.device_name
    assert ceiling.nbytes < 16 * GIB


def test_a_lost_device_is_planned_without(plan_for: Planner) -> None:
    topology = preset("8xa100-80gb")
    first = plan_for("70b", "8xa100-80gb", tokens=2048, batch=BatchConfig(global_=64))
    gone = first.chosen.strategy.device_ids[3]
    again = replan(first, _ground("70b", topology, 2048), Lost(devices=(gone,)))
    strategy = again.plan.chosen.strategy
    assert gone not in strategy.device_ids
    assert gone not in {device.id for device in again.topology.devices}
    assert strategy.world_size < 8
    assert min(strategy.shares) >= 1
    _same_work(first, again.plan)
    assert f"ranks 8 -> {strategy.world_size}" in again.changes
    back = replan(again.plan, _ground("70b", topology, 2048), Back(devices=(gone,)))
    assert back.plan.chosen.strategy == first.chosen.strategy
    assert back.topology == topology


def test_lists_for_ranks_lose_those_of_the_lost_ones(plan_for: Planner) -> None:
    machine = "8xa100-80gb"
    engine = EngineConfig(speeds=(1.0, 0.5, 1.0, 1.0))
    first = plan_for("8b", machine, batch=BatchConfig(global_=32), engine=engine, devices=4)
    again = replan(first, _ground("8b", preset(machine)), Lost(ranks=(1,)))
    assert again.plan.run_config.engine.speeds == (1.0, 1.0, 1.0)
    assert again.plan.chosen.strategy.world_size == 3


def _cluster(count: int) -> Topology:
    return repeated(preset("cpu"), count, NetworkSpec())


def test_hosts_leave_and_come_back(plan_for: Planner) -> None:
    topology = _cluster(3)
    names = ("a", "b", "c")
    launch = LaunchConfig(hosts=names)
    first = plan_for("tiny", topology, batch=BatchConfig(global_=32), nodes=3, devices=6, launch=launch)
    assert first.chosen.strategy.ranks_per_host == (2, 2, 2)
    ground = _ground("tiny", topology, counts=(2, 2, 2), named=names)
    two = replan(first, ground, Lost(hosts=(topology.hosts[1].name,)))
    assert two.plan.chosen.strategy.ranks_per_host == (2, 2)
    assert two.plan.run_config.launch.hosts == ("a", "c")
    _same_work(first, two.plan)
    one = replan(two.plan, ground, Lost(hosts=(topology.hosts[0].name,)))
    assert one.plan.chosen.strategy.ranks_per_host == (2,)
    assert one.plan.run_config.launch.hosts == ("c",)
    all_back = replan(one.plan, ground, Back(hosts=(topology.hosts[0].name, topology.hosts[1].name)))
    assert all_back.plan.chosen.strategy == first.chosen.strategy
    assert all_back.plan.run_config.launch.hosts == names
    with pytest.raises(NothingFits, match="no host or device is left"):
        replan(one.plan, ground, Lost(hosts=(topology.hosts[2].name,)))


def test_fewer_ranks_than_the_user_wants_are_refused(plan_for: Planner) -> None:
    recovery = RecoveryConfig(min_ranks=2)
    first = plan_for("tiny", "cpu", batch=BatchConfig(global_=32), devices=2, recovery=recovery)
    with pytest.raises(NothingFits, match=r"recovery\.min_ranks=2 asks for more"):
        replan(first, _ground("tiny", preset("cpu")), Lost(ranks=(0,)))


def test_a_cpu_rank_less(plan_for: Planner) -> None:
    first = plan_for("tiny", "cpu", batch=BatchConfig(global_=32), devices=2)
    again = replan(first, _ground("tiny", preset("cpu")), Lost(ranks=(1,)))
    assert again.plan.chosen.strategy.world_size == 1
    assert "ranks 2 -> 1" in again.changes


@pytest.mark.parametrize("machine", ["2x24gb-pcie", "cpu"])
def test_a_slow_rank_takes_fewer_rows(plan_for: Planner, machine: str) -> None:
    first = plan_for("8b" if machine != "cpu" else "tiny", machine, batch=BatchConfig(global_=32), devices=2)
    assert first.chosen.strategy.shares == (16, 16)
    ground = _ground("8b" if machine != "cpu" else "tiny", preset(machine))
    again = replan(first, ground, SlowRanks(speeds=(1.0, 1 / 3)))
    fast, slow = again.plan.chosen.strategy.shares
    assert fast / slow == pytest.approx(3, rel=0.25)
    _same_work(first, again.plan)
    assert f"rows of each rank 16/16 -> {fast}/{slow}" in again.changes
    # What is as fast as planned now changes nothing more.
    same = replan(again.plan, ground, SlowRanks(speeds=(1.0, 1.0)))
    assert same.plan.chosen.strategy.shares == (fast, slow)
    assert same.changes == ()


def test_a_slow_link_is_planned_with(plan_for: Planner) -> None:
    topology = preset("8xa100-80gb")
    first = plan_for("8b", topology, batch=BatchConfig(global_=64), engine=EngineConfig(name=Engine.streamed))
    link = next(x for x in topology.links if first.chosen.strategy.device_ids[0] in {x.a, x.b} and "NV" in x.kind)
    again = replan(first, _ground("8b", topology), SlowLink(a=link.b, b=link.a, bytes_per_second=1e9))
    found = next(x for x in again.topology.links if {x.a, x.b} == {link.a, link.b})
    assert found.bytes_per_second == 1e9
    used = set(again.plan.chosen.strategy.device_ids)
    slower = again.plan.chosen.estimate.step_seconds > first.chosen.estimate.step_seconds
    assert slower or first.chosen.strategy.device_ids[0] not in used


def test_a_slow_network_is_planned_for_with_each_port_as_slow(plan_for: Planner) -> None:
    topology = repeated(preset("dgx_a100"), 2, NetworkSpec())
    first = plan_for("8b", topology, batch=BatchConfig(global_=64), nodes=2, devices=16)
    again = replan(first, _ground("8b", topology), SlowNetwork(share=0.01))
    print(again.changes)
    ports = {nic.id: nic.bytes_per_second for host in topology.hosts for nic in host.nics}
    for host in again.topology.hosts:
        for nic in host.nics:
            assert nic.bytes_per_second is not None
            assert nic.bytes_per_second == pytest.approx(0.01 * min(rate for rate in ports.values() if rate))
    assert again.plan.setbacks is not None
    assert {link.a for link in again.plan.setbacks.links} == {host.name for host in topology.hosts}
    assert again.plan.chosen.estimate.step_seconds > first.chosen.estimate.step_seconds
    _same_work(first, again.plan)
    # Once more as slow: the share is of what was planned last.
    third = replan(again.plan, _ground("8b", topology), SlowNetwork(share=0.5))
    assert third.plan.setbacks is not None
    assert [link.bytes_per_second for link in third.plan.setbacks.links] == pytest.approx(
        [link.bytes_per_second / 2 for link in again.plan.setbacks.links]
    )


def test_no_network_is_slower_than_itself() -> None:
    for share in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match="not slow"):
            SlowNetwork(share=share)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Lost(devices=("nobody",)), "a device nobody"),
        (Lost(ranks=(7,)), "a rank 7 of 2"),
        (Lost(hosts=("nowhere",)), "a host nowhere"),
        (SlowRanks(speeds=(1.0,)), "of 2 ranks"),
        (SlowLink(a="x", b="y", bytes_per_second=1.0), "a link x - y"),
        (SlowNetwork(share=0.5), "a network between hosts whose rate is known"),
    ],
)
def test_what_cannot_have_happened_is_refused(plan_for: Planner, event: Any, words: str) -> None:
    first = plan_for("tiny", "cpu", batch=BatchConfig(global_=32), devices=2)
    with pytest.raises(UserError, match=words):
        replan(first, _ground("tiny", preset("cpu")), event)


def test_values_refuse_what_no_estimate_has() -> None:
    with pytest.raises(ValueError, match="no memory 'disk'"):
        Ceiling(phase="train", where="disk", device_name="x", nbytes=1)
    with pytest.raises(ValueError, match="phase 'eval'"):
        OutOfMemory(where="host", phase="eval")
    assert [phase_of_estimate(doing) for doing in ("loading", "evaluating", "saving", "")] == [
        "load",
        "train",
        "save",
        "train",
    ]


def test_places_of_ranks_have_names_of_their_own() -> None:
    assert slots_of(("h/cpu0", "h/cpu0", "h/cpu1", "h/cpu0")) == ("h/cpu0", "h/cpu0#1", "h/cpu1", "h/cpu0#2")
    assert [device_of(slot) for slot in ("h/cpu0#2", "GPU-1", "a#b")] == ["h/cpu0", "GPU-1", "a#b"]


def test_a_plan_carries_its_setbacks_through_json(plan_for: Planner) -> None:
    first = plan_for("tiny", "cpu", batch=BatchConfig(global_=32))
    assert "setbacks" not in dumps(first)
    ceiling = Ceiling(phase="train", where="host", device_name="x", nbytes=5)
    met = Setbacks(
        config=first.config, slots=("a",), ceilings=(ceiling,), links=(SlowLink(a="a", b="", bytes_per_second=1.0),)
    )
    again = replace(first, setbacks=met)
    assert loads(dumps(again)) == again
