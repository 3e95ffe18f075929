"""What hangs below each NUMA node of a host, as a tree of bars (bridges, switches) and leaves (GPUs, NICs, slots)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from topology.model import Device, DeviceKind, Link, Nic, Switch, SwitchKind
from topology.pcie_tree import INSIDE, PCIE, PORT, VIRTUAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.render.svg_parts import Part

MOST_GPUS: Final = 64
MOST_NICS: Final = 64
MOST_SLOTS: Final = 512
_UPWARD: Final = frozenset({PCIE, INSIDE, PORT, VIRTUAL})
_BARS: Final = frozenset({SwitchKind.pcie, SwitchKind.bridge})
_MOST_LEVELS: Final = 8
_UNKNOWN_NUMA: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A bar with children, or a leaf: a GPU (or its MIG slices), some NICs of one parent, some CPU slots.

    `ups` are the links above it, one for each NIC of a leaf of NICs, else at most one; `side` is a link past the
    PCIe tree to the NUMA node.
    """

    id: str
    switch: Switch | None = None
    children: tuple[Node, ...] = ()
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    ups: tuple[Link | None, ...] = ()
    side: Link | None = None

    @property
    def is_slots(self) -> bool:
        """Whether it is a grid of CPU slots."""
        return bool(self.devices) and self.devices[0].kind is DeviceKind.cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A NUMA node as drawn: what is known of it and the trees below it; `is_rest` says that it continues one."""

    numa: int | None
    socket: Switch | None
    roots: tuple[Node, ...]
    is_rest: bool = False


def blocks_of(part: Part) -> tuple[Block, ...]:
    """Group what a host has by NUMA node, and within by the PCIe tree where it is known."""
    return _Grower(part).blocks()


def leaves_of(node: Node) -> list[Node]:
    """All leaves of a tree, from left to right."""
    return [leaf for child in node.children for leaf in leaves_of(child)] if node.switch is not None else [node]


class _Grower:
    # The indexes that every step needs; nothing in them changes after the start.

    def __init__(self, part: Part) -> None:
        self.switches: Mapping[str, Switch] = {switch.id: switch for switch in part.switches}
        self.parent: Mapping[str, Link] = _parents(part.links, self.switches)
        self.side: Mapping[str, Link] = _sides(part.links, self.switches)
        self.leaves: Sequence[Node] = _leaves(part, self.parent)

    def blocks(self) -> tuple[Block, ...]:
        trees: dict[str, _Tree] = {}
        sockets = {s.numa: s.id for s in self.switches.values() if s.kind is SwitchKind.socket}
        for leaf in self.leaves:
            way = self._way(leaf)
            numa = _numa(leaf)
            top = way[-1] if way and self._is_socket(way[-1]) else None
            # What no link places goes to the NUMA node its own reading names.
            key = top or sockets.get(numa) or f"numa {numa}"
            bars = [name for name in way if name != top][::-1]
            trees.setdefault(key, _Tree()).add(bars[:_MOST_LEVELS], leaf)
        for socket in sockets.values():
            trees.setdefault(socket, _Tree())
        blocks = [self._block(key, tree) for key, tree in trees.items()]
        return tuple(sorted(blocks, key=_block_order))

    def _block(self, key: str, tree: _Tree) -> Block:
        socket = self.switches.get(key)
        roots = tuple(self._grown(tree))
        leaf = next((leaf for root in roots for leaf in leaves_of(root)), None)
        numa = socket.numa if socket is not None and socket.numa is not None else _numa(leaf) if leaf else None
        return Block(numa=numa, socket=socket, roots=roots)

    def _grown(self, tree: _Tree) -> list[Node]:
        nodes = []
        for name, below in tree.bars.items():
            up = self.parent.get(name)
            nodes.append(Node(id=name, switch=self.switches[name], children=tuple(self._grown(below)), ups=(up,)))
        for leaf in tree.leaves:
            side = next((self.side[d.id] for d in leaf.devices if d.id in self.side), None)
            nodes.append(replace(leaf, side=side))
        order = {leaf.id: at for at, leaf in enumerate(self.leaves)}
        return _gathered(sorted(nodes, key=lambda node: min(order[leaf.id] for leaf in leaves_of(node))))

    def _way(self, leaf: Node) -> list[str]:
        way: list[str] = []
        here = next((member.id for member in _members(leaf) if member.id in self.parent), None)
        while here is not None and here in self.parent:
            here = self.parent[here].b
            if here in way:  # a file written by hand may hold a circle
                break
            way.append(here)
        return way

    def _is_socket(self, name: str) -> bool:
        return self.switches[name].kind is SwitchKind.socket


class _Tree:
    # Bars by id and leaves, while a tree is put together.

    def __init__(self) -> None:
        self.bars: dict[str, _Tree] = {}
        self.leaves: list[Node] = []

    def add(self, bars: Sequence[str], leaf: Node) -> None:
        here = self
        for name in bars:
            here = here.bars.setdefault(name, _Tree())
        here.leaves.append(leaf)


def _parents(links: Sequence[Link], switches: Mapping[str, Switch]) -> dict[str, Link]:
    parents: dict[str, Link] = {}
    above = _BARS | {SwitchKind.socket}
    for link in links:
        is_up = link.b in switches and switches[link.b].kind in above
        if link.kind in _UPWARD and is_up:
            parents.setdefault(link.a, link)
    return parents


def _sides(links: Sequence[Link], switches: Mapping[str, Switch]) -> dict[str, Link]:
    # Coherent links of a GPU to its CPU (NVLink-C2C), which pass the PCIe tree by.
    sides: dict[str, Link] = {}
    for link in links:
        for low, high in ((link.a, link.b), (link.b, link.a)):
            is_socket = high in switches and switches[high].kind is SwitchKind.socket
            if is_socket and low not in switches and link.kind not in _UPWARD:
                sides.setdefault(low, link)
    return sides


def _leaves(part: Part, parent: Mapping[str, Link]) -> list[Node]:
    host = part.host
    gpus: dict[str, list[Device]] = defaultdict(list)
    for device in host.devices:
        if device.kind is DeviceKind.gpu:
            gpus[device.parent or device.uuid or device.id].append(device)
    nodes = []
    for group in list(gpus.values())[:MOST_GPUS]:
        up = next((parent[device.id] for device in group if device.id in parent), None)
        nodes.append(Node(id=group[0].id, devices=tuple(group), ups=(up,)))
    slots: dict[int | None, list[Device]] = defaultdict(list)
    for device in [device for device in host.devices if device.kind is DeviceKind.cpu][:MOST_SLOTS]:
        slots[device.numa].append(device)
    nodes += [Node(id=group[0].id, devices=tuple(group)) for group in slots.values()]
    nodes += [Node(id=nic.id, nics=(nic,), ups=(parent.get(nic.id),)) for nic in host.nics[:MOST_NICS]]
    return nodes


def _gathered(nodes: Sequence[Node]) -> list[Node]:
    # NICs under one parent are one leaf, at its right end.
    alone = [node for node in nodes if node.nics]
    others = [node for node in nodes if not node.nics]
    if not alone:
        return others
    nics = tuple(nic for node in alone for nic in node.nics)
    ups = tuple(up for node in alone for up in node.ups)
    return [*others, Node(id=alone[0].id, nics=nics, ups=ups)]


def _numa(leaf: Node) -> int | None:
    return next((member.numa for member in _members(leaf) if member.numa is not None), None)


def _members(leaf: Node) -> list[Device | Nic]:
    return [*leaf.devices, *leaf.nics]


def _block_order(block: Block) -> tuple[int, str]:
    numa = _UNKNOWN_NUMA if block.numa is None else block.numa
    return numa, block.socket.id if block.socket is not None else ""
