"""Which devices should form a group: every candidate with its bounds, the best first.

A group is as good as its narrowest cut lets its all-gather be (its reduce-scatter and all-reduce follow), and among
equals as its all-to-all. Groups that the machine's symmetry maps onto each other are scored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topology.collectives import Collective, check_size
from topology.errors import TopologyError
from topology.graph import UNIT_BYTES_PER_SECOND, Graph, graph_of
from topology.model import Topology
from topology.paths import paths_from, width
from topology.routing.all_wires import all_wires
from topology.routing.bound import bound
from topology.routing.cuts import Bound
from topology.routing.diagnosis import describe
from topology.routing.group_classes import alike_groups, is_countable, pair_colours
from topology.routing.host_groups import candidates_of_hosts, part_of
from topology.scoring.copy_rules import copy_rules
from topology.scoring.group_latency import latencies

MOST_SCORED: Final = 192  # kinds of groups that get exact bounds; a machine with any symmetry has fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """The least time of a collective over a group, and what sets it.

    Attributes:
        devices: ids in rank order.
        collective: which one.
        nbytes: its size M.
        bound: least seconds per byte, and the cut.
        latency_seconds: of the farthest pair: no collective ends before a byte has come from there.
        seconds: both together; no software overhead is in it.
        words: the cut for people.
    """

    devices: tuple[str, ...]
    collective: Collective
    nbytes: int
    bound: Bound
    latency_seconds: float
    seconds: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGroup:
    """A group with its bounds; rates are bus bandwidths as nccl-tests count.

    Attributes:
        devices: ids in rank order.
        alike: how many groups it stands for.
        all_gather_bytes_per_second: by the narrowest cut; also that of reduce-scatter and all-reduce where links are
            as fast both ways and devices are alike.
        all_to_all_bytes_per_second: by the best flow.
        latency_seconds: of a copy between two of them, on average.
        numa_nodes: how many NUMA nodes they are on.
        words: what limits the all-gather.
    """

    devices: tuple[str, ...]
    alike: int
    all_gather_bytes_per_second: float
    all_to_all_bytes_per_second: float
    latency_seconds: float
    numa_nodes: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Groups of one size, the best first.

    Attributes:
        groups: those that were scored.
        is_complete: every group is one of these, or alike.
        is_best_proved: no group is better than the first.
    """

    groups: tuple[RankedGroup, ...]
    is_complete: bool
    is_best_proved: bool


def group_score(topology: Topology, devices: Sequence[str], collective: Collective, nbytes: int) -> GroupScore:
    """Score one group for a collective of `nbytes` bytes.

    Raises:
        TopologyError: unknown devices, fewer than two, or devices that nothing joins.
    """
    graph = graph_of(topology, devices)
    found = bound(graph, collective)
    latency = latencies(graph, copy_rules(topology))[0]
    return GroupScore(
        devices=graph.device_ids,
        collective=collective,
        nbytes=nbytes,
        bound=found,
        latency_seconds=latency,
        seconds=latency + nbytes * float(found.seconds_per_byte),
        words=_words(topology, graph, found),
    )


def rank_groups(topology: Topology, size: int) -> Ranking:
    """Rank the groups of `size` devices of a host or a cluster.

    On one host all groups count. On a cluster equally many devices of each host do, for hosts that are alike and
    close; and whole hosts, the largest first.

    Raises:
        TopologyError: a size that the machine does not have, or devices that nothing joins.
    """
    check_size(size)
    chosen = topology.gpus or topology.devices
    if size > len(chosen):
        found = f"{len(chosen)} devices"
        raise TopologyError(asked=f"groups of {size} devices", found=found, remedy="choose a size that exists")
    if len({device.host for device in chosen}) == 1:
        return _of_host(topology, size)
    host_of = {device.id: device.host for device in chosen}
    groups = [
        _ranked(part_of(topology, [host_of[name] for name in ids]), ids, 1)
        for ids in candidates_of_hosts(topology, size, _best_within)
    ]
    return Ranking(groups=tuple(sorted(groups, key=_order)), is_complete=False, is_best_proved=False)


def _best_within(topology: Topology, candidates: Sequence[Sequence[str]]) -> int:
    """Index of the best of some groups."""
    scored = [_ranked(topology, ids, 1) for ids in candidates]
    return min(range(len(scored)), key=lambda at: (*_order(scored[at])[:2], at))


def _of_host(topology: Topology, size: int) -> Ranking:
    whole = graph_of(topology)
    ids = whole.device_ids
    if not is_countable(whole.size, size):
        starts = {_nearest(whole, rank, size) for rank in range(whole.size)}
        near = [_ranked(topology, [ids[rank] for rank in ranks], 1) for ranks in sorted(starts)]
        return Ranking(groups=tuple(sorted(near, key=_order)), is_complete=False, is_best_proved=False)
    wires = all_wires(topology)
    kinds = alike_groups(pair_colours(wires), size)
    most = _most_units(wires, [kind.ranks for kind in kinds])
    scored: list[RankedGroup] = []
    best, left = 0.0, np.inf
    for at in np.argsort(-most, kind="stable") if len(kinds) > MOST_SCORED else range(len(kinds)):
        left = float(most[at]) * UNIT_BYTES_PER_SECOND
        if len(kinds) > MOST_SCORED and (len(scored) == MOST_SCORED or (scored and left < best)):
            break
        scored.append(_ranked(topology, [ids[rank] for rank in kinds[at].ranks], kinds[at].count))
        best = max(best, scored[-1].all_gather_bytes_per_second)
    is_complete = len(scored) == len(kinds)
    return Ranking(
        groups=tuple(sorted(scored, key=_order)),
        is_complete=is_complete,
        is_best_proved=is_complete or left < best,
    )


def _nearest(graph: Graph, rank: int, size: int) -> tuple[int, ...]:
    """A rank and those it reaches over the widest and shortest paths."""
    ways = paths_from(graph, rank, relay=True)
    far = [(-(width(graph, way) or 0), len(way), at) for at, way in enumerate(ways) if way]
    return tuple(sorted([rank, *(at for _, _, at in sorted(far)[: size - 1])]))


def _most_units(graph: Graph, groups: Sequence[Sequence[int]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """No all-gather of a group is faster than the wires into its worst device, in MB/s: an easy upper limit."""
    size = graph.size
    direct, shared = np.zeros((size, size)), np.zeros(size)
    for edge in graph.edges:
        if edge.head < size:
            units = np.inf if edge.units is None else edge.units
            if edge.tail < size:
                direct[edge.tail, edge.head] += units
            else:
                shared[edge.head] += units
    index = np.array(groups, dtype=np.intp)
    into = direct[index[:, :, None], index[:, None, :]].sum(axis=1) + shared[index]
    return np.asarray(into.min(axis=1))


def _ranked(topology: Topology, devices: Sequence[str], alike: int) -> RankedGroup:
    graph = graph_of(topology, devices)
    gather = bound(graph, Collective.all_gather)
    return RankedGroup(
        devices=graph.device_ids,
        alike=alike,
        all_gather_bytes_per_second=gather.bus_bytes_per_second,
        all_to_all_bytes_per_second=bound(graph, Collective.all_to_all).bus_bytes_per_second,
        latency_seconds=latencies(graph, copy_rules(topology))[1],
        numa_nodes=len({(node.host, node.numa) for node in graph.nodes[: graph.size]}),
        words=_words(topology, graph, gather),
    )


def _order(group: RankedGroup) -> tuple[float, float, float, int]:
    """The all-gather, the all-to-all (to what a solver can tell), then the nearest to each other."""
    rates = group.all_gather_bytes_per_second, group.all_to_all_bytes_per_second
    gather, exchange = (-float(f"{rate:.6g}") for rate in rates)
    return gather, exchange, float(f"{group.latency_seconds:.6g}"), group.numa_nodes


def _words(topology: Topology, graph: Graph, found: Bound) -> str:
    """What limits a bound, with devices called by their place on their host."""
    if found.cut is None:
        return "nothing limits it"
    places = {
        device.id: str(at if device.index is None else device.index)
        for host in topology.hosts
        for at, device in enumerate(host.devices)
    }
    return describe(graph, found.cut, [places[name] for name in graph.device_ids])
