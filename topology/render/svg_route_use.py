"""What a route does to what is drawn: how busy each link is, where the cut lies, which part each device has."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from topology.graph import LinkClass, NodeKind
from topology.render.svg_marks import Role, Use
from topology.render.svg_parts import parts_of
from topology.render.svg_tree import leaves_of
from topology.routing.diagnosis import cut_to_json
from topology.routing.menu import share_of_network
from topology.routing.nvls import nvls_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from topology.graph import Graph
    from topology.model import Topology
    from topology.render.svg import Scene
    from topology.routing.choose import Route
    from topology.schedule import Schedule

_HALVES: Final = ("/up", "/out", "/in")
_HALVED: Final = frozenset({NodeKind.pcie, NodeKind.bridge, NodeKind.socket, NodeKind.nic})
_FABRIC: Final = frozenset({LinkClass.nvlink, LinkClass.xgmi})


def plain_id(graph: Graph, node: int) -> str:
    """The id of a node in the topology: without the mark of a half of a switch."""
    found = graph.nodes[node]
    name = found.id
    if found.kind in _HALVED:
        for half in _HALVES:
            name = name.removesuffix(half)
    return name


def stand_ins(scene: Scene, topology: Topology) -> dict[str, str]:
    """The id of what is drawn for each id: for hosts that are alike, for switches in one box, for MIG slices."""
    found: dict[str, str] = {}
    boxed: dict[str, str] = {}
    for plan in scene.plans:
        for bar in plan.fabric.bars:
            boxed |= {switch.id: bar.switches[0].id for switch in bar.switches}
        leaves = [leaf for row in plan.rows for one in row for root in one.block.roots for leaf in leaves_of(root)]
        boxed |= {device.id: leaf.id for leaf in leaves if not leaf.is_slots for device in leaf.devices}
    boxed |= {switch.id: hub.switches[0].id for row in scene.network.rows for hub in row for switch in hub.switches}
    drawn = {name: plan.part for plan in scene.plans for name in plan.part.alike}
    for part in parts_of(topology) if drawn else ():
        one = drawn.get(part.host.name)
        if one is not None:
            # Hosts that are alike list their parts in the same order.
            found |= {a.id: b.id for a, b in zip(part.host.devices, one.host.devices, strict=True)}
            found |= {a.id: b.id for a, b in zip(part.host.nics, one.host.nics, strict=True)}
            found |= {a.id: b.id for a, b in zip(part.switches, one.switches, strict=True)}
    return {**boxed, **{name: boxed.get(other, other) for name, other in found.items()}}


def cables(scene: Scene, topology: Topology) -> dict[str, frozenset[str]]:
    """For each end of a link between hosts without a switch: the nodes that the picture has in the middle of it."""
    known = {switch.id for switch in topology.switches}
    middles = {switch.id for switch in scene.topology.switches} - known
    found: dict[str, set[str]] = defaultdict(set)
    for link in scene.topology.links if middles else ():
        if link.b in middles:
            found[link.a].add(link.b)
    return {name: frozenset(some) for name, some in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Ranks on the side of the cut that its description tells, and whether the edges of the cut lead out of it."""

    ranks: frozenset[int]
    is_out: bool


def side_of(route: Route) -> Side:
    """Find the side of the cut to stress; no ranks where there is none."""
    graph, cut = route.graph, route.bound.cut
    if cut is None or not cut.inside:
        return Side(ranks=frozenset(), is_out=True)
    told = set(cut_to_json(graph, cut)["devices"])
    ranks = frozenset(rank for rank, name in enumerate(graph.device_ids) if name in told)
    others = frozenset(range(graph.size)) - ranks
    # Of two devices the description may mean either: the one that the links end at.
    ends = [(graph.edges[at].tail, graph.edges[at].head) for at in cut.edges]
    if len(ranks) == len(others) == 1 and {head for _, head in ends} == others:
        ranks = others
    return Side(ranks=ranks, is_out=ranks == frozenset(cut.inside))


def roles_of(route: Route, topology: Topology, stands_for: Mapping[str, str], side: Side) -> dict[str, Role]:
    """The part that each drawn device has; one that stands for many has the part of the one that matters most."""
    ids = route.graph.device_ids
    own = dict.fromkeys(ids, Role.group) | dict.fromkeys((ids[rank] for rank in side.ranks), Role.side)
    order = (Role.outside, Role.group, Role.side)
    found: dict[str, Role] = {}
    for device in topology.devices:
        role = own.get(device.id, Role.outside)
        for name in {device.id, stands_for.get(device.id, device.id)}:
            found[name] = max(found.get(name, Role.outside), role, key=order.index)
    return found


@dataclass(slots=True)
class _Found:
    share: float | None = None
    heads: frozenset[str] = frozenset()
    cut_at: str = ""


def uses_of(
    route: Route,
    stands_for: Mapping[str, str],
    middles: Mapping[str, frozenset[str]],
    side: Side,
) -> dict[frozenset[str], Use]:
    """How each link is used, by the ids that stand for its ends in the picture."""
    schedule = route.chosen.entry.schedule
    # A route of many hosts is proved on a few of them, which stand for the others.
    graph = route.graph if schedule is None else schedule.graph
    shares = _switch_shares(graph) if schedule is None else _shares(schedule)
    found: dict[frozenset[str], _Found] = defaultdict(_Found)
    for edge, share in shares.items():
        for a, b in _drawn(graph, edge, stands_for, middles):
            one = found[frozenset((a, b))]
            one.share = max(one.share or 0.0, share)
            one.heads |= {b}
    cut = route.bound.cut
    for edge in cut.edges if cut is not None else ():
        ways = _drawn(route.graph, edge, stands_for, middles)
        a, b = ways[0] if side.is_out else ways[-1]
        found[frozenset((a, b))].cut_at = a if side.is_out else b
    return {key: Use(share=one.share, heads=one.heads, cut_at=one.cut_at) for key, one in found.items()}


def _drawn(
    graph: Graph,
    edge: int,
    stands_for: Mapping[str, str],
    middles: Mapping[str, frozenset[str]],
) -> list[tuple[str, str]]:
    """Tail and head of each line that is drawn for an edge."""
    found = graph.edges[edge]
    ends = [plain_id(graph, node) for node in (found.tail, found.head)]
    a, b = (stands_for.get(end, end) for end in ends)
    between = sorted(middles.get(ends[0], frozenset()) & middles.get(ends[1], frozenset()))
    if not between:
        return [(a, b)]
    name = stands_for.get(between[0], between[0])
    return [(a, name), (name, b)]


def _shares(schedule: Schedule) -> dict[int, float]:
    """Seconds that each used edge is busy, over those of the busiest; without a limit, as its neighbours on the way."""
    seconds = schedule.edge_seconds_per_unit
    most = max(seconds.values(), default=None)
    shares = {edge: float(time / most) if most else 1.0 for edge, time in seconds.items()}
    free: dict[int, float] = {}
    for way in {send.path for send in schedule.sends}:
        for at, edge in enumerate(way):
            if edge not in shares:
                near = max((shares.get(other, 0.0) for other in _near(way, at)), default=1.0)
                free[edge] = max(free.get(edge, 0.0), near)
    return shares | free


def _near(way: tuple[int, ...], at: int) -> Iterable[int]:
    return chain(way[max(at - 1, 0) : at], way[at + 1 : at + 2])


def _switch_shares(graph: Graph) -> dict[int, float]:
    """Without sends, where the switch sums: the fabric, and the ways to ports that lead to other islands."""
    found = nvls_of(graph)
    network = share_of_network(graph, found, None) if found is not None else 0.0
    fabric = found.seconds_per_byte if found is not None else 1.0
    most = max(fabric, network)
    shares = {at: fabric / most for at, edge in enumerate(graph.edges) if edge.link in _FABRIC}
    if network:
        shares |= dict.fromkeys(_port_ways(graph), network / most)
    return shares


def _port_ways(graph: Graph) -> Iterator[int]:
    """Edges of the network ports, and of the shortest way between each and a device, in both directions."""
    into: dict[int, list[int]] = defaultdict(list)
    for at, edge in enumerate(graph.edges):
        into[edge.head].append(at)
    for is_out in (True, False):
        step = into if is_out else dict(enumerate(graph.leaving))
        for at, edge in enumerate(graph.edges):
            port = edge.tail if is_out else edge.head
            if edge.link is LinkClass.network and graph.nodes[port].kind is NodeKind.nic:
                yield at
                yield from _way_to_device(graph, port, step, is_out=is_out)


def _way_to_device(graph: Graph, port: int, step: Mapping[int, Sequence[int]], *, is_out: bool) -> Iterator[int]:
    came: dict[int, int | None] = {port: None}
    waiting = deque([port])
    while waiting:
        here = waiting.popleft()
        if here < graph.size:
            while (at := came[here]) is not None:
                yield at
                here = graph.edges[at].head if is_out else graph.edges[at].tail
            return
        for at in step.get(here, ()):
            edge = graph.edges[at]
            there = edge.tail if is_out else edge.head
            if edge.link not in (LinkClass.network, *_FABRIC) and there not in came:
                came[there] = at
                waiting.append(there)
