"""Machines that tests of routes draw."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topology.graph import Graph, graph_of
from topology.model import Device, DeviceKind, Host, Link, Nic, Switch, SwitchKind, Topology


def cpu_hosts(*, hosts: int, slots: int, port_bytes_per_second: float) -> Topology:
    """Hosts of CPU slots with one port each on one network switch."""
    drawn, links, switches = [], [], [Switch(id="network", kind=SwitchKind.network)]
    for at in range(hosts):
        name = f"h{at}"
        devices = tuple(
            Device(
                id=f"{name}/cpu{slot}", host=name, kind=DeviceKind.cpu, name="CPU", memory_bytes=2**33, cores=1, numa=0
            )
            for slot in range(slots)
        )
        nic = Nic(id=f"{name}/eth0", name="eth0", kind="ethernet", bytes_per_second=port_bytes_per_second)
        drawn.append(Host(name=name, memory_bytes=2**34, cores=slots, devices=devices, nics=(nic,)))
        switches.append(Switch(id=f"{name}/node0", kind=SwitchKind.socket, host=name, numa=0))
        links.append(Link(a=nic.id, b=f"{name}/node0", kind="virtual", source="drawn"))
        links.append(Link(a=nic.id, b="network", kind="NET", source="drawn", bytes_per_second=port_bytes_per_second))
    return Topology(hosts=tuple(drawn), links=tuple(links), switches=tuple(switches))


@pytest.fixture
def slow_hosts() -> Callable[[int], Graph]:
    """Graphs of so many hosts with two CPU slots each, behind 25 MB/s."""

    def draw(hosts: int) -> Graph:
        return graph_of(cpu_hosts(hosts=hosts, slots=2, port_bytes_per_second=25e6))

    return draw
