"""The adapters nearest to each device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topology.model import DeviceKind, Host, Nic, Topology
from topology.presets import preset
from topology.scoring.affinity import near_nics


def of_first(topology: Topology) -> tuple[tuple[str, ...], str | None, bool]:
    found = near_nics(topology)[topology.devices[0].id]
    return tuple(name.split("/")[-1] for name in found.nics), found.level, found.is_rdma


@pytest.mark.parametrize(
    ("name", "nics", "level", "is_rdma"),
    [
        ("dgx_h100", ("mlx5_0",), "PXB", True),
        ("dgx1_v100", ("mlx5_0",), "PIX", True),
        ("p5", ("rdmap0", "rdmap1", "rdmap2", "rdmap3"), "PIX", True),
        ("pcie_4090x8", ("mlx5_0", "mlx5_1"), "NODE", False),
        ("g5_12xlarge", ("ens0",), "PHB", False),
        ("cpu", (), None, False),
    ],
)
def test_the_nearest_ports_all_equal_ones_are_listed(
    name: str, nics: tuple[str, ...], level: str | None, is_rdma: bool
) -> None:
    assert of_first(preset(name)) == (nics, level, is_rdma)


def test_every_device_of_a_cluster_stays_on_its_host() -> None:
    topology = preset("p4d", nodes=3)
    host_of = {nic.id: host.name for host in topology.hosts for nic in host.nics}
    found = near_nics(topology)
    assert set(found) == {device.id for device in topology.devices}
    for device in topology.devices:
        assert {host_of[nic] for nic in found[device.id].nics} == {device.host}


def test_a_gpu_with_a_wire_to_its_cpu_is_read_through_it() -> None:
    found = near_nics(preset("gb200_nvl72"))
    assert all(item.is_rdma and "over C2C" in item.reason for item in found.values())


def test_rdma_ports_come_before_nearer_ethernet() -> None:
    topology = preset("dgx1_v100")
    host = topology.hosts[0]
    ethernet = tuple(replace(nic, kind="ethernet") if nic.id.endswith("mlx5_0") else nic for nic in host.nics)
    found = near_nics(replace(topology, hosts=(replace(host, nics=ethernet),)))
    first = found[topology.devices[0].id]
    assert "mlx5_0" not in [name.split("/")[-1] for name in first.nics]
    assert first.level in ("PHB", "NODE")
    assert not first.is_rdma


def test_two_entries_of_one_port_are_one() -> None:
    topology = preset("dgx1_v100")
    host = topology.hosts[0]
    again = replace(host.nics[0], id="dgx1/again", name="again")
    found = near_nics(replace(topology, hosts=(replace(host, nics=(*host.nics, again)),)))
    assert all("dgx1/again" not in item.nics for item in found.values())


def test_without_a_tree_the_numa_node_decides() -> None:
    gpu = replace(preset("rtx4090").devices[0], host="h", numa=1)
    nics = tuple(Nic(id=f"h/n{at}", name=f"n{at}", kind="roce", numa=at) for at in range(2))
    host = Host(name="h", memory_bytes=None, cores=None, devices=(gpu,), nics=nics)
    found = near_nics(Topology(hosts=(host,)))[gpu.id]
    assert gpu.kind is DeviceKind.gpu
    assert (found.nics, found.level) == (("h/n1",), None)
    assert "on its NUMA node" in found.reason
    unknown = near_nics(Topology(hosts=(replace(host, devices=(replace(gpu, numa=None),)),)))[gpu.id]
    assert len(unknown.nics) == 2
    assert "no adapter is known to be nearer" in unknown.reason
