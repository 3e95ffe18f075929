"""The hosts of a topology one by one, each with its own switches, links and pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.model import Topology

if TYPE_CHECKING:
    from topology.model import Link, Pair, Switch


def split_hosts(topology: Topology) -> tuple[Topology, ...]:
    """Give each host as a topology of its own, without what lies between hosts; O(parts of the topology)."""
    if len(topology.hosts) == 1:
        return (topology,)
    host_of = {switch.id: switch.host for switch in topology.switches if switch.host is not None}
    for host in topology.hosts:
        host_of |= {device.id: host.name for device in host.devices}
        host_of |= {nic.id: host.name for nic in host.nics}
    switches: dict[str, list[Switch]] = {host.name: [] for host in topology.hosts}
    links: dict[str, list[Link]] = {host.name: [] for host in topology.hosts}
    pairs: dict[str, list[Pair]] = {host.name: [] for host in topology.hosts}
    for switch in topology.switches:
        if switch.host in switches:
            switches[switch.host].append(switch)
    for link in topology.links:
        home = host_of.get(link.a)
        if home in links and host_of.get(link.b) == home:
            links[home].append(link)
    for pair in topology.pairs:
        pairs[host_of[pair.a] or ""].append(pair)
    return tuple(
        Topology(
            hosts=(host,),
            switches=tuple(switches[host.name]),
            links=tuple(links[host.name]),
            pairs=tuple(pairs[host.name]),
            source=topology.source,
        )
        for host in topology.hosts
    )
