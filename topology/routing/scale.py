"""Routes of groups too large for explicit schedules: proved on a few hosts, carried over to all of them.

Seconds per byte of every algorithm here have the form a + b / H over H like hosts (a rank keeps 1 / N of the data, a
host 1 / H), so two small clusters tell a and b; steps grow as c + d H, or with the logarithm for trees. What only the
whole cluster has, such as leaves whose uplinks are shared, is in its cut: no route is faster than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, NodeKind
from topology.routing.bound import bound
from topology.routing.latency import PROTOCOLS, nvls_seconds, ring_seconds, tree_seconds
from topology.routing.menu import MOST_DEVICES, Entry, menu
from topology.routing.priors import SHARES, PathKind
from topology.routing.software import Software

_SMALL: Final = (3, 6)  # hosts of the two clusters: both above two, where trees have one child only


@lru_cache(maxsize=16)
def cluster_menu(graph: Graph, collective: Collective, *, software: Software | None = None) -> tuple[Entry, ...]:
    """Entries for a group of many hosts, by two small clusters of its hosts; `software` as `menu` takes it.

    Raises:
        TopologyError: more devices behind one switch than a schedule is built for.
    """
    hosts = tuple(dict.fromkeys(graph.hosts))
    per_host = math.ceil(graph.size / len(hosts))
    counts = [count for count in _SMALL if count * per_host <= MOST_DEVICES]
    if len(counts) < len(_SMALL):
        counts = [max(2, MOST_DEVICES // per_host // 2), MOST_DEVICES // per_host]
    if len(hosts) <= counts[-1] or counts[0] >= counts[-1]:
        found = f"{graph.size} devices in {len(hosts)} hosts"
        raise TopologyError(
            asked="routes of a large group", found=found, remedy=f"use at most {MOST_DEVICES} devices of fewer hosts"
        )
    least = bound(graph, collective)
    whole = _Whole(
        graph=graph,
        hosts=len(hosts),
        least=float(least.seconds_per_byte),
        by_network=least.cut is not None and all(graph.edges[at].link is LinkClass.network for at in least.cut.edges),
    )
    small, large = (part_of(graph, _spread(hosts, count)) for count in counts)
    by_name = {entry.algorithm: entry for entry in menu(small, collective, search=False, software=software)}
    entries = []
    for entry in menu(large, collective, search=False, software=software):
        other = by_name.get(entry.algorithm)
        if other is not None:
            entries.append(_carried(whole, (other, entry), (counts[0], counts[1])))
    return tuple(entries)


def _spread(hosts: Sequence[str], count: int) -> tuple[str, ...]:
    """Some of the hosts, evenly over the list, so that every leaf and kind has its part."""
    stride = len(hosts) / count
    return tuple(hosts[int(at * stride)] for at in range(count))


def part_of(graph: Graph, hosts: Sequence[str]) -> Graph:
    """The graph of some of the hosts, with all that is between hosts."""
    kept = set(hosts)
    nodes = [at for at, node in enumerate(graph.nodes) if node.host is None or node.host in kept]
    index = {old: new for new, old in enumerate(nodes)}
    edges = tuple(
        Edge(tail=index[edge.tail], head=index[edge.head], units=edge.units, link=edge.link, source=edge.source)
        for edge in graph.edges
        if edge.tail in index and edge.head in index
    )
    size = sum(graph.nodes[at].kind is NodeKind.device for at in nodes)
    through = frozenset(host for host in graph.through_host if host in kept)
    return Graph(nodes=tuple(graph.nodes[at] for at in nodes), edges=edges, size=size, through_host=through)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """The whole group: its hosts, the least seconds per byte, and whether only wires of the network set that."""

    graph: Graph
    hosts: int
    least: float
    by_network: bool


def _carried(whole: _Whole, entries: tuple[Entry, Entry], counts: tuple[int, int]) -> Entry:
    small, large = entries
    hosts, share = whole.hosts, large.cost.prior.value

    def to_all(a: float, b: float) -> float:
        slope = (a - b) / (1 / counts[0] - 1 / counts[1])
        return max(b + slope * (1 / hosts - 1 / counts[1]), 0.0)

    def linear(a: int, b: int) -> int:
        return round(b + (b - a) / (counts[1] - counts[0]) * (hosts - counts[1]))

    raw, floor = None, 0.0
    if small.raw_seconds_per_byte is not None and large.raw_seconds_per_byte is not None:
        raw = max(to_all(small.raw_seconds_per_byte, large.raw_seconds_per_byte), whole.least)
        floor = whole.least / share
    elif whole.by_network:  # sums in a switch leave out wires of the host, none between hosts
        floor = whole.least / SHARES[PathKind.network].value
    moving = max(to_all(small.cost.overlapped, large.cost.overlapped), floor)
    steps = _steps(small, large, counts, hosts)
    cost = replace(
        large.cost,
        overlapped=moving,
        stepwise=max(to_all(small.cost.stepwise, large.cost.stepwise), moving),
        steps=steps,
        messages=linear(small.cost.messages, large.cost.messages),
        exchanges_at_once=max(
            large.cost.exchanges_at_once, linear(small.cost.exchanges_at_once, large.cost.exchanges_at_once)
        ),
    )
    is_tree = "tree" in large.algorithm
    protocols = tuple(
        (one, tree_seconds(whole.graph, one) if is_tree else ring_seconds(whole.graph, one, steps)) for one in PROTOCOLS
    )
    return replace(
        large,
        cost=cost,
        raw_seconds_per_byte=raw,
        protocols=protocols if large.protocols else (),
        fill_seconds=nvls_seconds(hosts) if large.fill_seconds else 0.0,
    )


def _steps(small: Entry, large: Entry, counts: tuple[int, int], hosts: int) -> int:
    """Steps over all hosts: linear in their number, logarithmic for trees."""
    if "tree" in large.algorithm:
        levels = math.log2(counts[1] / counts[0])
        slope = (large.cost.steps - small.cost.steps) / levels
        return round(large.cost.steps + slope * math.log2(hosts / counts[1]))
    slope = (large.cost.steps - small.cost.steps) / (counts[1] - counts[0])
    return round(large.cost.steps + slope * (hosts - counts[1]))
