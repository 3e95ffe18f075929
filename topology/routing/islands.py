"""Groups of devices that a hierarchy works in, and the order in which neighbours stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topology.graph import Edge, Graph, LinkClass, NodeKind
from topology.grouping import connected
from topology.paths import paths_from, width

_DIRECT: Final = frozenset({LinkClass.nvlink, LinkClass.c2c, LinkClass.xgmi})
MOST_LANES: Final = 8
_WIDE: Final = 1 << 62


def islands_of(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Ranks by island, each in rank order: what NVLink or XGMI joins without PCIe; if that splits nothing, by host.

    A machine that the fast links join as a whole, or that has none, is grouped by its hosts.
    """
    names = [f"{at}" for at in range(len(graph.nodes))]
    joined = [(names[edge.tail], names[edge.head]) for edge in graph.edges if _is_direct(graph, edge)]
    devices = set(names[: graph.size])
    parts = [
        tuple(int(name) for name in part if name in devices) for part in connected(names, joined) if part[0] in devices
    ]
    if 1 < len(parts) < graph.size:
        return tuple(parts)
    return hosts_of(graph)


def _is_direct(graph: Graph, edge: Edge) -> bool:
    """Whether it is a fast link between two devices, or a device and an NVSwitch."""
    kinds = {graph.nodes[edge.tail].kind, graph.nodes[edge.head].kind}
    return edge.link in _DIRECT and NodeKind.device in kinds and kinds <= {NodeKind.device, NodeKind.nvswitch}


def hosts_of(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Ranks by host, each in rank order."""
    groups: dict[str, list[int]] = {}
    for rank, host in enumerate(graph.hosts):
        groups.setdefault(host, []).append(rank)
    return tuple(tuple(ranks) for ranks in groups.values())


class Hops:
    """The widest paths of a graph's devices, looked up rank by rank; over other devices only where nothing else leads.

    It keeps the rows itself: looking one up in the cache of `paths_from` takes time on a large graph.
    """

    def __init__(self, graph: Graph) -> None:
        """Begin without rows."""
        self.graph = graph
        self._rows: dict[int, tuple[tuple[int, ...] | None, ...]] = {}
        self._lanes: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
        self._relayed: dict[int, tuple[tuple[int, ...] | None, ...]] = {}

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """Edge indices from source to target."""
        found = self.direct(source)[target]
        if found is None:
            if source not in self._relayed:
                self._relayed[source] = paths_from(self.graph, source, relay=True)
            found = self._relayed[source][target]
        # A graph is joined in both directions, so that there is always a path with relay.
        return () if found is None else found

    def lanes(self, source: int, target: int) -> tuple[tuple[int, ...], ...]:
        """Paths as short and as wide as the widest one that share none of its narrowest edges: one for each NIC."""
        key = (source, target)
        if key not in self._lanes:
            first = self.path(source, target)
            least = width(self.graph, first)
            found, taken = [first], set[int]()
            while least is not None and len(found) < MOST_LANES:
                taken |= {at for at in found[-1] if self.graph.edges[at].units == least}
                other = self._alike(source, target, least, len(first), taken)
                if other is None:
                    break
                found.append(other)
            self._lanes[key] = tuple(found)
        return self._lanes[key]

    def _alike(self, source: int, target: int, least: int, length: int, taken: set[int]) -> tuple[int, ...] | None:
        """A path of just `length` edges, none of them taken or narrower than `least`; searched breadth first."""
        graph = self.graph
        came, level = dict[int, int](), {source}
        for _ in range(length):
            following = set[int]()
            for node in sorted(level):
                for at in graph.leaving[node]:
                    edge = graph.edges[at]
                    wide = edge.units is None or edge.units >= least
                    passes = edge.head == target or graph.nodes[edge.head].kind is not NodeKind.device
                    if wide and passes and at not in taken and edge.head not in came and edge.head != source:
                        came[edge.head] = at
                        following.add(edge.head)
            level = following
        if target not in level:
            return None
        path = [came[target]]
        while graph.edges[path[-1]].tail != source:
            path.append(came[graph.edges[path[-1]].tail])
        return tuple(reversed(path))

    def direct(self, source: int) -> tuple[tuple[int, ...] | None, ...]:
        """Paths from source to every rank that do not lead over other devices."""
        if source not in self._rows:
            self._rows[source] = paths_from(self.graph, source)
        return self._rows[source]


def near_order(hops: Hops, ranks: Sequence[int] = ()) -> tuple[int, ...]:
    """Order ranks so that neighbours stand together: the next is always the nearest that is left.

    Nearest is on the same host, then over the widest path, then the shortest; so hosts and islands stay together and
    a PCIe tree is walked branch by branch.
    """
    graph = hops.graph
    left = list(ranks) or list(range(graph.size))
    order = [left.pop(0)]
    while left:
        here, paths = order[-1], hops.direct(order[-1])
        near = [rank for rank in left if graph.hosts[rank] == graph.hosts[here]] or left
        order.append(min(near, key=lambda rank: _distance(graph, rank, paths[rank])))
        left.remove(order[-1])
    return tuple(order)


def _distance(graph: Graph, rank: int, path: tuple[int, ...] | None) -> tuple[int, int, int]:
    if path is None:
        return 0, len(graph.nodes), rank
    units = width(graph, path)
    return -(_WIDE if units is None else units), len(path), rank
