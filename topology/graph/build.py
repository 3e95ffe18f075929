"""From a machine and a group of its devices to their capacity graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from topology.errors import TopologyError
from topology.graph.value import UNIT_BYTES_PER_SECOND, Edge, Graph, LinkClass, Node, NodeKind
from topology.grouping import connected
from topology.model import Device, DeviceKind, Link, SwitchKind, Topology

# What two ranks of a host without GPUs reach through its memory, where nobody measured it.
HOST_COPY_BYTES_PER_SECOND: Final = 2.5e9
MEASURED: Final = "measured"
_HOST_COPY_SOURCE: Final = "prior: gloo over the loopback, one core a rank"
_UP: Final = "/up"
_OUT: Final = "/out"
_IN: Final = "/in"
_FABRIC: Final = ("NV", "XGMI")
_MOST_TOLD: Final = 8
_FAST: Final = frozenset({LinkClass.nvlink, LinkClass.xgmi})
_JOINING: Final = _FAST | {LinkClass.network}
_KINDS: Final = {kind: NodeKind[kind.name] for kind in SwitchKind}
_BELOW_SOCKET: Final = frozenset({SwitchKind.pcie, SwitchKind.bridge})
_IN_HOST: Final = _BELOW_SOCKET | {SwitchKind.socket}
_CLASSES: Final = {
    "C2C": LinkClass.c2c,
    "PCIe": LinkClass.pcie,
    "CPU": LinkClass.inside,
    "SYS": LinkClass.socket,
    "NET": LinkClass.network,
    "port": LinkClass.port,
    "virtual": LinkClass.port,
}


def graph_of(
    topology: Topology,
    devices: Sequence[str] = (),
    *,
    measured: Mapping[frozenset[str], float] | None = None,
    host_copy_bytes_per_second: float | None = None,
) -> Graph:
    """Build the capacity graph of a group of devices.

    Args:
        topology: of one or several hosts; the hosts of several must be joined by a network.
        devices: ids in rank order; empty: all GPUs, or without a GPU all CPU slots.
        measured: bytes per second of links (by both ends), which replace those of the topology.
        host_copy_bytes_per_second: what a CPU rank moves through the memory of its host; None: a prior.

    Raises:
        TopologyError: an unknown device, or devices that nothing joins.
    """
    chosen = _chosen(topology, devices)
    build = _Build(topology, chosen, measured or {}, host_copy_bytes_per_second or HOST_COPY_BYTES_PER_SECOND)
    for link in topology.links:
        build.add(link)
    build.add_memory()
    graph = build.graph()
    _check_joined(graph)
    return graph


def _chosen(topology: Topology, devices: Sequence[str]) -> tuple[Device, ...]:
    known = {device.id: device for device in topology.devices}
    strangers = [name for name in devices if name not in known]
    twice = (
        sorted({name for name in devices if list(devices).count(name) > 1}) if len(set(devices)) < len(devices) else []
    )
    problems = (*(f"no device {name!r}" for name in strangers), *(f"device {name!r} twice" for name in twice))
    if problems:
        raise TopologyError(
            asked=f"a group of {len(devices)} devices", problems=problems, remedy=f"choose from {', '.join(known)}"
        )
    chosen = tuple(known[name] for name in devices) or topology.gpus or topology.devices
    if not chosen:
        raise TopologyError(
            asked="routes between devices",
            found="the description names no GPU and no CPU slot",
            remedy="probe the machine itself, or give a file that names its devices",
        )
    return chosen


def copies_over_pcie(device: Device) -> bool:
    """Whether the driver lets GPUs of this name copy to each other over PCIe (NVIDIA's GeForce driver does not)."""
    name = device.name.lower()
    return device.kind is DeviceKind.gpu and not ("geforce" in name or "titan" in name)


def _joined_by_fabric(topology: Topology, chosen: Sequence[Device]) -> tuple[bool, frozenset[str]]:
    """Whether NVLink or xGMI joins the whole group, and the hosts whose devices of the group it joins."""
    own = {device.id for device in chosen}
    switches = {switch.id for switch in topology.switches if switch.kind is SwitchKind.nvswitch}
    ends = own | switches
    links = [
        (link.a, link.b)
        for link in topology.links
        if link.kind.startswith(_FABRIC) and link.a in ends and link.b in ends and link.capacity_bytes_per_second != 0
    ]
    part = {name: at for at, names in enumerate(connected([*own, *sorted(switches)], links)) for name in names}
    by_host: dict[str, list[int]] = {}
    for device in chosen:
        by_host.setdefault(device.host, []).append(part[device.id])
    hosts = frozenset(host for host, parts in by_host.items() if len(parts) > 1 and len(set(parts)) == 1)
    return len(chosen) > 1 and len({part[device.id] for device in chosen}) == 1, hosts


class _Build:
    """Collects nodes and edges; ids of the topology become indices."""

    def __init__(
        self, topology: Topology, chosen: Sequence[Device], measured: Mapping[frozenset[str], float], copy: float
    ) -> None:
        own = {device.id: device.host for device in chosen}
        hosts = set(own.values())
        self._chosen = chosen
        self._measured = measured
        self._copy = copy
        self._copy_source = _HOST_COPY_SOURCE if copy == HOST_COPY_BYTES_PER_SECOND else MEASURED
        self._several = len(hosts) > 1
        self._through = frozenset(d.host for d in chosen if d.kind is DeviceKind.gpu and not copies_over_pcie(d))
        self._fabric_only, self._fabric_hosts = _joined_by_fabric(topology, chosen)
        self._nodes: list[Node] = []
        self._index: dict[str, int] = {}
        self._edges: list[Edge] = []
        self._devices = frozenset(own)
        self._nics = {n.id: h.name for h in topology.hosts if h.name in hosts for n in h.nics} if self._several else {}
        self._switches = {
            switch.id: switch
            for switch in topology.switches
            if switch.host in hosts or (switch.host is None and self._uses_between(switch.kind))
        }
        self._host_of = {**own, **self._nics, **{s.id: s.host for s in self._switches.values() if s.host is not None}}
        self._used = frozenset({*own, *self._nics, *self._switches})
        places = {one.id: at for host in topology.hosts if host.name in hosts for at, one in enumerate(host.devices)}
        for device in chosen:
            self._add_node(
                Node(
                    id=device.id,
                    kind=NodeKind.device,
                    host=device.host,
                    numa=device.numa,
                    name=device.name,
                    compute_capability=device.compute_capability,
                    place=places[device.id],
                )
            )

    def _uses_between(self, kind: SwitchKind) -> bool:
        """A network joins several hosts; an NVSwitch without a host also parts of one."""
        return self._several or kind is not SwitchKind.network

    def _add_node(self, node: Node) -> int:
        self._index[node.id] = len(self._nodes)
        self._nodes.append(node)
        return self._index[node.id]

    def _node(self, name: str, half: str = "") -> int:
        """Index of a node, or of the half of it that the traffic in question passes."""
        switch = self._switches.get(name)
        if name in self._devices:
            return self._index[name]
        if switch is None:
            key = name + half if half in (_OUT, _IN) else name
            at = self._index.get(key)
            return self._add_node(Node(id=key, kind=NodeKind.nic, host=self._nics[name])) if at is None else at
        split = half if switch.kind in (_BELOW_SOCKET if half == _UP else _IN_HOST) else ""
        at = self._index.get(name + split)
        if at is None:
            at = self._add_node(Node(id=name + split, kind=_KINDS[switch.kind], host=switch.host, numa=switch.numa))
        return at

    def add(self, link: Link) -> None:
        """Add both directions of a link, unless it leads to something the group does not use."""
        kind = link_class(link.kind)
        if link.a not in self._used or link.b not in self._used or (self._fabric_only and kind not in _FAST):
            return
        found = self._measured.get(frozenset((link.a, link.b))) if self._measured else None
        rate = link.capacity_bytes_per_second if found is None else found
        if rate == 0:
            return
        units = None if rate is None else max(1, round(rate / UNIT_BYTES_PER_SECOND))
        source = link.source if found is None else MEASURED
        for tail, head in self._directions(link, kind):
            self._edges.append(Edge(tail=tail, head=head, units=units, link=kind, source=source))

    def _directions(self, link: Link, kind: LinkClass) -> Iterator[tuple[int, int]]:
        """Tail and head of every directed edge that a link stands for."""
        a, b = link.a, link.b
        host = self._host_of.get(a, self._host_of.get(b))
        is_split = host in self._fabric_hosts
        if is_split and kind is LinkClass.network and (a in self._nics or b in self._nics):
            # A port does not turn round: what comes out of the host enters the network.
            port, switch = (a, b) if a in self._nics else (b, a)
            yield self._node(port, _OUT), self._node(switch)
            yield self._node(switch), self._node(port, _IN)
            return
        if kind in _JOINING or not is_split:
            up = _UP if host in self._through else ""
            yield self._node(a, up), self._node(b, up)
            yield self._node(b), self._node(a)
            return
        for tail, head in ((a, b), (b, a)):
            # A device does not take from the way out, nor give to the way in; a port does the reverse.
            if head not in self._devices and tail not in self._nics:
                yield self._node(tail, _OUT), self._node(head, _OUT)
            if tail not in self._devices and head not in self._nics:
                yield self._node(tail, _IN), self._node(head, _IN)

    def add_memory(self) -> None:
        """Join CPU slots to the memory of their NUMA node."""
        for at, device in enumerate(self._chosen):
            if device.kind is not DeviceKind.cpu:
                continue
            name = f"{device.host}/node{device.numa or 0}"
            if name not in self._switches and name not in self._index:
                self._add_node(Node(id=name, kind=NodeKind.socket, host=device.host, numa=device.numa))
            node = self._node(name) if name in self._switches else self._index[name]
            units = max(1, round(self._copy / UNIT_BYTES_PER_SECOND))
            for tail, head in ((at, node), (node, at)):
                edge = Edge(tail=tail, head=head, units=units, link=LinkClass.memory, source=self._copy_source)
                self._edges.append(edge)

    def graph(self) -> Graph:
        return Graph(
            nodes=tuple(self._nodes), edges=tuple(self._edges), size=len(self._chosen), through_host=self._through
        )


@cache
def link_class(kind: str) -> LinkClass:
    """The kind of wire of a link, by what the topology calls it (`NV12`, `PCIe`, `SYS`)."""
    if kind.startswith("NV"):
        return LinkClass.nvlink
    if kind.startswith("XGMI"):
        return LinkClass.xgmi
    return _CLASSES.get(kind, LinkClass.pcie)


def _check_joined(graph: Graph) -> None:
    """Every device must reach every other one."""
    reached, waiting = {0}, [0]
    while waiting:
        for at in graph.leaving[waiting.pop()]:
            head = graph.edges[at].head
            if head not in reached:
                reached.add(head)
                waiting.append(head)
    lost = [graph.nodes[at] for at in range(graph.size) if at not in reached]
    if lost:
        names = ", ".join(node.id for node in lost[:_MOST_TOLD]) + (", ..." if len(lost) > _MOST_TOLD else "")
        raise TopologyError(
            asked=f"routes between {graph.size} devices",
            found=f"nothing joins {graph.nodes[0].id} and {names}",
            remedy=_how_to_join(graph),
        )


def _how_to_join(graph: Graph) -> str:
    hosts = dict.fromkeys(graph.hosts)
    if len(hosts) == 1:
        return "probe the machine again: its links are not told"
    ported = {node.host for node in graph.nodes if node.kind is NodeKind.nic}
    bare = [host for host in hosts if host not in ported]
    if bare:
        return f"describe the network ports of {', '.join(bare[:_MOST_TOLD])}: none is told"
    return "describe the network between the hosts (network=flat)"
