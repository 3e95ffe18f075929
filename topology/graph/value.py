"""The capacity graph of a group of devices: switches as nodes, one directed edge for each direction of a link.

Capacities are whole MB/s (1e6 bytes), so that cuts and flows are exact. A capacity of None limits nothing: it is what
lies inside a processor.

Devices that NVLink (or xGMI) joins do not also copy to each other over PCIe: no library uses both at once. Where the
whole group is joined so, nothing else is in the graph; where the devices of a host are, its PCIe leads to the network
only. It then appears twice, as the way out and the way in, which share a wire only where a device and its port lie on
different sides of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Final

from topology.errors import TopologyError

UNIT_BYTES_PER_SECOND: Final = 10**6


class NodeKind(Enum):
    """What a node is: only a device has data, sends it and may pass it on."""

    device = "device"
    nvswitch = "nvswitch"
    pcie = "pcie"
    bridge = "bridge"
    socket = "socket"
    nic = "nic"
    network = "network"


class LinkClass(Enum):
    """The kind of wire, by which latency and efficiency are looked up."""

    nvlink = "NVLink"
    c2c = "C2C"
    xgmi = "XGMI"
    pcie = "PCIe"
    inside = "CPU"
    socket = "SYS"
    network = "NET"
    port = "port"
    memory = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the graph; `id` is that of the topology, with `/up`, `/out` or `/in` at the end for a half of a switch.

    `name` and `compute_capability` are those of a device, `place` is where it stands among the devices of its host.
    """

    id: str
    kind: NodeKind
    host: str | None = None
    numa: int | None = None
    name: str | None = None
    compute_capability: tuple[int, int] | None = None
    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One direction of a link, from node index `tail` to `head`; `units` are whole MB/s, None limits nothing."""

    tail: int
    head: int
    units: int | None
    link: LinkClass
    source: str = ""

    @property
    def bytes_per_second(self) -> float | None:
        """The capacity in bytes per second."""
        return None if self.units is None else float(self.units * UNIT_BYTES_PER_SECOND)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes 0 to `size` - 1 are the devices, in rank order; the others only pass traffic on.

    Attributes:
        nodes: devices first.
        edges: directed; several may join the same two nodes.
        size: number of devices.
        through_host: hosts whose GPUs cannot copy to each other over PCIe: their traffic passes the CPU's memory.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    size: int
    through_host: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Reject a graph whose edges or devices do not fit its nodes."""
        count = len(self.nodes)
        problems = [
            *(
                f"node {at} of the devices is a {n.kind.value}"
                for at, n in enumerate(self.nodes[: self.size])
                if n.kind is not NodeKind.device
            ),
            *(
                f"device {n.id} is not among the first {self.size} nodes"
                for n in self.nodes[self.size :]
                if n.kind is NodeKind.device
            ),
            *(
                f"an edge {e.tail} -> {e.head} in a graph of {count} nodes"
                for e in self.edges
                if not (0 <= e.tail < count and 0 <= e.head < count) or e.tail == e.head
            ),
            *(
                f"an edge {e.tail} -> {e.head} of {e.units} MB/s"
                for e in self.edges
                if e.units is not None and e.units < 1
            ),
        ]
        if not 1 <= self.size <= count:
            problems.append(f"{self.size} devices in a graph of {count} nodes")
        if problems:
            raise TopologyError(asked="a capacity graph", problems=tuple(problems), remedy="build it with graph_of")

    def __hash__(self) -> int:
        """Reckoned once: graphs are keys of caches, and large."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.nodes, self.edges, self.size))

    @cached_property
    def leaving(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the edges that leave each node."""
        out: list[list[int]] = [[] for _ in self.nodes]
        for at, edge in enumerate(self.edges):
            out[edge.tail].append(at)
        return tuple(map(tuple, out))

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Host name of each device, in rank order."""
        return tuple(node.host or "" for node in self.nodes[: self.size])

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Device ids in rank order."""
        return tuple(node.id for node in self.nodes[: self.size])
