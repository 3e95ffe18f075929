"""Hosts with unequal numbers of ranks: what is planned there, and that nothing changes where all have equally many."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Backend, BatchConfig, DataConfig, LaunchConfig, ModelConfig, RunConfig, TopologyConfig
from orchestrator.errors import UserError
from orchestrator.planner.build import make_plan
from orchestrator.planner.latency import reduce_latency_seconds
from orchestrator.planner.plan import Plan, dumps, from_json, loads, to_json
from orchestrator.planner.ranks import counts_label, host_of_rank, hosts_of_ranks
from orchestrator.planner.spreads import filled, levelled, spreads
from orchestrator.planner.subsets import choose_worlds
from orchestrator.planner.world import World, device_classes, machines, rank_classes
from orchestrator.workload.batch import DataStats
from orchestrator.workload.named import preset_shape
from topology.model import Topology
from topology.network import merge
from topology.presets import preset
from topology.units import GIB

STATS = DataStats(rows=1000, eval_rows=0, mean_tokens=350.0, max_tokens=1100, total_tokens=350_000, source="counted")
QUAD_AND_PAIR = ("a100_sxm_x4", "2x24gb-pcie")
ROOMS = st.lists(st.integers(1, 8), min_size=1, max_size=5)


def _machine(*names: str) -> Topology:
    return merge([preset(name) for name in names])


def _config(machine: Topology, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "model": ModelConfig(path="llama-3-8b"),
        "data": DataConfig(path="r"),
        "topology": TopologyConfig(path="machines"),
        "nodes": len(machine.hosts),
        "batch": BatchConfig(global_=64),
    }
    return RunConfig(**{**fields, **changes})


def _worlds(machine: Topology, counts: tuple[int, ...] = (), **changes: Any) -> dict[str, World]:
    found = choose_worlds(_config(machine, **changes), machine, None, counts)
    return {world.label: world for world in reversed(found)}


@pytest.fixture(scope="module")
def plan() -> Plan:
    machine = _machine(*QUAD_AND_PAIR)
    return make_plan(_config(machine), machine, preset_shape("llama-3-8b"), STATS, "run-1")


def test_all_gpus_of_unlike_hosts_are_planned_and_named(plan: Plan) -> None:
    strategy = plan.chosen.strategy
    assert strategy.label.startswith("ddp on 6 ranks of 2 hosts (4+2), ")
    assert (strategy.ranks_per_host, strategy.num_nodes, strategy.processes_per_node) == ((4, 2), 2, 4)
    assert [strategy.host_of(rank) for rank in range(6)] == [0, 0, 0, 0, 1, 1]
    assert plan.machine.startswith("quad (4), workstation (2): 4 x NVIDIA A100-SXM4-40GB")
    assert "32 to 64 cores, 128.0 GiB to 512.0 GiB of host memory free each" in plan.machine
    # Where groups divide each host they are offered: 4 and 2 ranks as pairs, and never as one group a host.
    copies = [each.strategy.label for each in plan.ranked if "a copy in each" in each.strategy.label]
    assert copies
    assert all("a copy in each island of 2" in label for label in copies)


def test_a_plan_of_unequal_hosts_is_read_back_and_one_of_equal_hosts_is_as_before(plan: Plan) -> None:
    assert loads(dumps(plan)) == plan
    assert to_json(plan)["chosen"]["strategy"]["uneven_ranks"] == [4, 2]
    machine = preset("2x24gb-pcie", nodes=2)
    equal = make_plan(_config(machine, devices=4), machine, preset_shape("llama-3-8b"), STATS, "run-1")
    body = json.loads(dumps(equal))
    assert "uneven_ranks" not in body["chosen"]["strategy"]  # nor in a file of an older version, which is read
    assert from_json(body) == equal
    assert equal.chosen.strategy.ranks_per_host == (2, 2)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"uneven_ranks": (4, 1)}, "6 ranks, but (4, 1) on the hosts"),
        ({"uneven_ranks": (5, 1)}, "for 2 hosts of 4 or fewer"),
        ({"uneven_ranks": (3, 3)}, "equal ranks (3, 3)"),
        ({"uneven_ranks": ()}, "6 ranks, but (4, 4) on the hosts"),
        ({"uneven_threads": (8,)}, "threads (8,) for 2 hosts"),
        ({"uneven_threads": (8, 4)}, "threads (8, 4) for 2 hosts of 8 or more"),
    ],
)
def test_hosts_that_do_not_add_up_are_refused(plan: Plan, changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match="hosts") as caught:
        replace(plan.chosen.strategy, **changes)
    assert found in str(caught.value)


def test_equal_parts_and_larger_hosts_are_offered_beside_the_whole() -> None:
    worlds = _worlds(_machine("8xa100-80gb", "a100_sxm_x4", "a100_80gb"))
    whole = worlds["all GPUs"]
    assert sorted(whole.ranks_per_host) == [1, 4, 8]
    assert worlds["12 GPUs of 2 hosts (4+8)"].ranks_per_host == (4, 8)
    assert worlds["1 GPU of each of 3 hosts"].ranks_per_host == (1, 1, 1)
    assert whole.groups == ()  # 8, 4 and 1 have no common divisor
    assert [group.ranks for group in worlds["12 GPUs of 2 hosts (4+8)"].groups] == [4]


def test_each_host_shares_its_memory_among_its_own_ranks() -> None:
    world = _worlds(_machine(*QUAD_AND_PAIR))["all GPUs"]
    quad, pair = world.hosts
    assert quad.memory_bytes == 512 * GIB
    assert pair.memory_bytes == 128 * GIB
    assert [world.host_bytes_per_rank(rank) // GIB for rank in (0, 3, 4, 5)] == [128, 128, 64, 64]
    assert [world.host_of(rank).name for rank in (3, 4)] == [quad.name, pair.name]


def test_equal_cards_on_unequal_hosts_are_of_two_classes() -> None:
    """Their host memory a rank differs, so what holds for one does not for the other."""
    world = _worlds(_machine("rtx_a6000_x4", "rtx_a6000"))["all GPUs"]
    kinds = device_classes(world)
    assert kinds == (0, 0, 0, 0, 1)
    classes = rank_classes(world, kinds, machines(world, "bf16"), (1,) * 5)
    assert [ranks.count for ranks in classes] == [4, 1]
    assert classes[0].host_bytes < classes[1].host_bytes


def test_the_longest_chain_of_a_tree_is_that_of_the_largest_host() -> None:
    few = reduce_latency_seconds(64, 16, nvlink=False)
    assert reduce_latency_seconds(64, 16, nvlink=False, most=4) == few
    assert reduce_latency_seconds(64, 16, nvlink=False, most=8) > few


def test_ranks_that_the_user_gives_to_each_host_are_taken() -> None:
    machine = preset("4xv100-16gb", nodes=2)
    (world,) = _worlds(machine, (1, 3)).values()
    assert world.ranks_per_host == (1, 3)
    (same,) = _worlds(machine, (1, 3), devices=4).values()
    assert same.ranks_per_host == (1, 3)
    assert {world.size for world in _worlds(machine, (1, 3), devices=6).values()} == {6}


def test_rows_that_do_not_feed_all_feed_as_many_as_they_are() -> None:
    worlds = _worlds(_machine("4xv100-16gb", "2x24gb-pcie"), batch=BatchConfig(global_=5))
    largest = max(worlds.values(), key=lambda world: world.size)
    assert largest.ranks_per_host == (3, 2)
    assert "batch.global=5 feeds only 5 of 6 devices" in largest.warnings


def test_cpu_ranks_of_several_hosts_are_as_equal_as_can_be() -> None:
    machine = preset("cpu", nodes=2)
    (world,) = _worlds(machine, devices=3).values()
    assert world.ranks_per_host == (2, 1)
    assert (world.threads_per_process, world.uneven_threads) == (1, (1, 2))
    assert [world.cores_per_rank(rank) for rank in range(3)] == [1.0, 1.0, 2.0]
    assert len(set(device_classes(world))) == 2
    assert any("network between the hosts is not known" in warning for warning in world.warnings)
    (given_ones,) = _worlds(machine, (1, 2)).values()
    assert given_ones.ranks_per_host == (1, 2)
    (equal,) = _worlds(machine).values()
    assert equal.ranks_per_host == (2, 2)
    assert equal.uneven_ranks == equal.uneven_threads == ()


def test_what_cpu_hosts_cannot_do_is_refused() -> None:
    machine = preset("cpu", nodes=3)
    with pytest.raises(UserError, match="2 ranks asked for on 3 hosts") as caught:
        _worlds(machine, devices=2)
    assert "nodes=2" in str(caught.value)
    with pytest.raises(UserError, match="2 rows cannot feed 5 ranks"):
        _worlds(machine, devices=5, batch=BatchConfig(global_=2))
    (local,) = _worlds(machine, launch=LaunchConfig(backend=Backend.local)).values()
    assert local.ranks_per_host == (1,)


@given(room=ROOMS, data=st.data())
def test_ranks_are_spread_within_the_room(room: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(1, sum(room)))
    for counts in (filled(room, total), levelled(room, total), *spreads(room, range(len(room)), total)):
        assert sum(counts) == total
        assert all(0 <= count <= most for count, most in zip(counts, room, strict=True))
    level = levelled(room, total)
    # No host could take one of a host that has two more.
    assert all(count == most or count + 1 >= max(level) for count, most in zip(level, room, strict=True))


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_ranks_lie_on_hosts_in_order(counts: list[int]) -> None:
    places = hosts_of_ranks(counts)
    assert [host_of_rank(counts, rank) for rank in range(sum(counts))] == list(places)
    with pytest.raises(ValueError, match="rank"):
        host_of_rank(counts, sum(counts))


def test_labels_of_many_hosts_stay_short() -> None:
    assert counts_label((2, 2)) == ""
    assert counts_label((8, 4, 1)) == " (8+4+1)"
    assert counts_label((8,) * 9 + (4,)) == " (4 to 8 each)"
