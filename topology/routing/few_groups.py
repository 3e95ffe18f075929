"""The best group of a small host by cuts and paths alone: the linear program of an all-to-all is left to `groups`.

Groups are looked at in the order of an easy upper limit, so that few of a host's groups get their exact bound. Among
those that gather equally fast the all-to-all decides. Where copies over the widest paths fill a cut, that is its rate;
where they do not, the answer is left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, permutations
from typing import Final

from topology.collectives import Collective, bus_factor
from topology.errors import TopologyError
from topology.graph import UNIT_BYTES_PER_SECOND, Graph, graph_of
from topology.model import Topology
from topology.paths import paths_from
from topology.routing.all_wires import all_wires
from topology.routing.max_flow import max_flow
from topology.routing.nets import narrowest, net_of
from topology.scoring.copy_rules import copy_rules
from topology.scoring.group_latency import latencies

MOST_DEVICES: Final = 8
_PAIR: Final = 2
_MOST_ORDERED: Final = 5  # devices whose orders are all tried
_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BestGroup:
    """Device ids in rank order, and the bus rate of their all-gather by its narrowest cut."""

    devices: tuple[str, ...]
    all_gather_bytes_per_second: float


def best_group(topology: Topology, size: int) -> BestGroup | None:
    """The first group of `rank_groups` on a small host; None: it takes linear programs, or several hosts, to tell.

    Raises:
        TopologyError: devices that nothing joins.
    """
    chosen = topology.gpus or topology.devices
    if not _PAIR <= size <= len(chosen) <= MOST_DEVICES or len({device.host for device in chosen}) > 1:
        return None
    groups = list(combinations(range(len(chosen)), size))
    limits = _easy_limits(all_wires(topology), groups)
    ids = graph_of(topology).device_ids
    best = 0.0
    scored: list[tuple[float, tuple[int, ...], Graph]] = []
    for limit, ranks in sorted(zip(limits, groups, strict=True), key=lambda item: (-item[0], item[1])):
        if limit * UNIT_BYTES_PER_SECOND < best * (1 - _SAME):
            break
        graph = graph_of(topology, [ids[rank] for rank in ranks])
        rate = gather_rate(graph)
        if rate is None:
            return None
        scored.append((rate, ranks, graph))
        best = max(best, rate)
    tied = [one for one in scored if _digits(one[0]) == _digits(best)]
    rates = _exchange_rates([graph for _, _, graph in tied])
    if rates is None:
        return None
    ranked = [(-_digits(rate), *_near(topology, one[2]), one) for rate, one in zip(rates, tied, strict=True)]
    rate, _, graph = min(ranked, key=lambda item: (*item[:3], item[3][1]))[3]
    return BestGroup(devices=graph.device_ids, all_gather_bytes_per_second=rate)


def worst_gather_rate(topology: Topology, size: int) -> float | None:
    """The bus rate of the last group of `rank_groups` on a small host; None as for `best_group`.

    Raises:
        TopologyError: devices that nothing joins.
    """
    chosen = topology.gpus or topology.devices
    if not _PAIR <= size <= len(chosen) <= MOST_DEVICES or len({device.host for device in chosen}) > 1:
        return None
    ids = graph_of(topology).device_ids
    known: dict[object, float | None] = {}
    for group in combinations(ids, size):
        graph = graph_of(topology, group)
        shape = _shape(graph) or graph
        if shape not in known:
            known[shape] = gather_rate(graph)
    rates = [rate for rate in known.values() if rate is not None]
    return min(rates) if len(rates) == len(known) else None


def _digits(rate: float) -> float:
    """As many as `groups` tells rates apart by."""
    return float(f"{rate:.6g}")


def _near(topology: Topology, graph: Graph) -> tuple[float, int]:
    """Mean latency and number of NUMA nodes, by which `groups` orders what is equally fast."""
    mean = latencies(graph, copy_rules(topology))[1]
    return _digits(mean), len({(node.host, node.numa) for node in graph.nodes[: graph.size]})


def _easy_limits(graph: Graph, groups: Sequence[tuple[int, ...]]) -> list[float]:
    """MB/s into the worst device of each group: no all-gather is faster."""
    size = graph.size
    direct = [[0.0] * size for _ in range(size)]
    shared = [0.0] * size
    for edge in graph.edges:
        if edge.head < size:
            units = float("inf") if edge.units is None else float(edge.units)
            if edge.tail < size:
                direct[edge.tail][edge.head] += units
            else:
                shared[edge.head] += units
    return [min(shared[to] + sum(direct[rank][to] for rank in group) for to in group) for group in groups]


def gather_rate(graph: Graph) -> float | None:
    """The bus rate of an all-gather by its narrowest cut; None where switches are drawn that a cut says too much of.

    Raises:
        TopologyError: nothing joins some devices.
    """
    if not _is_balanced(graph):
        return None
    found = narrowest([net_of(graph)])
    if found is None:
        return float("inf")
    if not found.units_per_device:
        raise TopologyError(
            asked=f"the bound of a collective over {graph.size} devices",
            found="nothing leads out of some of them",
            remedy="give the links rates above 0, or leave these devices out",
        )
    rate = graph.size * found.units_per_device * UNIT_BYTES_PER_SECOND
    return float(bus_factor(Collective.all_gather, graph.size) * rate)


def _is_balanced(graph: Graph) -> bool:
    """Whether as much can leave every node that is no device as can enter it."""
    spare = [0] * len(graph.nodes)
    free = [0] * len(graph.nodes)
    for edge in graph.edges:
        for node, sign in ((edge.tail, -1), (edge.head, 1)):
            spare[node] += sign * (edge.units or 0)
            free[node] += sign * (edge.units is None)
    return not any(spare[graph.size :]) and not any(free[graph.size :])


def _exchange_rates(graphs: Sequence[Graph]) -> list[float] | None:
    """Rates to order groups by that gather equally fast; None where a program would have to tell."""
    shapes = {_shape(graph) for graph in graphs}
    # Equal graphs exchange equally fast, whatever that is, and two devices what they gather.
    if len(graphs) == 1 or graphs[0].size == _PAIR or (len(shapes) == 1 and None not in shapes):
        return [0.0] * len(graphs)
    found = [_exchange_rate(graph) for graph in graphs]
    rates = [rate for rate in found if rate is not None]
    return rates if len(rates) == len(found) else None


def _shape(graph: Graph) -> tuple[int, ...] | None:
    """Equal for graphs that differ in the numbers of their devices only; None where others than a few devices join."""
    size = graph.size
    if len(graph.nodes) > size or size > _MOST_ORDERED or any(edge.units is None for edge in graph.edges):
        return None
    units = [[0] * size for _ in range(size)]
    for edge in graph.edges:
        units[edge.tail][edge.head] += edge.units or 0
    return min(tuple(units[a][b] for a in order for b in order) for order in permutations(range(size)))


def _exchange_rate(graph: Graph) -> float | None:
    """The bus rate of an all-to-all where copies over the widest paths fill a cut; None: a program would tell."""
    loads: dict[int, int] = {}
    for rank in range(graph.size):
        for path in paths_from(graph, rank, relay=True):
            for at in path or ():
                loads[at] = loads.get(at, 0) + 1
    limited = [(units, load) for at, load in loads.items() if (units := graph.edges[at].units) is not None]
    if not limited:
        return None
    reached = min(Fraction(units, load) for units, load in limited)
    most = min(_cut_rates(graph), default=None)
    if most is None or reached < most:
        return None
    # As the bound of an all-to-all is counted, so that both round alike.
    rate = graph.size * reached * UNIT_BYTES_PER_SECOND
    return float(bus_factor(Collective.all_to_all, graph.size) * rate)


def _cut_rates(graph: Graph) -> Iterator[Fraction]:
    """What every pair has at most across each cut between some devices and the others, in MB/s."""
    size, count = graph.size, len(graph.nodes)
    most = 1 + sum(edge.units or 0 for edge in graph.edges)
    arcs = [(edge.tail, edge.head, most if edge.units is None else edge.units) for edge in graph.edges]
    for held in range(1, (1 << size) - 1):
        ends = [(count, rank, most) if held >> rank & 1 else (rank, count + 1, most) for rank in range(size)]
        sent, _ = max_flow(count + 2, [*arcs, *ends], count, count + 1, most=most)
        if sent < most:
            yield Fraction(sent, held.bit_count() * (size - held.bit_count()))
