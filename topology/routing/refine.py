"""Nodes and edges that cannot be told apart, counted once: what makes a thousand hosts as small as one.

Colour refinement splits nodes until all of one colour have the same edges to and from every colour (an equitable
partition of the directed, weighted graph). With one sink given a colour of its own, the averages of a flow over the
classes are again a flow, so the maximum-flow program has the same optimum on the quotient graph, where a class is
one node and the capacities of its edges are summed: the partition is a fractional automorphism of the program (Grohe,
Kersting, Mladenov and Selman, "Dimension reduction via colour refinement", 2014).

One sink stands for all devices of its class of the graph without a sink. Refinement alone would not allow that: it
cannot tell six GPUs in one ring from six in two rings. So every node first gets a signature: what refinement of its
own host finds when each device of the host in turn has a colour of its own. Equal signatures within a host mean equal
quotients. Between hosts we rely on networks being trees of switches, as all that can be described here are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topology.graph import Graph
from topology.routing.cuts import Arcs
from topology.routing.nets import Net

Colours = NDArray[np.uint64]
Ints = NDArray[np.int64]
_MOST_COPIED: Final = 4_000_000  # edges of all copies of the hosts looked at; beyond that signatures cost too much
_DEVICE, _OTHER, _CHOSEN = np.uint64(11), np.uint64(12), np.uint64(13)
_OUT, _IN = np.uint64(0x51), np.uint64(0x52)


@dataclass(frozen=True, kw_only=True)
class View:
    """The graph as one device sees it.

    Attributes:
        device: its rank.
        alike: devices that see the same, itself included.
        classes: class of each node of the graph.
        members: number of nodes of each class.
        devices: number of devices of each class (all or none of its nodes).
        arcs: rows of (class of tails, class of heads, class of edges of the whole graph, number of edges).
        units: of one edge, for each row; -1 limits nothing.
    """

    device: int
    alike: int
    classes: Ints
    members: Ints
    devices: Ints
    arcs: Ints
    units: Ints

    @property
    def own(self) -> int:
        """The class of the device."""
        return int(self.classes[self.device])

    @cached_property
    def net(self) -> Net:
        """The quotient graph with the device as its sink."""
        return self._net(tail=0, head=1)

    @cached_property
    def reversed_net(self) -> Net:
        """The same with all edges turned round."""
        return self._net(tail=1, head=0)

    def _net(self, *, tail: int, head: int) -> Net:
        merged: dict[tuple[int, int], tuple[int | None, int]] = {}
        for row, units in zip(self.arcs.tolist(), self.units.tolist(), strict=True):
            known, before = merged.get((row[tail], row[head]), (0, 0))
            total = None if units < 0 or known is None else known + units * row[3]
            merged[row[tail], row[head]] = (total, before + row[3])
        arcs = tuple((*ends, *what) for ends, what in merged.items() if ends[0] != ends[1])
        return Net(weights=tuple(self.devices.tolist()), arcs=arcs, sinks=(self.own,))

    def lifted(self, inside: frozenset[int]) -> NDArray[np.bool_]:
        """Nodes of the graph whose class is in a set."""
        chosen = np.zeros(len(self.members), dtype=np.bool_)
        chosen[list(inside)] = True
        found: NDArray[np.bool_] = chosen[self.classes]
        return found


@dataclass(frozen=True, kw_only=True)
class Symmetry:
    """Classes of nodes and edges, and one view for each class of devices.

    Attributes:
        classes: class of each node.
        members: number of nodes of each class.
        devices: number of devices of each class.
        edge_classes: class of each edge.
        edge_units: capacity of one edge of each class of edges; -1 limits nothing.
        edge_counts: edges of each class.
        edge_ends: classes of tails and heads of each class of edges.
        views: one for each class of devices.
    """

    classes: Ints
    members: Ints
    devices: Ints
    edge_classes: Ints
    edge_units: Ints
    edge_counts: Ints
    edge_ends: Ints
    views: tuple[View, ...]

    @property
    def are_devices_alike(self) -> bool:
        """Whether no two devices can be told apart."""
        return len(self.views) == 1


def symmetry_of(graph: Graph, arcs: Arcs) -> Symmetry:
    """Find what is alike in a graph."""
    base = refined(arcs, _start(graph, arcs))
    return _symmetry(graph, arcs, base, lambda device: refined(arcs, _with(base, device)))


def without_symmetry(graph: Graph, arcs: Arcs) -> Symmetry:
    """Every node for itself: for small graphs, and to compare with."""
    each = np.arange(len(graph.nodes), dtype=np.uint64)
    return _symmetry(graph, arcs, each, lambda _: each)


def refined(arcs: Arcs, colours: Colours) -> Colours:
    """Split colours until the colours at the other ends of a node's edges follow from its own.

    Colours are hashes of what a node has around it; two sums of hashes that are equal by chance are not to be
    expected (64 bits).
    """
    sides = [(arcs.tail, arcs.head, _OUT), (arcs.head, arcs.tail, _IN)]
    nodes = np.arange(len(colours) + 1)
    order = [np.argsort(own, kind="stable") for own, _, _ in sides]
    starts = [np.searchsorted(own[at], nodes) for (own, _, _), at in zip(sides, order, strict=True)]
    far = [
        (other[at], _mix(arcs.units[at].astype(np.uint64) + salt))
        for (_, other, salt), at in zip(sides, order, strict=True)
    ]
    count = len(np.unique(colours))
    while True:
        new = _mix(colours)
        for (other, wires), start in zip(far, starts, strict=True):
            sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(_mix(colours[other] ^ wires))])
            new = _mix(new + sums[start[1:]] - sums[start[:-1]])
        colours, before = new, count
        count = len(np.unique(colours))
        if count == before:
            return colours


def _with(colours: Colours, device: int) -> Colours:
    changed = colours.copy()
    changed[device] = _mix(changed[device : device + 1] ^ _CHOSEN)[0]
    return changed


def _start(graph: Graph, arcs: Arcs) -> Colours:
    """First colours: device or not, and the signature within the host."""
    kinds = np.where(np.arange(len(graph.nodes)) < graph.size, _DEVICE, _OTHER)
    numbers: dict[str | None, int] = {}
    hosts = np.array([numbers.setdefault(node.host, len(numbers)) for node in graph.nodes], dtype=np.int64)
    if None in numbers and len(numbers) > 2:  # noqa: PLR2004 - with one host the network is a part of it
        hosts[hosts == numbers[None]] = -1
    elif None in numbers:
        hosts[:] = 0
    return _mix(kinds ^ _signatures(graph.size, arcs, hosts, kinds))


def _signatures(size: int, arcs: Arcs, hosts: Ints, kinds: Colours) -> Colours:
    """For each node the sum, over the devices of its host, of its colour when that device is singled out."""
    found = np.zeros(len(hosts), dtype=np.uint64)
    order = np.argsort(hosts, kind="stable")
    starts = np.searchsorted(hosts[order], np.arange(hosts.max() + 2))
    place = np.empty(len(hosts), dtype=np.int64)
    place[order] = np.arange(len(hosts)) - starts[np.maximum(hosts[order], 0)]
    within = np.nonzero((hosts[arcs.tail] == hosts[arcs.head]) & (hosts[arcs.tail] >= 0))[0]
    within = within[np.argsort(hosts[arcs.tail[within]], kind="stable")]
    bounds = np.searchsorted(hosts[arcs.tail[within]], np.arange(hosts.max() + 2))
    samples, same = _unlike(hosts, place, arcs, within, kinds)
    spans = [(order[starts[h] : starts[h + 1]], within[bounds[h] : bounds[h + 1]]) for h in samples]
    if sum(len(edges) * int((nodes < size).sum()) for nodes, edges in spans) > _MOST_COPIED:
        return found
    signs = _singled_out(size, arcs, spans, place, kinds)
    own = hosts >= 0
    first = np.concatenate([[0], np.cumsum([len(nodes) for nodes, _ in spans])])
    found[own] = signs[first[same[hosts[own]]] + place[own]]
    return found


def _unlike(hosts: Ints, place: Ints, arcs: Arcs, within: Ints, kinds: Colours) -> tuple[Ints, Ints]:
    """One host of each kind, and for every host the number of its kind: equal nodes and edges, in the same order."""
    own = np.nonzero(hosts >= 0)[0]
    total = np.zeros(int(hosts.max()) + 1, dtype=np.uint64)
    np.add.at(total, hosts[own], _mix(_mix(place[own].astype(np.uint64)) ^ kinds[own]))
    tails, heads, units = (each[within].astype(np.uint64) for each in (place[arcs.tail], place[arcs.head], arcs.units))
    np.add.at(total, hosts[arcs.tail[within]], _mix(_mix(_mix(tails) ^ heads) ^ units))
    _, samples, same = np.unique(total, return_index=True, return_inverse=True)
    return samples, same


def _singled_out(size: int, arcs: Arcs, spans: list[tuple[Ints, Ints]], place: Ints, kinds: Colours) -> Colours:
    """Refine copies of hosts, in each of which another device is singled out; sums over the copies of a host."""
    tails, heads, units, colours, slots = [], [], [], [], []
    base, slot = 0, 0
    for nodes, edges in spans:
        for device in np.nonzero(nodes < size)[0]:
            tails.append(place[arcs.tail[edges]] + base)
            heads.append(place[arcs.head[edges]] + base)
            units.append(arcs.units[edges])
            colours.append(_with(kinds[nodes], int(device)))
            slots.append(np.arange(slot, slot + len(nodes)))
            base += len(nodes)
        slot += len(nodes)
    signs = np.zeros(slot, dtype=np.uint64)
    if not tails:
        return signs
    copies = Arcs(tail=np.concatenate(tails), head=np.concatenate(heads), units=np.concatenate(units))
    np.add.at(signs, np.concatenate(slots), _mix(refined(copies, np.concatenate(colours))))
    return signs


def _symmetry(graph: Graph, arcs: Arcs, base: Colours, seen_by: Callable[[int], Colours]) -> Symmetry:
    classes, members, devices = _counted(base, graph.size)
    ends = np.stack([classes[arcs.tail], classes[arcs.head], arcs.units], axis=1)
    kinds, edge_class, counts = _distinct(ends)
    _, samples, alike = np.unique(classes[: graph.size], return_index=True, return_counts=True)
    views = []
    for device, number in zip(samples.tolist(), alike.tolist(), strict=True):
        own, own_members, own_devices = _counted(seen_by(device), graph.size)
        rows, _, row_counts = _distinct(np.stack([own[arcs.tail], own[arcs.head], edge_class], axis=1))
        views.append(
            View(
                device=device,
                alike=number,
                classes=own,
                members=own_members,
                devices=own_devices,
                arcs=np.concatenate([rows, row_counts[:, None]], axis=1),
                units=kinds[rows[:, 2], 2],
            )
        )
    return Symmetry(
        classes=classes,
        members=members,
        devices=devices,
        edge_classes=edge_class,
        edge_units=kinds[:, 2],
        edge_counts=counts,
        edge_ends=kinds[:, :2],
        views=tuple(views),
    )


def _counted(colours: Colours, size: int) -> tuple[Ints, Ints, Ints]:
    """Classes from 0 on, nodes of each, devices of each."""
    _, classes, members = np.unique(colours, return_inverse=True, return_counts=True)
    return classes, members, np.bincount(classes[:size], minlength=len(members))


def _distinct(rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Distinct rows of three whole numbers (from -1 on), which of them each row is, and how often they occur."""
    widths = rows.max(axis=0) + 2
    keys = ((rows[:, 0] + 1) * widths[1] + rows[:, 1] + 1) * widths[2] + rows[:, 2] + 1
    _, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    return rows[first], inverse, counts


def _mix(words: Colours) -> Colours:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): close words become unrelated ones."""
    mixed = words + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
