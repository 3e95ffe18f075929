"""Order, islands, adapters and CPUs of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topology.errors import TopologyError
from topology.model import Topology
from topology.presets import preset
from topology.routing.placement import Placement, placement


def names(topology: Topology) -> dict[str, tuple[str, int]]:
    return {device.id: (host.name, at) for host in topology.hosts for at, device in enumerate(host.devices)}


def order(topology: Topology, found: Placement) -> list[int]:
    at = names(topology)
    return [at[name][1] for name in found.order]


def test_scattered_pairs_are_put_side_by_side() -> None:
    topology = preset("a100_pcie_pairs_x8")
    ids = [device.id for device in topology.devices]
    given = [ids[at] for at in (0, 2, 4, 6, 1, 3, 5, 7)]
    found = placement(topology, given)
    assert order(topology, found) == list(range(8))
    assert [[names(topology)[name][1] for name in island] for island in found.islands] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert found.shard_size == 2
    assert "300.0 GB/s among 2" in found.reasons[1]
    assert "so that neighbours are near" in found.reasons[0]
    assert "as given" in placement(topology, found.order).reasons[0]


def test_hosts_that_are_mixed_up_stand_one_after_the_other() -> None:
    topology = preset("p4d", nodes=2)
    ids = [device.id for device in topology.devices]
    mixed = [name for pair in zip(ids[:8], ids[8:], strict=True) for name in pair]
    found = placement(topology, mixed)
    hosts = [names(topology)[name][0] for name in found.order]
    assert hosts == [hosts[0]] * 8 + [hosts[-1]] * 8
    assert sorted(found.order) == sorted(ids)
    assert found.shard_size == 8  # 300 GB/s inside, 4 ports of 12.5 GB/s between
    assert "50.0 GB/s round a ring over all 16" in found.reasons[1]


def test_the_rack_is_one_island_and_two_racks_are_two() -> None:
    two = preset("gb200_nvl72", nodes=2)
    by_tray = [two.devices[at::4] for at in range(4)]
    found = placement(two, [device.id for group in by_tray for device in group])
    assert [len(island) for island in found.islands] == [72, 72]
    own = names(two)
    assert all(own[a][0] == own[b][0] for a, b in zip(found.order[::4], found.order[3::4], strict=True))
    racks = [own[name][0] for name in found.order[:72]]
    assert len(set(racks)) == 18


def test_fast_ports_make_sharding_over_all_hosts_as_good() -> None:
    found = placement(preset("dgx_h100", nodes=2))
    assert found.shard_size == 16
    assert (
        found.reasons[1]
        == "shard over all: an all-gather reaches 450.0 GB/s among 8 and 400.0 GB/s round a ring over all 16"
    )


def test_islands_of_different_kinds_shard_by_the_slowest() -> None:
    found = placement(preset("mixed_a100_h100"))
    assert found.shard_size == 8
    assert "300.0 GB/s among 8" in found.reasons[1]


def test_islands_without_a_common_size_are_not_sharded_by() -> None:
    topology = preset("a100_pcie_pairs_x4")
    ids = [device.id for device in topology.devices]
    found = placement(topology, ids[:3])
    assert [len(island) for island in found.islands] == [2, 1]
    assert found.shard_size == 3
    assert "no common size" in found.reasons[1]


@pytest.mark.parametrize(
    ("name", "counts", "shared"),
    [
        ("dgx_h100", {1}, 1),  # a port each
        ("p5", {4}, 1),  # four ports each
        ("p4d", {1}, 2),  # two GPUs a switch and port
        ("gb200_nvl72", {2}, 1),  # two GPUs share the four ports of their socket
    ],
)
def test_adapters_are_shared_out_evenly(name: str, counts: set[int], shared: int) -> None:
    found = placement(preset(name))
    assert {len(nics) for nics in found.nics_of.values()} == counts
    uses: dict[str, int] = {}
    for nics in found.nics_of.values():
        for nic in nics:
            uses[nic] = uses.get(nic, 0) + 1
    assert set(uses.values()) == {shared}


def test_each_device_has_its_node_and_cpus() -> None:
    topology = preset("dgx_a100")
    found = placement(topology)
    for device in topology.devices:
        assert found.numa_of[device.id] == device.numa
        assert found.cpus_of[device.id] == device.cpus is not None
    assert len(set(found.numa_of.values())) == 4


def test_hosts_without_ports_and_single_devices_have_a_placement_too() -> None:
    cpu = placement(preset("cpu"))
    assert set(cpu.nics_of.values()) == {()}
    assert cpu.shard_size == len(cpu.order)
    assert "no adapter known" in cpu.reasons[-1]
    one = placement(preset("rtx4090"))
    assert (len(one.order), one.shard_size, one.islands) == (1, 1, (one.order,))


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(TopologyError, match="no device 'x'"):
        placement(preset("rtx4090"), ("x",))


def test_ports_without_rdma_come_only_where_there_is_none_with_it() -> None:
    topology = preset("pcie_4090x8")
    host = topology.hosts[0]
    ethernet = replace(host.nics[0], kind="ethernet")
    found = placement(replace(topology, hosts=(replace(host, nics=(ethernet, *host.nics[1:])),)))
    assert {nic for nics in found.nics_of.values() for nic in nics} == {host.nics[1].id}
