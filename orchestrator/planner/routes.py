"""What collectives of a group reach over the wires of its machine, and which wire limits them.

Wire rates times the shares that libraries reach of them (`topology.routing.priors`), for what NCCL runs: rings, two
trees between two hosts, and sums in the NVSwitch. A ring that fills the narrowest place of its graph needs no search;
only where one does not are several rings searched for, which loads a solver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from orchestrator.planner.wire_words import limit_words
from topology.collectives import Collective, bus_factor
from topology.errors import TopologyError
from topology.graph import UNIT_BYTES_PER_SECOND, Graph, LinkClass, NodeKind
from topology.routing.cost import cost_of
from topology.routing.double_tree import double_tree
from topology.routing.islands import Hops, hosts_of
from topology.routing.nvls import Nvls, network_seconds_per_byte, nvls_of
from topology.routing.orders import best_order
from topology.routing.priors import PATTERNS, SHARES, PathKind, path_kind, share
from topology.units import format_rate

_SEARCHED_DEVICES: Final = 16  # up to which several rings are searched for
_FULL: Final = 0.97  # of the narrowest place: no search finds more
_TWO: Final = 2
_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What one collective reaches.

    Attributes:
        algorithm: that the library runs.
        bytes_per_second: bus rate, as nccl-tests count it.
        limit: the wire that sets it, in words.
    """

    algorithm: str
    bytes_per_second: float
    limit: str

    @property
    def text(self) -> str:
        """In words: `ring, bus rate 12.4 GB/s, limited by ...`."""
        return f"{self.algorithm}, bus rate {format_rate(self.bytes_per_second)}, limited by {self.limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """All-reduce and all-gather of a group; a reduce-scatter reaches what an all-gather does."""

    reduce: Reach
    gather: Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rings:
    """Rings at work at once: seconds per bus byte of the limited edges, with shares taken off and without."""

    seconds: Mapping[int, float]
    raw_seconds: Mapping[int, float]
    kinds: Mapping[int, PathKind]

    @property
    def rate(self) -> float:
        return 1 / max(self.seconds.values())

    @property
    def raw_rate(self) -> float:
        return 1 / max(self.raw_seconds.values())

    @property
    def busiest(self) -> list[int]:
        most = max(self.seconds.values())
        return [at for at, seconds in self.seconds.items() if seconds >= most * (1 - _SAME)]


@lru_cache(maxsize=256)
def routes_of(graph: Graph, size: int, hosts: int) -> Routes | None:
    """Reckon what NCCL's collectives reach.

    Args:
        graph: of the group, or of a few hosts that stand for all of a large one.
        size: devices of the whole group.
        hosts: of the whole group that a network joins; 1 where NVLink joins all.

    Returns:
        None where no wire of the graph has a known limit, or one device is all there is.
    """
    if graph.size < _TWO:
        return None
    rings = _rings(graph)
    if rings is None:
        return None
    gather = _searched(graph, rings) or _reach_of(graph, rings)
    return Routes(reduce=max(_reduces(graph, gather, size, hosts), key=_rate), gather=gather)


def _rate(reach: Reach) -> float:
    return reach.bytes_per_second


def _rings(graph: Graph) -> _Rings | None:
    """One ring in the best order, or one through each device's place of every host, whichever is faster."""
    hops = Hops(graph)
    order = best_order(graph, hops)
    one = _loads(graph, hops, [order])
    if not one.seconds:
        return None
    several = _loads(graph, hops, list(_rotated(graph, order)))
    return several if several.seconds and several.rate > one.rate else one


def _loads(graph: Graph, hops: Hops, orders: list[tuple[int, ...]]) -> _Rings:
    """Put equal parts of the data on rings in these orders."""
    seconds: dict[int, float] = {}
    raw: dict[int, float] = {}
    kinds: dict[int, PathKind] = {}
    for order in orders:
        for at, rank in enumerate(order):
            path = hops.path(rank, order[(at + 1) % len(order)])
            kind = path_kind(graph, path)
            for edge in path:
                units = graph.edges[edge].units
                if units is not None:
                    each = 1 / (units * UNIT_BYTES_PER_SECOND * len(orders))
                    raw[edge] = raw.get(edge, 0.0) + each
                    seconds[edge] = seconds.get(edge, 0.0) + each / share(graph, kind, edge).value
                    kinds[edge] = kind
    return _Rings(seconds=seconds, raw_seconds=raw, kinds=kinds)


def _rotated(graph: Graph, order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Orders that enter each host at another device: every second host is walked backwards, so that rails are kept."""
    places = {rank: at for at, rank in enumerate(order)}
    hosts = [sorted(ranks, key=places.__getitem__) for ranks in hosts_of(graph)]
    if len(hosts) < _TWO:
        return
    for turn in range(max(map(len, hosts))):
        turned = [[*host[turn % len(host) :], *host[: turn % len(host)]] for host in hosts]
        yield tuple(rank for at, host in enumerate(turned) for rank in (reversed(host) if at % _TWO else host))


def _searched(graph: Graph, rings: _Rings) -> Reach | None:
    """Several rings of a small graph, where those at hand leave its narrowest place idle and these are faster."""
    if graph.size > _SEARCHED_DEVICES or rings.raw_rate >= _FULL * _narrowest(graph):
        return None
    # Loads scipy where there are more than a few devices; machines whose rings are plain do without either.
    from topology.routing.ring import multi_ring

    try:
        schedule = multi_ring(graph, Collective.all_gather)
    except TopologyError:
        return None
    cost = cost_of(schedule)
    rate = float(bus_factor(Collective.all_gather, graph.size)) / cost.overlapped
    if cost.bottleneck is None or rate <= rings.rate:
        return None
    words = limit_words(graph, [cost.bottleneck], cost.prior.value)
    return Reach(algorithm="several rings", bytes_per_second=rate, limit=words)


def _narrowest(graph: Graph) -> float:
    """No ring is faster than the wires into its worst device, or out of the ports of its worst host."""
    into: dict[object, float] = dict.fromkeys(range(graph.size), 0.0)
    for edge in graph.edges:
        tail = graph.nodes[edge.tail]
        rate = float("inf") if edge.units is None else float(edge.units * UNIT_BYTES_PER_SECOND)
        if edge.head < graph.size:
            into[edge.head] += rate
        if edge.link is LinkClass.network and tail.kind is NodeKind.nic:
            into[tail.host] = into.get(tail.host, 0.0) + rate
    return min(into.values())


def _reach_of(graph: Graph, rings: _Rings) -> Reach:
    busiest = rings.busiest
    edge = busiest[0]
    words = limit_words(graph, busiest, share(graph, rings.kinds[edge], edge).value)
    return Reach(algorithm="ring", bytes_per_second=rings.rate, limit=words)


def _reduces(graph: Graph, ring: Reach, size: int, hosts: int) -> Iterable[Reach]:
    """What NCCL may run for an all-reduce."""
    yield ring
    if hosts == _TWO and len(set(graph.hosts)) == _TWO:
        yield _two_trees(graph)
    switch = nvls_of(graph)
    if switch is not None:
        yield _in_switch(graph, switch, size, hosts)


def _two_trees(graph: Graph) -> Reach:
    """Between two hosts a tree sends everything once each way, a ring nearly twice."""
    cost = cost_of(double_tree(graph))
    reached = cost.prior.value * PATTERNS["double tree"].value
    rate = float(bus_factor(Collective.all_reduce, graph.size)) / cost.overlapped * PATTERNS["double tree"].value
    edges = [] if cost.bottleneck is None else [cost.bottleneck]
    return Reach(algorithm="double tree", bytes_per_second=rate, limit=limit_words(graph, edges, reached))


def _in_switch(graph: Graph, switch: Nvls, size: int, hosts: int) -> Reach:
    """Sums in the switch, with trees over the network; the whole group may have more islands, or a larger one."""
    own = size if hosts == 1 else switch.size
    islands = 1 if hosts == 1 else max(switch.islands, hosts)
    inside = switch.seconds_per_byte / (1 + 1 / switch.size) * (1 + 1 / own)
    network = network_seconds_per_byte(graph, replace(switch, islands=islands), SHARES[PathKind.network].value)
    seconds = max(inside, network)
    limit = (
        "the network between the hosts"
        if network > inside
        else f"the NVSwitch's sums ({switch.prior.value:.0%} of its links)"
    )
    name = "NVLS" if islands == 1 else "NVLS tree"
    return Reach(algorithm=name, bytes_per_second=float(bus_factor(Collective.all_reduce, size)) / seconds, limit=limit)
