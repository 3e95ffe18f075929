"""Which links of a topology the measured rates belong to.

Every test puts some bytes per second on every wire that its copies pass. The most that any test put on a wire in one
direction is a rate that it is known to reach, within what repeats differ. What slows a copy down is a wire that carries
its most in that test; where all such wires of a copy carry equally much (one wire, or several in series that nothing
tells apart), the evidence is clear, and their links get this rate: the median of the tests that came near the most.
Where they differ, one of them is only passed by, and none gets a rate from that copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from orchestrator.measure.flows import Flow
from topology.graph import Graph
from topology.model import Topology
from topology.routing.exchanges import PairPaths

_SAME: Final = 0.9  # of the most: repeats lie as far apart
_SHARED: Final = 1.1
_HALVES: Final = ("/up", "/out", "/in")


Wire = tuple[int, int]  # node indices in the direction of the copies; what joins a device has one for both ways


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
    """What tests put on a wire: copies at the same time, and bytes per second of all of them together."""

    alone: float = 0.0
    loads: list[tuple[float, int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return max(load for load, _ in self.loads)

    @property
    def _near(self) -> list[tuple[float, int]]:
        least = _SAME * self.rate
        return [(load, copies) for load, copies in self.loads if load >= least]

    @property
    def usual(self) -> float:
        return median(load for load, _ in self._near)

    @property
    def copies(self) -> int:
        return max(copies for _, copies in self._near)


def attributed(topology: Topology, graph: Graph, tests: Sequence[Seen]) -> tuple[LinkRate, ...]:
    """The links whose rate the tests show, in the order of the topology.

    Args:
        topology: whose links are asked about.
        graph: of the group that was measured, built from it.
        tests: what was copied at the same time, and how fast.
    """
    names = {frozenset((link.a, link.b)): (link.a, link.b) for link in topology.links}
    wires = _Wires(graph)
    most: dict[Wire, _Most] = {}
    for test in tests:
        for wire, copies in wires.loads(test.flows).items():
            found = most.setdefault(wire, _Most())
            found.loads.append((copies * test.bytes_per_second, copies))
            if len(test.flows) == 1:
                found.alone = max(found.alone, test.bytes_per_second)
    clear: set[Wire] = set()
    for test in tests:
        loads = wires.loads(test.flows)
        for flow in test.flows:
            full = [at for at in wires.of(flow) if loads[at] * test.bytes_per_second >= _SAME * most[at].rate]
            rates = [most[at].rate for at in full]
            if rates and min(rates) >= _SAME * max(rates):
                clear.update(full)
    by_link: dict[tuple[str, str], _Most] = {}
    for wire in sorted(clear):
        ends = names.get(frozenset(_plain(graph, node) for node in wire))
        # One rate stands for both ways: the slower.
        if ends is not None and (ends not in by_link or most[wire].usual < by_link[ends].usual):
            by_link[ends] = most[wire]
    return tuple(
        LinkRate(ends=ends, bytes_per_second=x.usual, copies=x.copies, alone_bytes_per_second=x.alone)
        for ends in dict.fromkeys(names.values())
        if (x := by_link.get(ends)) is not None
    )


def _plain(graph: Graph, node: int) -> str:
    """The name that the topology has for a node, or for the half of it."""
    name = graph.nodes[node].id
    return next((name.removesuffix(half) for half in _HALVES if name.endswith(half)), name)


class _Wires:
    """Wires with a limit on the way of a copy, each way looked up once."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._pairs = graph, PairPaths(graph)
        self._known: dict[Flow, tuple[int, ...]] = {}

    def _edges(self, flow: Flow) -> tuple[int, ...]:
        if flow not in self._known:
            path = self._pairs(*flow)
            self._known[flow] = tuple(at for at in path if self._graph.edges[at].units is not None)
        return self._known[flow]

    def _wire(self, edge: int) -> Wire:
        tail, head = self._graph.edges[edge].tail, self._graph.edges[edge].head
        # A device copies out as fast as in; a port may be slowed down one way only (shapers do).
        return (head, tail) if head < self._graph.size else (tail, head)

    def of(self, flow: Flow) -> tuple[Wire, ...]:
        return tuple(map(self._wire, self._edges(flow)))

    def loads(self, flows: Iterable[Flow]) -> dict[Wire, int]:
        """Copies on each wire, in the direction that more of them take."""
        found: dict[Wire, int] = {}
        for edge, copies in Counter(edge for flow in flows for edge in self._edges(flow)).items():
            wire = self._wire(edge)
            found[wire] = max(found.get(wire, 0), copies)
        return found
