"""All routes that a group has for a collective: what the library does, and the schedules that can be built."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from topology.collectives import Collective, check_size
from topology.errors import TopologyError
from topology.graph import UNIT_BYTES_PER_SECOND, Graph, LinkClass
from topology.routing.all_to_all import direct
from topology.routing.bound import bound
from topology.routing.cost import Cost, cost_of
from topology.routing.double_tree import double_tree
from topology.routing.flow_routes import flow_based, flow_direct
from topology.routing.hierarchical import hierarchical, leaders
from topology.routing.latency import PROTOCOLS, Protocol, nvls_seconds, ring_seconds, tree_seconds
from topology.routing.nvls import Nvls, network_seconds_per_byte, nvls_of
from topology.routing.packing import packing
from topology.routing.priors import PATTERNS, SHARES, PathKind, Prior
from topology.routing.ring import multi_ring, ring
from topology.routing.software import Runner, Software, software_of
from topology.routing.two_level import two_level
from topology.schedule import Schedule

Builder = Callable[[Graph, Collective], Schedule]
MOST_DEVICES: Final = 128  # of an explicit schedule
_SAME: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One way to carry out a collective.

    Attributes:
        algorithm: its name.
        collective: that it carries out.
        runner: who can carry it out.
        software: of the group.
        phases: in words.
        cost: seconds per byte with what wires really reach.
        raw_seconds_per_byte: with the full rates, as the bound counts; None where no sends describe it (NVLS).
        protocols: NCCL's, with the seconds of all hops of each; empty for others.
        fill_seconds: until a sum in the switch runs at its rate.
        schedule: the proof; None for NVLS.
    """

    algorithm: str
    collective: Collective
    runner: Runner
    software: Software
    phases: tuple[str, ...]
    cost: Cost
    raw_seconds_per_byte: float | None = None
    protocols: tuple[tuple[Protocol, float], ...] = ()
    fill_seconds: float = 0.0
    schedule: Schedule | None = None


def _gloo_ring(graph: Graph, collective: Collective) -> Schedule:
    """The ring of gloo, by rank; its reduce-scatter is an all-reduce in torch, of which a rank takes its part."""
    done = Collective.all_reduce if collective is Collective.reduce_scatter else collective
    return ring(graph, done, order=tuple(range(graph.size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    name: str
    runner: Runner
    build: Builder
    searches: bool = False  # solves programs that take seconds for more than a few hosts


def _ways(collective: Collective, software: str) -> tuple[_Way, ...]:
    """What may be built; the first of two equally fast ones is taken."""
    if collective is Collective.all_to_all:
        return (
            _Way(name="direct", runner=Runner.builtin, build=lambda graph, _: direct(graph)),
            *([] if software == "nccl" else [_Way(name="direct in pieces", runner=Runner.executor, build=_direct)]),
            _Way(name="two-level", runner=Runner.executor, build=lambda graph, _: two_level(graph)),
            _Way(name="flow", runner=Runner.executor, build=lambda graph, _: flow_direct(graph), searches=True),
            _Way(
                name="flow with relay", runner=Runner.executor, build=lambda graph, _: flow_based(graph), searches=True
            ),
        )
    tree = _Way(
        name="double tree", runner=Runner.builtin if software == "nccl" else Runner.executor, build=_double_tree
    )
    library = multi_ring if software == "nccl" else _gloo_ring
    return (
        _Way(name="ring", runner=Runner.builtin, build=library),
        *([tree] if collective is Collective.all_reduce else []),
        *([] if software == "nccl" else [_Way(name="ring in pieces", runner=Runner.executor, build=ring)]),
        _Way(name="hierarchical", runner=Runner.executor, build=hierarchical),
        _Way(name="leaders", runner=Runner.executor, build=leaders),
        _Way(name="tree packing", runner=Runner.executor, build=packing, searches=True),
    )


def _double_tree(graph: Graph, collective: Collective) -> Schedule:
    return double_tree(graph, collective)


def _direct(graph: Graph, _: Collective) -> Schedule:
    return direct(graph)


@lru_cache(maxsize=64)
def menu(
    graph: Graph, collective: Collective, *, search: bool = True, software: Software | None = None
) -> tuple[Entry, ...]:
    """Build every route that this group has; what does not apply to it is left out.

    Args:
        graph: of the group.
        collective: to carry out.
        search: without it those routes are left out too that linear programs have to find.
        software: as measured; None: the priors of the library that the group uses.

    Raises:
        TopologyError: fewer than two devices, or more than MOST_DEVICES.
    """
    check_size(graph.size)
    if graph.size > MOST_DEVICES:
        found = f"{graph.size} devices"
        raise TopologyError(asked="explicit schedules", found=found, remedy=f"use at most {MOST_DEVICES}")
    software = software or software_of(graph)
    ways = [way for way in _ways(collective, software.name) if search or not way.searches]
    entries: list[Entry] = []
    for way in ways:
        if way.searches and _is_found(graph, collective, entries):
            continue
        entry = _entry(graph, collective, way, software)
        entries += [] if entry is None else [entry]
    switch = nvls_of(graph) if collective is Collective.all_reduce else None
    if switch is not None:
        trees = next((entry.schedule for entry in entries if entry.algorithm == "double tree"), None)
        entries.append(_nvls_entry(graph, switch, software, trees))
    return tuple(entries)


def _is_found(graph: Graph, collective: Collective, entries: Sequence[Entry]) -> bool:
    """Whether two devices exchange at the bound already: trees between them are that exchange, searched for long."""
    if graph.size > 2 or collective is Collective.all_to_all:  # noqa: PLR2004
        return False
    least = float(bound(graph, collective).seconds_per_byte)
    known = [entry.raw_seconds_per_byte for entry in entries if entry.raw_seconds_per_byte is not None]
    return min(known, default=math.inf) <= least * (1 + _SAME)


def _entry(graph: Graph, collective: Collective, way: _Way, software: Software) -> Entry | None:
    try:
        schedule = way.build(graph, collective)
    except TopologyError:
        # A builder says so where the group has no such route: one island, one host, too many devices.
        return None
    protocols: tuple[tuple[Protocol, float], ...] = ()
    if way.runner is Runner.builtin and software.name == "nccl":
        is_tree = way.name == "double tree"
        steps = schedule.num_steps
        protocols = tuple(
            (one, tree_seconds(graph, one) if is_tree else ring_seconds(graph, one, steps)) for one in PROTOCOLS
        )
    return Entry(
        algorithm=way.name,
        collective=collective,
        runner=way.runner,
        software=software,
        phases=tuple(phase.name for phase in schedule.phases),
        cost=_cost(schedule, way, software),
        raw_seconds_per_byte=schedule.overlapped_seconds_per_byte,
        protocols=protocols,
        schedule=schedule,
    )


def _cost(schedule: Schedule, way: _Way, software: Software) -> Cost:
    """What the wires reach, times what the pattern reaches of it where NCCL runs it."""
    cost = cost_of(schedule)
    # Copies between two GPUs reach more of a wire than NCCL's rings (265 to 275 of 300 GB/s on A100), so nothing is
    # taken off schedules of sends, but where all send to all at once.
    exchanges = schedule.collective is Collective.all_to_all
    name = way.name if way.runner is Runner.builtin else "all-to-all of sends" if exchanges else ""
    pattern = PATTERNS.get(name) if software.name == "nccl" else None
    if pattern is None:
        return cost
    prior = Prior(value=cost.prior.value * pattern.value, source=f"{cost.prior.source}; {pattern.source}")
    return replace(
        cost, overlapped=cost.overlapped / pattern.value, stepwise=cost.stepwise / pattern.value, prior=prior
    )


def _nvls_entry(graph: Graph, found: Nvls, software: Software, trees: Schedule | None) -> Entry:
    network = share_of_network(graph, found, trees)
    slowest = max(found.seconds_per_byte, network)
    several = found.islands > 1
    phases = ("sum and copy in the switch", *(["trees over the network"] if several else []))
    cost = Cost(overlapped=slowest, stepwise=slowest, steps=2 if not several else 4, bottleneck=None, prior=found.prior)
    return Entry(
        algorithm="NVLS tree" if several else "NVLS",
        collective=Collective.all_reduce,
        runner=Runner.builtin,
        software=software,
        phases=phases,
        cost=cost,
        fill_seconds=nvls_seconds(found.islands),
    )


def share_of_network(graph: Graph, found: Nvls, trees: Schedule | None) -> float:
    """Seconds per byte of the trees between islands, with what networks reach: ports, leaves and spines alike."""
    share = SHARES[PathKind.network].value
    ports = network_seconds_per_byte(graph, found, share)
    if trees is None or found.islands == 1:
        return ports
    loads = trees.edge_seconds_per_unit.items()
    wires = [float(need) for at, need in loads if graph.edges[at].link is LinkClass.network]
    return max([ports, *(need / UNIT_BYTES_PER_SECOND / share for need in wires)])
