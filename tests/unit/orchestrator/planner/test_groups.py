"""Groups for a second copy of the base: hosts, and the islands that NVLink makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import BatchConfig, Engine, EngineConfig, Offload
from orchestrator.planner.explain import explain
from orchestrator.planner.groups import groups_of, near_of
from orchestrator.planner.plan import Plan
from topology.model import Topology
from topology.presets import preset

Planner = Callable[..., Plan]


def _groups(topology: Topology) -> list[tuple[str, int]]:
    near = near_of(topology)
    gpus = [host.devices for host in topology.hosts]
    pairs = [near.pairs[host.name] for host in topology.hosts]
    return [(group.name, group.ranks) for group in groups_of(gpus, pairs, near)]


@pytest.mark.parametrize(
    ("name", "nodes", "wanted"),
    [
        ("dgx_h100", 1, []),
        ("dgx_h100", 2, [("host", 8)]),
        ("a100_pcie_pairs_x4", 1, [("island", 2)]),
        ("a100_pcie_pairs_x4", 3, [("island", 2), ("host", 4)]),
        ("pcie_4090x2", 1, []),
        ("pcie_4090x2", 2, [("host", 2)]),
        ("gb200_nvl72", 1, []),
        ("gb200_nvl72", 2, [("island", 72)]),
    ],
)
def test_islands_and_hosts(name: str, nodes: int, wanted: list[tuple[str, int]]) -> None:
    assert _groups(preset(name, nodes=nodes)) == wanted


def test_islands_that_do_not_follow_the_ranks_are_no_groups() -> None:
    """Ranks 0 and 2 share a bridge: DeepSpeed would take 0 and 1."""
    topology = preset("a100_pcie_pairs_x4")
    (host,) = topology.hosts
    order = [host.devices[at] for at in (0, 2, 1, 3)]
    crossed = replace(topology, hosts=(replace(host, devices=tuple(order)),), links=(), switches=())
    assert _groups(crossed) == []


def test_two_bridged_pairs_of_a_host_are_offered_a_copy_each(plan_for: Planner) -> None:
    """Across the pairs goes PCIe: inside a pair the backward pass gathers many times as fast."""
    engine = EngineConfig(name=Engine.zero3, offload_param=Offload.none)
    plan = plan_for("8b", "a100_pcie_pairs_x4", engine=engine, devices=4, batch=BatchConfig(global_=16, micro=1))
    copies = [c for c in plan.ranked if c.strategy.extras is not None and c.strategy.extras.hpz_partition_size == 2]
    assert copies
    assert "a copy in each island of 2" in copies[0].strategy.label
    plain = [c for c in plan.ranked if c.strategy.extras is not None and c.strategy.extras.hpz_partition_size == 1]
    same = [c for c in plain if c.strategy.checkpointing is copies[0].strategy.checkpointing]
    assert copies[0].estimate.step_seconds < same[0].estimate.step_seconds
    assert copies[0].estimate.memory.train.device_bytes > same[0].estimate.memory.train.device_bytes


def test_mics_is_told_with_its_group_and_why_it_is_not_used(plan_for: Planner) -> None:
    engine = EngineConfig(name=Engine.zero3, offload_param=Offload.none)
    plan = plan_for("8b", "a100_pcie_pairs_x4", engine=engine, devices=4)
    (knob,) = [knob for knob in plan.knobs if knob.name == "mics_shard_size"]
    assert knob.value == -1
    assert "2 ranks" in knob.why
    assert "removed MiCS" in knob.why
    assert "mics_shard_size" in explain(plan)


@pytest.mark.parametrize("nodes", [1, 2, 16])
def test_whole_copies_win_at_any_number_of_hosts(plan_for: Planner, nodes: int) -> None:
    """8B fits every card: a ring gather over many ranks for each module must not look cheap (1,024: test_speed)."""
    topology = preset("dgx_h100", nodes=nodes)
    plan = plan_for("8b", topology, nodes=nodes, tokens=2048, batch=BatchConfig(global_=16 * nodes))
    assert plan.chosen.strategy.engine is Engine.ddp
