"""Which devices form a group: ranking against a bound of every subset, and groups over several hosts."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from pathlib import Path

import pytest

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import graph_of
from topology.model import Topology
from topology.presets import preset
from topology.probe import read_topology
from topology.routing import groups
from topology.routing.all_wires import all_wires
from topology.routing.bound import bound
from topology.routing.group_classes import alike_groups, pair_colours
from topology.routing.groups import group_score, rank_groups
from topology.routing.host_groups import host_classes

CORPUS = Path(__file__).resolve().parents[4].parent / "shared" / "corpus"


def places(topology: Topology, devices: tuple[str, ...]) -> list[int]:
    at = {device.id: place for host in topology.hosts for place, device in enumerate(host.devices)}
    return [at[name] for name in devices]


@lru_cache
def gather(topology: Topology, devices: tuple[str, ...]) -> float:
    return bound(graph_of(topology, devices), Collective.all_gather).bus_bytes_per_second


def exchange(topology: Topology, devices: tuple[str, ...]) -> float:
    return bound(graph_of(topology, devices), Collective.all_to_all).bus_bytes_per_second


@pytest.mark.parametrize(
    ("name", "size", "best", "first", "worst"),
    [
        ("dgx1_v100", 4, [0, 1, 2, 3], 100.0, 15.754),
        ("dgx1_v100", 2, [0, 3], 50.0, 15.754),
        ("a100_pcie_pairs_x8", 4, [0, 1, 2, 3], 94.524, 31.508),
        ("a100_pcie_pairs_x8", 2, [0, 1], 300.0, 31.508),
        ("pcie_l40s_x8", 4, [0, 1, 2, 3], 31.508, 31.508),
        ("a100_sxm_x4", 2, [0, 1], 100.0, 100.0),
    ],
)
def test_every_group_is_alike_one_that_was_scored(
    name: str, size: int, best: list[int], first: float, worst: float
) -> None:
    topology = preset(name)
    ranking = rank_groups(topology, size)
    ids = [device.id for device in topology.devices]
    every = {devices: gather(topology, devices) for devices in combinations(ids, size)}
    assert ranking.is_complete
    assert ranking.is_best_proved
    assert sum(group.alike for group in ranking.groups) == len(every)
    rates = sorted(group.all_gather_bytes_per_second for group in ranking.groups for _ in range(group.alike))
    assert rates == pytest.approx(sorted(every.values()))
    assert places(topology, ranking.groups[0].devices) == best
    assert ranking.groups[0].all_gather_bytes_per_second == pytest.approx(first * 1e9)
    assert min(rates) == pytest.approx(worst * 1e9)


@pytest.mark.parametrize("name", ["a100_pcie_pairs_x4", "pcie_a40_x4"])
def test_groups_of_one_kind_have_the_same_all_to_all(name: str) -> None:
    topology = preset(name)
    whole = all_wires(topology)
    size = 3
    colours = pair_colours(whole)
    kinds = {
        kind.ranks: exchange(topology, tuple(whole.device_ids[r] for r in kind.ranks))
        for kind in alike_groups(colours, size)
    }
    rates = sorted(exchange(topology, devices) for devices in combinations(whole.device_ids, size))
    counts = {kind.ranks: kind.count for kind in alike_groups(colours, size)}
    assert sorted(rate for ranks, rate in kinds.items() for _ in range(counts[ranks])) == pytest.approx(rates, rel=1e-5)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus lies outside the repository")
@pytest.mark.parametrize(
    ("name", "size"), [("smi/094.txt", 4), ("smi/031.txt", 3), ("smi/086.txt", 2), ("smi/048.txt", 2)]
)
def test_real_machines_agree_with_every_subset(name: str, size: int) -> None:
    topology = read_topology(CORPUS / name)
    ranking = rank_groups(topology, size)
    ids = [device.id for device in topology.gpus]
    every = sorted(gather(topology, devices) for devices in combinations(ids, size))
    found = sorted(group.all_gather_bytes_per_second for group in ranking.groups for _ in range(group.alike))
    assert found == pytest.approx(every)


def test_two_switches_are_told_apart_by_what_crosses_them() -> None:
    topology = preset("pcie_l40s_x8")
    ranking = rank_groups(topology, 4)
    assert [group.alike for group in ranking.groups] == [2, 32, 36]
    one, split = ranking.groups[0], ranking.groups[-1]
    assert one.numa_nodes == 1
    assert one.latency_seconds < split.latency_seconds  # peers on one switch, not through host memory
    # 2 + 2: each side's uplink carries 2 x 2 pairs.
    assert split.all_to_all_bytes_per_second == pytest.approx(3 * 31.508e9 / 4)


def test_sixteen_devices_are_few_kinds() -> None:
    whole = all_wires(preset("dgx2_v100"))
    kinds = alike_groups(pair_colours(whole), 8)
    assert sum(kind.count for kind in kinds) == 12870
    assert len(kinds) < 50


def test_a_machine_of_too_many_kinds_still_has_its_best_group_first(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = preset("dgx1_v100")
    best = rank_groups(topology, 4).groups[0]
    monkeypatch.setattr(groups, "MOST_SCORED", 6)
    few = rank_groups(topology, 4)
    assert not few.is_complete
    assert len(few.groups) <= 6
    assert few.groups[0] == best
    monkeypatch.setattr(groups, "is_countable", lambda devices, size: False)
    near = rank_groups(topology, 4)
    assert (near.is_complete, near.is_best_proved) == (False, False)
    assert near.groups[0].all_gather_bytes_per_second == best.all_gather_bytes_per_second


def test_a_cluster_offers_whole_hosts_and_equal_parts_of_them() -> None:
    topology = preset("p4d", nodes=4)
    ranking = rank_groups(topology, 4)
    hosts = [
        len({device.host for device in topology.devices if device.id in group.devices}) for group in ranking.groups
    ]
    assert hosts[0] == 1
    assert set(hosts) == {1, 2, 4}
    spread = next(group for group, count in zip(ranking.groups, hosts, strict=True) if count == 2)
    # Two GPUs a host share a PCIe switch and its port: the better pair does not.
    a, b = places(topology, spread.devices)[:2]
    assert a // 2 != b // 2
    assert not ranking.is_complete


def test_unequal_hosts_are_classes_of_their_own() -> None:
    topology = preset("mixed_a100_h100")
    assert [len(group.hosts) for group in host_classes(topology)] == [1, 1]
    best, other = rank_groups(topology, 8).groups
    names = {device.id: device.name for device in topology.devices}
    assert {names[name] for name in best.devices} == {"NVIDIA H100 80GB HBM3"}
    assert best.all_gather_bytes_per_second > other.all_gather_bytes_per_second
    assert len(rank_groups(topology, 12).groups[0].devices) == 12


def test_a_score_is_latency_and_transfer_with_the_cut_in_words() -> None:
    topology = preset("a100_pcie_pairs_x4")
    ids = tuple(device.id for device in topology.devices)
    score = group_score(topology, ids, Collective.all_gather, 1 << 30)
    assert score.seconds == pytest.approx(score.latency_seconds + (1 << 30) * float(score.bound.seconds_per_byte))
    assert score.latency_seconds > 12e-6  # the pairs reach each other through host memory
    assert "GPU" in score.words
    pair = group_score(topology, ids[:2], Collective.all_reduce, 1 << 30)
    assert pair.latency_seconds < 1e-6
    assert pair.seconds < score.seconds


def test_impossible_groups_are_refused() -> None:
    topology = preset("pcie_l40s_x8")
    with pytest.raises(TopologyError, match="8 devices"):
        rank_groups(topology, 9)
    with pytest.raises(TopologyError, match="1 device"):
        rank_groups(topology, 1)
    with pytest.raises(TopologyError, match="no device 'x'"):
        group_score(topology, ("x", topology.devices[0].id), Collective.all_gather, 1)
