"""The wire that limits a collective, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from topology.graph import Edge, Graph, LinkClass, NodeKind
from topology.units import format_rate

_PCIE_LINK: Final = re.compile(r"PCIe Gen\d+ x\d+")
# What is told of several equally busy wires: what is shared before what each device has.
_ORDER: Final = (LinkClass.network, LinkClass.port, LinkClass.socket, LinkClass.memory, LinkClass.inside)
_PLAIN: Final = {
    LinkClass.socket: "the link between processors",
    LinkClass.inside: "the way through a processor",
    LinkClass.memory: "the host's memory",
    LinkClass.xgmi: "the xGMI links between GPUs",
    LinkClass.c2c: "the NVLink-C2C links",
    LinkClass.port: "a network port",
}


def limit_words(graph: Graph, edges: Sequence[int], share: float) -> str:
    """Say which wire is the busiest: `each GPU's PCIe Gen4 x16 link (65% of 31.5 GB/s each)`.

    Args:
        graph: of the group.
        edges: the busiest ones, all as busy; none: nothing is known to limit.
        share: of the wire's rate that is reckoned with.
    """
    if not edges:
        return "nothing known"
    edge = min((graph.edges[at] for at in edges), key=_rank)
    rate = format_rate(edge.bytes_per_second or 0.0)
    name = _named(graph, edge)
    return f"{name} ({share:.0%} of {rate} each)"


def _rank(edge: Edge) -> int:
    return _ORDER.index(edge.link) if edge.link in _ORDER else len(_ORDER)


def _named(graph: Graph, edge: Edge) -> str:
    device = next((end for end in (edge.tail, edge.head) if end < graph.size), None)
    kinds = {graph.nodes[edge.tail].kind, graph.nodes[edge.head].kind}
    if edge.link is LinkClass.network:
        return _port(graph, edge) if NodeKind.nic in kinds else "an uplink between network switches"
    if edge.link is LinkClass.nvlink:
        return (
            f"{_whose(graph, device, edge)} NVLinks to the NVSwitch"
            if NodeKind.nvswitch in kinds
            else ("the NVLinks between two GPUs")
        )
    if edge.link is not LinkClass.pcie:
        return _PLAIN[edge.link]
    found = _PCIE_LINK.search(edge.source)
    name = found.group() if found else "PCIe"
    if device is not None:
        return f"{_whose(graph, device, edge)} {name} link"
    return f"a network port's {name} link" if NodeKind.nic in kinds else f"a {name} uplink"


def _whose(graph: Graph, device: int | None, edge: Edge) -> str:
    """`each GPU's`, or where others have wider wires, whose it is."""
    same: dict[int, set[int | None]] = {}
    for other in graph.edges:
        for end in (other.tail, other.head):
            if end < graph.size and other.link is edge.link:
                same.setdefault(end, set()).add(other.units)
    narrow = [rank for rank, units in same.items() if edge.units in units]
    if device is None or len(narrow) == graph.size:
        return "each GPU's"
    host = graph.hosts[device]
    if {rank for rank, name in enumerate(graph.hosts) if name == host} <= set(narrow):
        return f"each GPU of host {host}'s" if len(set(graph.hosts)) > 1 else "each GPU's"
    place = sum(name == host for name in graph.hosts[:device])
    return f"GPU {place}'s" if len(set(graph.hosts)) == 1 else f"GPU {place} of host {host}'s"


def _port(graph: Graph, edge: Edge) -> str:
    """The network ports of each host, or of the host that has the slowest."""
    ports: dict[str, list[int | None]] = {name: [] for name in graph.hosts}
    own = next(graph.nodes[end].host for end in (edge.tail, edge.head) if graph.nodes[end].kind is NodeKind.nic)
    for other in graph.edges:
        tail = graph.nodes[other.tail]
        if other.link is LinkClass.network and tail.kind is NodeKind.nic and tail.host in ports:
            ports[tail.host].append(other.units)
    many = len(ports.get(own or "", ()))
    is_alike = len({tuple(sorted(map(str, rates))) for rates in ports.values()}) == 1
    whose = "each host's" if is_alike else f"host {own}'s"
    return f"{whose} network port" if many == 1 else f"{whose} {many} network ports"
