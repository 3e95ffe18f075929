"""Ports that serve the GPUs, and the others."""

from __future__ import annotations

from dataclasses import replace

from topology.model import Host, Nic, Topology
from topology.presets import preset
from topology.routing.ports import FabricPorts, fabric_ports


def ports(name: str, nodes: int = 1) -> FabricPorts:
    topology = preset(name, nodes=nodes)
    return fabric_ports(topology, [host.name for host in topology.hosts])


def with_nics(topology: Topology, *nics: Nic) -> Topology:
    host = topology.hosts[0]
    return replace(topology, hosts=(replace(host, nics=(*host.nics, *nics)), *topology.hosts[1:]))


def test_storage_ports_of_a_dgx_stand_apart() -> None:
    found = ports("dgx_h100", nodes=2)
    assert [int(name[5:].removesuffix(":1")) for name in found.compute] == [0, 3, 4, 5, 6, 9, 10, 11]
    assert found.others == ("mlx5_1:1", "mlx5_2:1", "mlx5_7:1", "mlx5_8:1")
    assert found.is_mixed


def test_where_every_port_serves_a_gpu_nothing_is_apart() -> None:
    found = ports("hgx_b200")
    assert len(found.compute) == 8
    assert not found.is_mixed


def test_a_second_port_of_a_card_is_as_near_as_its_first() -> None:
    topology = preset("dgx_h100")
    first = topology.hosts[0].nics[0]
    found = fabric_ports(with_nics(topology, replace(first, id=f"{first.id}:2", name=f"{first.name}:2")), ["dgx-h100"])
    assert "mlx5_0:2" in found.compute


def test_nothing_is_said_where_it_is_not_known() -> None:
    assert ports("p5").plugin == "EFA"
    assert not ports("p5").is_mixed
    assert "no RDMA port" in ports("1x24gb").reason
    assert "PCIe path" in ports("a100_sxm_x4").reason
    assert "differently" in ports("mixed_a100_h100").reason
    odd = with_nics(preset("dgx_h100"), Nic(id="dgx-h100/NIC0", name="NIC0", kind="unknown"))
    assert "NIC0" in fabric_ports(odd, ["dgx-h100"]).reason


def test_hosts_that_are_not_asked_about_do_not_count() -> None:
    topology = preset("mixed_a100_h100")
    names: list[Host] = list(topology.hosts)
    assert fabric_ports(topology, [names[0].name]).reason != ports("mixed_a100_h100").reason
