"""Which links of a topology the measured rates belong to.

Every test puts some bytes per second on every edge that its copies pass. The most that any test put on an edge is a
rate that the edge is known to reach. What slows a copy down is an edge that carries its most in that test; where all
such edges of a copy carry equally much (one edge, or several in series that nothing tells apart), the evidence is clear,
and their links get this rate. Where they differ, one of them is only passed by, and none gets a rate from that copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.measure.flows import Flow
from topology.graph import Graph
from topology.model import Topology
from topology.routing.exchanges import PairPaths

_SAME: Final = 0.9  # of the most: repeats lie as far apart
_SHARED: Final = 1.1
_HALVES: Final = ("/up", "/out", "/in")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Copies at the same time, and the bytes per second of each."""

    flows: tuple[Flow, ...]
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """What a link reaches.

    Attributes:
        ends: as the topology names the link.
        bytes_per_second: in one direction.
        copies: at the same time when it reached this.
        alone_bytes_per_second: the most that a single copy put on it.
    """

    ends: tuple[str, str]
    bytes_per_second: float
    copies: int
    alone_bytes_per_second: float

    @property
    def is_shared(self) -> bool:
        """Whether several copies at once got less than each gets by itself."""
        return self.copies > 1 and self.copies * self.alone_bytes_per_second > _SHARED * self.bytes_per_second


@dataclass(slots=True)
class _Most:
    rate: float = 0.0
    copies: int = 0
    alone: float = 0.0


def attributed(topology: Topology, graph: Graph, tests: Sequence[Seen]) -> tuple[LinkRate, ...]:
    """The links whose rate the tests show, in the order of the topology.

    Args:
        topology: whose links are asked about.
        graph: of the group that was measured, built from it.
        tests: what was copied at the same time, and how fast.
    """
    names = {frozenset((link.a, link.b)): (link.a, link.b) for link in topology.links}
    link_of = [names.get(frozenset((_plain(graph, e.tail), _plain(graph, e.head)))) for e in graph.edges]
    paths = _Paths(graph)
    most: dict[int, _Most] = {}
    for test in tests:
        for edge, copies in paths.loads(test.flows).items():
            found = most.setdefault(edge, _Most())
            if copies * test.bytes_per_second > found.rate:
                found.rate, found.copies = copies * test.bytes_per_second, copies
            if len(test.flows) == 1:
                found.alone = max(found.alone, test.bytes_per_second)
    clear: set[int] = set()
    for test in tests:
        loads = paths.loads(test.flows)
        for flow in test.flows:
            full = [e for e in paths.of(flow) if loads[e] * test.bytes_per_second >= _SAME * most[e].rate]
            rates = [most[e].rate for e in full]
            if rates and min(rates) >= _SAME * max(rates):
                clear.update(full)
    by_link: dict[tuple[str, str], _Most] = {}
    for edge in sorted(clear):
        ends, found = link_of[edge], most[edge]
        if ends is not None and found.rate > by_link.get(ends, _Most()).rate:
            by_link[ends] = found
    return tuple(
        LinkRate(ends=ends, bytes_per_second=x.rate, copies=x.copies, alone_bytes_per_second=x.alone)
        for ends in dict.fromkeys(names.values())
        if (x := by_link.get(ends)) is not None
    )


def _plain(graph: Graph, node: int) -> str:
    """The name that the topology has for a node, or for the half of it."""
    name = graph.nodes[node].id
    return next((name.removesuffix(half) for half in _HALVES if name.endswith(half)), name)


class _Paths:
    """Edges with a limit on the way of a copy, each looked up once."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._pairs = graph, PairPaths(graph)
        self._known: dict[Flow, tuple[int, ...]] = {}

    def of(self, flow: Flow) -> tuple[int, ...]:
        if flow not in self._known:
            path = self._pairs(*flow)
            self._known[flow] = tuple(at for at in path if self._graph.edges[at].units is not None)
        return self._known[flow]

    def loads(self, flows: Iterable[Flow]) -> Counter[int]:
        """Copies on each edge."""
        return Counter(edge for flow in flows for edge in self.of(flow))
