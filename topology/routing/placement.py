"""Where the ranks of a group go: their order, the islands to shard in, and the adapter and CPUs of each.

Neighbours in the order are near each other: host by host, hosts of one island and of one leaf together, and within a
host over the widest paths first. This is what a launcher can set without a risk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from topology.collectives import Collective
from topology.graph import UNIT_BYTES_PER_SECOND, Graph, LinkClass, NodeKind, graph_of
from topology.hosts import split_hosts
from topology.model import Device, DeviceKind, Topology
from topology.routing.bound import bound
from topology.routing.host_groups import leaves_of, part_of, shape_of
from topology.routing.islands import Hops, islands_of, near_order
from topology.scoring.affinity import NearNics, near_nics
from topology.units import format_rate

_PAIR: Final = 2
_WORTH: Final = 1.2  # an island must gather so much faster than the whole group before it pays to shard in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Ranks of a group on a machine.

    Attributes:
        order: device ids; the first is rank 0.
        islands: device ids that fast links join (or one host does), in that order; they cover the group.
        shard_size: consecutive ranks that should share a copy of sharded weights (hpZ, MiCS, HSDP); the whole group
            where sharding further costs nothing.
        nics_of: for each device the adapters it should use, nearest first come; none where none is known.
        numa_of: NUMA node of each device; None: unknown.
        cpus_of: logical CPUs near each device, as the kernel writes them; None: unknown.
        reasons: why, in words.
    """

    order: tuple[str, ...]
    islands: tuple[tuple[str, ...], ...]
    shard_size: int
    nics_of: Mapping[str, tuple[str, ...]]
    numa_of: Mapping[str, int | None]
    cpus_of: Mapping[str, str | None]
    reasons: tuple[str, ...]


def placement(topology: Topology, devices: Sequence[str] = ()) -> Placement:
    """Place a group on its machine.

    Args:
        topology: of one or several hosts.
        devices: ids; empty: all GPUs, or without a GPU all CPU slots.

    Raises:
        TopologyError: an unknown device, or devices that nothing joins.
    """
    graph = graph_of(topology, devices)
    islands = islands_of(graph)
    order = _ordered(topology, graph, islands)
    place = {name: at for at, name in enumerate(order)}
    ids = graph.device_ids
    by_name = [sorted((ids[rank] for rank in island), key=place.__getitem__) for island in islands]
    by_name.sort(key=lambda island: place[island[0]])
    size, why = _shard_size(topology, graph, islands)
    known = {device.id: device for device in topology.devices}
    near = near_nics(topology)
    return Placement(
        order=order,
        islands=tuple(map(tuple, by_name)),
        shard_size=size,
        nics_of=_shared_out([near[name] for name in order]),
        numa_of={name: known[name].numa for name in order},
        cpus_of={name: known[name].cpus for name in order},
        reasons=(_order_reason(graph, order), why, *_nic_reasons([known[name] for name in order], near)),
    )


def _ordered(topology: Topology, graph: Graph, islands: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Host by host; hosts of one island, then those of one leaf, stand together."""
    leaves = leaves_of(topology)
    island_of = {graph.hosts[rank]: at for at, island in reversed([*enumerate(islands)]) for rank in island}
    own: dict[str, list[str]] = {}
    for name, host in zip(graph.device_ids, graph.hosts, strict=True):
        own.setdefault(host, []).append(name)
    parts = {part.hosts[0].name: part for part in split_hosts(topology)}
    seen: dict[Any, tuple[int, ...]] = {}
    order: list[str] = []
    for host in sorted(own, key=lambda name: (island_of[name], leaves.get(name, 0))):
        part = parts[host]
        places = {device.id: at for at, device in enumerate(part.devices)}
        names = sorted(own[host], key=places.__getitem__)
        key = shape_of(part), tuple(places[name] for name in names)
        if key not in seen:  # a cluster has many hosts of one kind
            is_set = len(names) <= _PAIR  # two are neighbours in any order
            seen[key] = tuple(range(len(names))) if is_set else near_order(Hops(graph_of(part, names)))
        order += [names[at] for at in seen[key]]
    return tuple(order)


def _order_reason(given: Graph, order: tuple[str, ...]) -> str:
    hosts = len(set(given.hosts))
    where = f"{hosts} hosts one after the other" if hosts > 1 else "one host"
    kept = "as given: neighbours are near each other" if order == given.device_ids else "so that neighbours are near"
    return f"order: {where}, {kept}"


def _shard_size(topology: Topology, graph: Graph, islands: Sequence[Sequence[int]]) -> tuple[int, str]:
    """Ranks that share a copy of sharded weights, and why."""
    size = math.gcd(*(len(island) for island in islands))
    if graph.size < _PAIR or len(islands) == 1 or size == 1:
        why = "one island" if len(islands) == 1 else "the islands have no common size"
        return graph.size, f"shard over all {graph.size}: {why}"
    names = {device.id: device.name for device in topology.devices}
    ids = graph.device_ids
    kinds = {tuple(names[ids[rank]] for rank in island): [ids[rank] for rank in island[:size]] for island in islands}
    host_of = dict(zip(ids, graph.hosts, strict=True))
    parts = [graph_of(part_of(topology, [host_of[name] for name in part]), part) for part in kinds.values()]
    near = min(map(_gather_rate, parts))
    far = min(_gather_rate(graph), _network_rate(graph, islands))
    all_over = f"{format_rate(far)} round a ring over all {graph.size}"
    rates = f"an all-gather reaches {format_rate(near)} among {size} and {all_over}"
    return (size, f"shard over {size}: {rates}") if near > _WORTH * far else (graph.size, f"shard over all: {rates}")


def _gather_rate(graph: Graph) -> float:
    return bound(graph, Collective.all_gather).bus_bytes_per_second


def _network_rate(graph: Graph, islands: Sequence[Sequence[int]]) -> float:
    """What the ports of the hosts of an island carry, of the slowest: a ring over all islands is not faster."""
    by_host: dict[str, float] = {}
    for edge in graph.edges:
        tail = graph.nodes[edge.tail]
        if edge.link is LinkClass.network and tail.kind is NodeKind.nic:
            units = math.inf if edge.units is None else edge.units
            by_host[tail.host or ""] = by_host.get(tail.host or "", 0.0) + units
    rates = (sum(by_host.get(host, 0.0) for host in {graph.hosts[rank] for rank in island}) for island in islands)
    return min((rate for rate in rates if rate), default=math.inf) * UNIT_BYTES_PER_SECOND


def _shared_out(near: Sequence[NearNics]) -> dict[str, tuple[str, ...]]:
    """Divide adapters that several devices are equally near to, in turn."""
    sharers: dict[tuple[str, ...], list[str]] = {}
    for item in near:
        sharers.setdefault(item.nics, []).append(item.device)
    found: dict[str, tuple[str, ...]] = {}
    for nics, devices in sharers.items():
        for at, name in enumerate(devices):
            if len(nics) >= len(devices):
                found[name] = nics[at * len(nics) // len(devices) : (at + 1) * len(nics) // len(devices)]
            else:
                found[name] = (nics[at * len(nics) // len(devices)],) if nics else ()
    return {item.device: found[item.device] for item in near}


def _nic_reasons(devices: Sequence[Device], near: Mapping[str, NearNics]) -> list[str]:
    """One line for each reason, with the number of devices it holds for."""
    counts: dict[str, int] = {}
    for device in devices:
        kind = "GPU" if device.kind is DeviceKind.gpu else "CPU rank"
        text = f"{kind} to adapter: {near[device.id].reason}"
        counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({count} of {len(devices)})" for text, count in counts.items()]
