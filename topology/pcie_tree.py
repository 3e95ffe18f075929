"""The PCIe tree of a host: built from nvidia-smi's labels or from the kernel's device paths, and read back as labels.

The labels say how high in the tree the paths of two functions meet, so they form an ultrametric: no pair is farther
apart than the widest step of any way round. Such a distance has exactly one tree, so complete labels give it back.

A tree is switches (`pcie`, `bridge`, `socket`) and links of which `a` is the lower end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.grouping import connected
from topology.link_rates import assumed_pcie_rate, assumed_socket_rate, pcie_rate, socket_rate
from topology.model import Link, Pcie, Switch, SwitchKind, Topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.link_rates import Rate

# From near to far: how high in the PCIe tree the paths of two functions meet.
LEVELS: Final[Mapping[str, int]] = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
PCIE: Final = "PCIe"
INSIDE: Final = "CPU"  # a host bridge and its NUMA node: no link of its own
BETWEEN: Final = "SYS"
PORT: Final = "port"  # a port of a network adapter with several
VIRTUAL: Final = "virtual"
_UPWARD: Final = frozenset({PCIE, INSIDE, PORT, VIRTUAL})
_KINDS: Final = (SwitchKind.pcie, SwitchKind.bridge, SwitchKind.socket)
_MAX_DEPTH: Final = 64
_INSIDE_SOURCE: Final = "inside the processor: not counted as a limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A GPU or network function with its NUMA node (None: unknown) and the PCIe link above it."""

    id: str
    numa: int | None = None
    pcie: Pcie | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A PCIe switch on the way up: its id and the link above it."""

    id: str
    pcie: Pcie | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The way from a member up to its CPU: switches from the lowest up, then the host bridge's id (None: unknown)."""

    member: Member
    hops: tuple[Hop, ...] = ()
    bridge: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieTree:
    """What to add to a Topology, and what is worth telling about it."""

    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    warnings: tuple[str, ...] = ()


def tree_from_labels(
    host: str,
    members: Sequence[Member],
    labels: Mapping[tuple[str, str], str],
    cpu_name: str | None = None,
) -> PcieTree:
    """Build the tree that gives these labels between the members.

    Labels other than PIX to SYS (NV4) hide the PCIe distance of their pair; it then follows from other labels and
    from NUMA nodes where it can. `violations` tells whether any tree has the labels at all.
    """
    chains, places = _chains_of(host, members, labels)
    tree = _tree(host, chains, places, cpu_name)
    hidden = _hidden(members, labels, {chain.member.id: chain for chain in chains}, places)
    text = f"{hidden} GPU pair(s) show NVLink instead of their PCIe distance: `nvidia-smi topo -mp` tells it"
    return PcieTree(switches=tree.switches, links=tree.links, warnings=(text,) if hidden else ())


def tree_from_chains(host: str, chains: Sequence[Chain], cpu_name: str | None = None) -> PcieTree:
    """Build the tree of ways known one by one, as the kernel tells them."""
    return _tree(host, chains, _socket_ids(host, [[chain.member] for chain in chains], by_node=True), cpu_name)


def violations(ids: Sequence[str], labels: Mapping[tuple[str, str], str]) -> tuple[tuple[str, str], ...]:
    """Return the pairs whose label is farther than a way round: no PCIe tree has both. O(levels x pairs)."""
    wrong: dict[tuple[str, str], None] = {}
    for level in range(LEVELS["SYS"]):
        group = _group_of(ids, labels, level)
        for pair, label in labels.items():
            if LEVELS.get(label, -1) > level and group[pair[0]] == group[pair[1]]:
                wrong.setdefault(pair)
    return tuple(wrong)


def tree_faults(topology: Topology) -> tuple[str, ...]:
    """Tell what is no tree: a device or switch with two ways up, or a way that comes back to where it was."""
    height = {switch.id: _KINDS.index(switch.kind) for switch in topology.switches if switch.kind in _KINDS}
    ups: dict[str, list[str]] = {}
    for link in topology.links:
        if link.kind in {PCIE, INSIDE} and link.b in height:
            ups.setdefault(link.a, []).append(link.b)
    nics = {nic.id for nic in topology.nics}  # an adapter may have a way to each of two sockets
    faults = [
        f"{name} has {len(above)} ways up the PCIe tree: {', '.join(above[:3])}"
        for name, above in ups.items()
        if len(above) > 1 and name not in nics
    ]
    for start in ups:
        here, steps = start, 0
        while here in ups and steps <= len(ups):
            here, steps = ups[here][0], steps + 1
            if here == start:
                faults.append(f"{start} is above itself in the PCIe tree")
                break
    return tuple(faults)


def pcie_labels(topology: Topology) -> dict[frozenset[str], str]:
    """Label every two devices and NICs of one host whose places in the PCIe tree are known, NVLink aside."""
    parent = _parents(topology)
    kind_of = {switch.id: switch.kind for switch in topology.switches}
    labels: dict[frozenset[str], str] = {}
    for host in topology.hosts:
        ids = [*(device.id for device in host.devices), *(nic.id for nic in host.nics)]
        ways = {name: way for name in ids if (way := _way_up(name, parent)) is not None}
        for a, b in combinations(ways, 2):
            label = _label(ways[a], ways[b], kind_of)
            if label is not None:
                labels[frozenset((a, b))] = label
    return labels


def _chains_of(
    host: str,
    members: Sequence[Member],
    labels: Mapping[tuple[str, str], str],
) -> tuple[list[Chain], dict[str, str]]:
    by_id = {member.id: member for member in members}
    groups = [_group_of(list(by_id), labels, level) for level in range(LEVELS["SYS"])]
    pix, pxb, phb, _ = groups
    nodes = _nodes(members, labels, groups[LEVELS["NODE"]])
    num_pix: dict[str, set[str]] = {}
    size: dict[str, int] = {}
    for name in by_id:
        num_pix.setdefault(pxb[name], set()).add(pix[name])
        size[pxb[name]] = size.get(pxb[name], 0) + 1
    rank = {name: at for at, name in enumerate(by_id)}
    chains = []
    for name, member in by_id.items():
        hops: list[Hop] = []
        if size[pxb[name]] > 1 and len(num_pix[pxb[name]]) > 1:
            hops = [Hop(id=f"{host}/pcie{rank[pix[name]]}"), Hop(id=f"{host}/pcie{rank[pxb[name]]}.up")]
        elif size[pxb[name]] > 1:
            hops = [Hop(id=f"{host}/pcie{rank[pxb[name]]}")]
        chains.append(Chain(member=member, hops=tuple(hops), bridge=f"{host}/bridge{rank[phb[name]]}"))
    return chains, _socket_ids(host, [[by_id[name] for name in node] for node in nodes], by_node=False)


def _group_of(ids: Sequence[str], labels: Mapping[tuple[str, str], str], level: int) -> dict[str, str]:
    near = (pair for pair, label in labels.items() if LEVELS.get(label, len(LEVELS)) <= level)
    return {name: group[0] for group in connected(ids, near) for name in group}


def _nodes(
    members: Sequence[Member],
    labels: Mapping[tuple[str, str], str],
    group: Mapping[str, str],
) -> list[list[str]]:
    # Groups that no label tells apart or joins: one NUMA node if they say so, or if neither says anything.
    apart = {frozenset((group[a], group[b])) for (a, b), label in labels.items() if label == BETWEEN}
    numa: dict[str, int | None] = {}
    for member in members:
        if numa.get(group[member.id]) is None:
            numa[group[member.id]] = member.numa
    merged: list[list[str]] = []
    for leader in dict.fromkeys(group.values()):
        for node in merged:
            is_told = any(frozenset((leader, other)) in apart for other in node)
            if not is_told and all(numa[leader] == numa[other] for other in node):
                node.append(leader)
                break
        else:
            merged.append([leader])
    return [[member.id for member in members if group[member.id] in node] for node in merged]


def _socket_ids(host: str, groups: Sequence[Sequence[Member]], *, by_node: bool) -> dict[str, str]:
    """Name the NUMA node of each group; `by_node` lets groups of one node share it, otherwise each has its own."""
    used: dict[str, int] = {}
    names: dict[str, str] = {}
    for group in groups:
        numa = next((member.numa for member in group if member.numa is not None), None)
        name = f"{host}/node{'?' if numa is None else numa}"
        count = used.get(name, 0)
        used[name] = count + 1
        text = name if by_node or not count else f"{name}.{count}"
        names |= {member.id: text for member in group}
    return names


def _tree(host: str, chains: Sequence[Chain], sockets: Mapping[str, str], cpu_name: str | None) -> PcieTree:
    kinds: dict[str, SwitchKind] = {}
    numa: dict[str, int | None] = {}
    links: dict[tuple[str, str], Link] = {}
    for chain in chains:
        member, socket = chain.member, sockets[chain.member.id]
        below, link = member.id, member.pcie
        for hop in chain.hops:
            links.setdefault((below, hop.id), _pcie_link(below, hop.id, link))
            kinds[hop.id], numa[hop.id] = SwitchKind.pcie, member.numa
            # An uplink nobody told about is taken for as fast as the link below it.
            below, link = hop.id, hop.pcie or link
        top = chain.bridge or socket
        links.setdefault((below, top), _pcie_link(below, top, link))
        if chain.bridge is not None:
            kinds[chain.bridge], numa[chain.bridge] = SwitchKind.bridge, member.numa
            inside = Link(a=chain.bridge, b=socket, kind=INSIDE, source=_INSIDE_SOURCE)
            links.setdefault((chain.bridge, socket), inside)
        kinds[socket], numa[socket] = SwitchKind.socket, member.numa
    ends = sorted(name for name, kind in kinds.items() if kind is SwitchKind.socket)
    between = [socket_link(a, b, cpu_name) for a, b in combinations(ends, 2)]
    order = sorted(kinds, key=lambda name: -_KINDS.index(kinds[name]))
    switches = tuple(Switch(id=name, kind=kinds[name], host=host, numa=numa[name]) for name in order)
    return PcieTree(switches=switches, links=(*links.values(), *between))


def _pcie_link(a: str, b: str, pcie: Pcie | None) -> Link:
    rate = None if pcie is None else pcie_rate(pcie.max_generation, pcie.max_width)
    return told_link(a, b, PCIE, rate, assumed_pcie_rate())


def socket_link(a: str, b: str, cpu_name: str | None) -> Link:
    """Join two NUMA nodes of one host."""
    return told_link(a, b, BETWEEN, socket_rate(cpu_name), assumed_socket_rate())


def told_link(a: str, b: str, kind: str, rate: Rate | None, assumed: Rate) -> Link:
    """Make a link of a rate from a table, or of an assumed one, said so."""
    if rate is not None:
        return Link(a=a, b=b, kind=kind, bytes_per_second=rate.bytes_per_second, source=table_source(rate))
    return Link(
        a=a,
        b=b,
        kind=kind,
        assumed_bytes_per_second=assumed.bytes_per_second,
        source=f"unknown; assumed: {assumed.source.removeprefix('assumed: ')}",
    )


def table_source(rate: Rate) -> str:
    """Say where a rate of a table comes from."""
    return f"table: {rate.source} ({rate.date})"


def _hidden(
    members: Sequence[Member],
    labels: Mapping[tuple[str, str], str],
    chains: Mapping[str, Chain],
    sockets: Mapping[str, str],
) -> int:
    # Pairs of one NUMA node that neither a label nor a way round places.
    told = {frozenset(pair) for pair, label in labels.items() if label in LEVELS}
    return sum(
        1
        for a, b in combinations((member.id for member in members), 2)
        if frozenset((a, b)) not in told and sockets[a] == sockets[b] and chains[a].bridge != chains[b].bridge
    )


def _parents(topology: Topology) -> dict[str, tuple[str, str]]:
    # The nearest thing above each id, and by what kind of link.
    height = {switch.id: _KINDS.index(switch.kind) for switch in topology.switches if switch.kind in _KINDS}
    return {link.a: (link.b, link.kind) for link in topology.links if link.kind in _UPWARD and link.b in height}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    # From a PCI function up to its NUMA node.
    function: str
    above: tuple[str, ...]


def _way_up(name: str, parent: Mapping[str, tuple[str, str]]) -> _Way | None:
    if name not in parent:
        return None
    above, kind = parent[name]
    function = above if kind == PORT else name
    way: list[str] = [] if kind == PORT else [above]
    here = above
    while here in parent and len(way) < _MAX_DEPTH:
        here = parent[here][0]
        way.append(here)
    return _Way(function=function, above=tuple(way))


def _label(a: _Way, b: _Way, kind_of: Mapping[str, SwitchKind]) -> str | None:
    if a.function == b.function:
        return "PIX"
    meet = next((name for name in a.above if name in b.above), None)
    if meet is None:
        both_end = all(way.above and kind_of[way.above[-1]] is SwitchKind.socket for way in (a, b))
        return BETWEEN if both_end else None
    if kind_of[meet] is SwitchKind.pcie:
        return "PIX" if a.above[0] == b.above[0] == meet else "PXB"
    return "PHB" if kind_of[meet] is SwitchKind.bridge else "NODE"
