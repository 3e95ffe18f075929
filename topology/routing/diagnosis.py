"""A cut in words: which devices are on one side of it, and what joins them to the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from topology.graph import UNIT_BYTES_PER_SECOND, Edge, Graph, LinkClass, NodeKind
from topology.routing.cuts import Cut
from topology.units import format_rate

_HALVES: Final = ("/up", "/out", "/in")
_PCIE_LINK: Final = re.compile(r"PCIe Gen\d+ x\d+")
_SHOWN: Final = 4
_PLAIN: Final = {
    LinkClass.nvlink: "NVLink",
    LinkClass.c2c: "NVLink-C2C link",
    LinkClass.xgmi: "xGMI link",
    LinkClass.inside: "link inside the CPU",
    LinkClass.socket: "socket link",
    LinkClass.network: "network port",
    LinkClass.port: "network port",
    LinkClass.memory: "path through host memory",
}


def describe(graph: Graph, cut: Cut, names: Sequence[str] = ()) -> str:
    """Say what a cut is, for people.

    Args:
        graph: that the cut belongs to.
        cut: of it.
        names: what to call each device within its host, in rank order; without: its place on its host, from 0.
    """
    told = _Words(graph, cut, tuple(names) or _places(graph))
    return told.text()


def cut_to_json(graph: Graph, cut: Cut, names: Sequence[str] = ()) -> dict[str, Any]:
    """Plain values of a cut: the devices on the smaller side, the links across with their direction, and the words."""
    edges = [graph.edges[at] for at in cut.edges]
    return {
        "devices": [graph.nodes[at].id for at in _side(graph, cut)[0]],
        "links": [
            {
                "a": _plain_id(graph, edge.tail),
                "b": _plain_id(graph, edge.head),
                "kind": edge.link.value,
                "bytes_per_second": edge.bytes_per_second,
            }
            for edge in edges
        ],
        "bytes_per_second": cut.bytes_per_second,
        "text": describe(graph, cut, names),
    }


def _places(graph: Graph) -> tuple[str, ...]:
    """Where each device stands on its host; in a graph that does not tell it, among those of the group."""
    seen: Counter[str] = Counter()
    found = []
    for node in graph.nodes[: graph.size]:
        found.append(str(seen[node.host or ""] if node.place is None else node.place))
        seen[node.host or ""] += 1
    return tuple(found)


def _side(graph: Graph, cut: Cut) -> tuple[tuple[int, ...], bool]:
    """The devices of the smaller side, and whether the edges lead out of it; of equal sides that of the edges' host."""
    held = frozenset(cut.inside)
    others = tuple(at for at in range(graph.size) if at not in held)
    if len(held) == len(others):
        edges = [graph.edges[at] for at in cut.edges]
        tails, heads = (
            {graph.nodes[at].host for at in ends} for ends in ([e.tail for e in edges], [e.head for e in edges])
        )
        inner, outer = ({graph.hosts[at] for at in side} for side in (cut.inside, others))
        if not tails - {None} <= inner and heads - {None} <= outer:
            return others, False
    return (others, False) if len(others) < len(held) else (cut.inside, True)


def _plain_id(graph: Graph, node: int) -> str:
    """The id in the topology: without the mark of a half of a switch."""
    name, kind = graph.nodes[node].id, graph.nodes[node].kind
    if kind in (NodeKind.pcie, NodeKind.bridge, NodeKind.socket, NodeKind.nic):
        for half in _HALVES:
            name = name.removesuffix(half)
    return name


@dataclass(frozen=True, slots=True)
class _Kind:
    """What edges have in common that are told together."""

    link: LinkClass
    tail: NodeKind
    head: NodeKind
    units: int
    pcie: str

    @property
    def word(self) -> str:
        if self.link is LinkClass.pcie:
            is_up = {self.tail, self.head} <= {NodeKind.pcie, NodeKind.bridge}
            return f"{self.pcie or 'PCIe'} {'uplink' if is_up else 'link'}"
        if self.tail is self.head is NodeKind.network:
            return "uplink between network switches"
        return _PLAIN[self.link]


@dataclass(frozen=True, slots=True)
class _Words:
    graph: Graph
    cut: Cut
    names: tuple[str, ...]

    def text(self) -> str:
        edges = [self.graph.edges[at] for at in self.cut.edges]
        if not self.cut.inside:
            return f"no one cut, but {self._links(edges)}"
        side, is_out = _side(self.graph, self.cut)
        if len(edges) == 1 and edges[0].link is LinkClass.socket:
            a, b = (_plain_id(self.graph, at) for at in sorted((edges[0].tail, edges[0].head)))
            rate = format_rate(self.cut.bytes_per_second)
            return f"the socket link {a} - {b}, {rate}: {self._devices(side)} on one side of it"
        for some, out in ((side, is_out), (self._others(side), not is_out)):
            own = self._of_device(some, edges, is_out=out) or self._of_host(some, edges, is_out=out)
            if own:
                return own
        several = len(side) > 1
        verb = ("leave" if several else "leaves") if is_out else ("are reached" if several else "is reached")
        these = f"these {len(side)} " if several else ""
        return f"{these}{self._devices(side, counted=several)} {verb} through {self._links(edges)}"

    def _others(self, side: Sequence[int]) -> tuple[int, ...]:
        held = frozenset(side)
        return tuple(rank for rank in range(self.graph.size) if rank not in held)

    def _of_device(self, side: Sequence[int], edges: Sequence[Edge], *, is_out: bool) -> str | None:
        """Words for the links of one device, and which others have the same."""
        if len(side) != 1 or any((edge.tail if is_out else edge.head) != side[0] for edge in edges):
            return None
        rank, hosts = side[0], self.graph.hosts
        links = self._own_links(is_out=is_out)
        like = {other for other, kinds in links.items() if kinds == links[rank]}
        mates = {other for other, host in enumerate(hosts) if host == hosts[rank]}
        is_two_way = self._own_links(is_out=not is_out)[rank] == links[rank]
        many = len(like) == self.graph.size or (len(mates) > 1 and mates <= like)
        if len(like) == self.graph.size:
            whose = f"each {self._word(rank)}'s "
        else:
            whose = f"each {self._word(rank)} of host {hosts[rank]}: " if many else f"{self._devices(side)}: "
        told = self._links(edges, ends=not many, owned=True)
        if not is_two_way:
            return f"{whose}{told}, {'outward' if is_out else 'inward'}"
        return whose + told.replace(" from the NVSwitch", " to the NVSwitch")

    def _own_links(self, *, is_out: bool) -> dict[int, Counter[tuple[LinkClass, int]]]:
        """Kinds of the edges that leave (or enter) each device."""
        links: dict[int, Counter[tuple[LinkClass, int]]] = {rank: Counter() for rank in range(self.graph.size)}
        for edge in self.graph.edges:
            rank = edge.tail if is_out else edge.head
            if rank in links and edge.units is not None:
                links[rank][edge.link, edge.units] += 1
        return links

    def _of_host(self, side: Sequence[int], edges: Sequence[Edge], *, is_out: bool) -> str | None:
        """Words for the network ports of a host, and whether all hosts have the same."""
        hosts = self.graph.hosts
        host = hosts[side[0]]
        whole = {rank for rank, name in enumerate(hosts) if name == host}
        crossing = sorted(edge.units or 0 for edge in edges if edge.link is LinkClass.network)
        ports, back = (self._ports(is_out=way) for way in (is_out, not is_out))
        if set(side) != whole or len(crossing) < len(edges) or crossing != ports[host]:
            return None
        alike = all(rates == crossing for rates in ports.values()) and len(set(Counter(hosts).values())) == 1
        count = f"{len(edges)} network ports" if len(edges) > 1 else "network port"
        whose = f"each host's {count}" if alike else f"the {count} of host {host}"
        together = "together " if len(edges) > 1 else ""
        way = "" if back[host] == crossing else ", outward" if is_out else ", inward"
        return f"{whose}, {together}{format_rate(self.cut.bytes_per_second)}{way}"

    def _ports(self, *, is_out: bool) -> dict[str, list[int]]:
        """Rates of the network ports of each host, in one direction."""
        ports: dict[str, list[int]] = {name: [] for name in self.graph.hosts}
        for edge in self.graph.edges:
            near = self.graph.nodes[edge.tail if is_out else edge.head]
            if edge.link is LinkClass.network and near.kind is NodeKind.nic and near.host in ports:
                ports[near.host].append(edge.units or 0)
        return {name: sorted(rates) for name, rates in ports.items()}

    def _kind(self, edge: Edge) -> _Kind:
        nodes = self.graph.nodes
        found = _PCIE_LINK.search(edge.source)
        return _Kind(
            edge.link, nodes[edge.tail].kind, nodes[edge.head].kind, edge.units or 0, found.group() if found else ""
        )

    def _links(self, edges: Sequence[Edge], *, ends: bool = True, owned: bool = False) -> str:
        """Groups of equal links, the widest first, and what they carry together."""
        ordered = sorted(edges, key=lambda edge: (-(edge.units or 0), str(self._kind(edge)), edge.tail, edge.head))
        groups = [(kind, list(group)) for kind, group in groupby(ordered, key=self._kind)]
        told = [self._group(kind, group, ends=ends, owned=owned) for kind, group in groups]
        text = " and ".join((", ".join(told[:-1]), told[-1])) if len(told) > 1 else "".join(told)
        return f"{text}, together {format_rate(self.cut.bytes_per_second)}" if len(groups) > 1 else text

    def _group(self, kind: _Kind, edges: Sequence[Edge], *, ends: bool, owned: bool) -> str:
        rate, word = format_rate(kind.units * UNIT_BYTES_PER_SECOND), kind.word
        assumed = " assumed" if any("assumed" in edge.source for edge in edges) else ""
        to = self._far(kind)
        pairs = [f"{self._end(edge.tail)} -> {self._end(edge.head)}" for edge in edges]
        if len(edges) == 1:
            where = f" {pairs[0]}" if ends and not to else to
            return f"{'' if owned else 'one '}{word}{where}, {rate}{assumed}"
        more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
        where = f" ({', '.join(pairs[:_SHOWN])}{more})" if ends and not to else to
        several = f"{len(edges)} {_plural(word)}"
        total = format_rate(kind.units * len(edges) * UNIT_BYTES_PER_SECOND)
        return f"{several}{where} of {rate}{assumed} each ({total})"

    @staticmethod
    def _far(kind: _Kind) -> str:
        if NodeKind.nvswitch in (kind.tail, kind.head) and NodeKind.device in (kind.tail, kind.head):
            return " to the NVSwitch" if kind.head is NodeKind.nvswitch else " from the NVSwitch"
        return ""

    def _end(self, node: int) -> str:
        return self._devices((node,)) if node < self.graph.size else _plain_id(self.graph, node)

    def _word(self, rank: int) -> str:
        return "CPU slot" if self.graph.nodes[rank].id.rpartition("/")[2].startswith("cpu") else "GPU"

    def _devices(self, ranks: Sequence[int], *, counted: bool = False) -> str:
        """Names of devices; with `counted` their number went before, and the names stand in brackets."""
        word = self._word(ranks[0]) + ("s" if len(ranks) > 1 else "")
        by_host: dict[str, list[str]] = {}
        for rank in ranks:
            by_host.setdefault(self.graph.hosts[rank], []).append(self.names[rank])
        hosts = list(by_host)
        if len(hosts) > _SHOWN:
            names = f"of {len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"
            return f"{word} {names}" if counted else f"{len(ranks)} {word} {names}"
        several = len(set(self.graph.hosts)) > 1
        parts = [_ranges(names) + (f" of host {host}" if several else "") for host, names in by_host.items()]
        told = ", ".join(parts)
        return f"{word} ({told})" if counted else f"{word} {told}"


def _plural(word: str) -> str:
    """More than one of a kind of link: the noun comes before a preposition."""
    head, space, rest = word.partition(" inside ") if " inside " in word else word.partition(" between ")
    return word.replace("path ", "paths ", 1) if word.startswith("path ") else f"{head}s{space}{rest}"


def _ranges(names: Iterable[str]) -> str:
    """Names in a row; three or more successive numbers as a range."""
    return ", ".join(_runs(list(names)))


def _runs(names: list[str]) -> Iterator[str]:
    numbers = [int(name) if name.isdecimal() else None for name in names]
    at = 0
    while at < len(names):
        end, first = at, numbers[at]
        while first is not None and end + 1 < len(names) and numbers[end + 1] == first + end + 1 - at:
            end += 1
        if end - at > 1:
            yield f"{names[at]}-{names[end]}"
        else:
            yield from names[at : end + 1]
        at = end + 1
