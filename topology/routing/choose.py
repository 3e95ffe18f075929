"""The choice of a route by size: predicted time of each, how near the bound it comes, and what holds it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from topology.collectives import Collective, bus_factor
from topology.errors import TopologyError
from topology.graph import Graph, NodeKind
from topology.routing.bound import bound
from topology.routing.cuts import Bound
from topology.routing.duration import duration
from topology.routing.menu import MOST_DEVICES, Entry, menu
from topology.routing.scale import cluster_menu
from topology.routing.software import Runner, Software
from topology.units import format_rate

_WORTH: Final = 1.05
_ALL_BUT: Final = 0.95  # of the bound
_FEW_DEVICES: Final = 64  # several rings at once are searched up to here
SIZES: Final = tuple(4**k * 1024 for k in range(11))  # 1 KiB to 1 GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to carry out a collective of one size.

    Attributes:
        algorithm: its name.
        phases: in words.
        runner: who can carry it out today; `paper` where nobody can.
        seconds: predicted.
        bus_bytes_per_second: as nccl-tests count it.
        of_bound: the bound's time over the route's at full rates and endless size; above 1 for sums in the switch.
        pieces: that chunks are cut into.
        protocol: of NCCL; empty for others.
        bottleneck: the busiest wire and the share of its rate that was reckoned with.
        entry: what it was made from.
    """

    algorithm: str
    phases: tuple[str, ...]
    runner: Runner
    seconds: float
    bus_bytes_per_second: float
    of_bound: float
    pieces: int
    protocol: str
    bottleneck: str
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The choice for one collective and size.

    Attributes:
        collective: what is carried out.
        nbytes: M, as `collectives` defines it.
        graph: of the group.
        chosen: the fastest offer that has a code path; of those within 5% the library's, or the simplest. NCCL's own
            where it uses the wires as well as can be.
        alternatives: the others, fastest first.
        bound: the least time that wires allow, and the cut that sets it.
    """

    collective: Collective
    nbytes: int
    graph: Graph
    chosen: Offer
    alternatives: tuple[Offer, ...]
    bound: Bound

    @property
    def bound_seconds(self) -> float:
        """Least seconds that wires allow, latency not counted."""
        return float(self.bound.seconds_per_byte) * self.nbytes


def choose(graph: Graph, collective: Collective, nbytes: int, *, software: Software | None = None) -> Route:
    """Choose the route for `nbytes` of M, with the fixed times of `software` (None: priors).

    Raises:
        TopologyError: fewer than two devices.
    """
    return routes(graph, collective, (nbytes,), software=software)[0]


def routes(
    graph: Graph, collective: Collective, sizes: Sequence[int] = SIZES, *, software: Software | None = None
) -> tuple[Route, ...]:
    """Choose the route for each size; schedules and the bound are made once."""
    entries = _entries(graph, collective, software)
    least = bound(graph, collective)
    return tuple(_route(graph, collective, size, entries, least) for size in sizes)


def _entries(graph: Graph, collective: Collective, software: Software | None) -> tuple[Entry, ...]:
    """Explicit schedules for a few hosts; above, those of a few hosts carried over."""
    if graph.size > _FEW_DEVICES:
        try:
            return cluster_menu(graph, collective, software=software)
        except TopologyError:
            if graph.size > MOST_DEVICES:
                raise
    return menu(graph, collective, software=software)


def _route(graph: Graph, collective: Collective, nbytes: int, entries: Sequence[Entry], least: Bound) -> Route:
    offers = [_offer(graph, collective, nbytes, entry, least) for entry in entries]
    runnable = [offer for offer in offers if offer.runner is not Runner.paper] or offers
    fastest = min(offer.seconds for offer in runnable)
    # The library's own comes first, then the simpler: predictions are not good enough to leave those for less.
    near = [offer for offer in runnable if offer.seconds <= fastest * _WORTH]
    own = [offer for offer in runnable if offer.runner is Runner.builtin]
    if own and own[0].entry.software.name == "nccl" and max(offer.of_bound for offer in own) >= _ALL_BUT:
        # It wastes no wire, so only fixed times could speak for sends, and nobody measured those on GPUs.
        near = [min(own, key=lambda offer: offer.seconds)]
    if float(least.seconds_per_byte) * nbytes > fastest / 2:
        # Wires set the time: no route that wastes them is taken where one does not.
        near = [offer for offer in near if offer.of_bound >= _ALL_BUT] or near
    chosen = next((offer for offer in near if offer.runner is Runner.builtin), near[0])
    others = tuple(sorted((offer for offer in offers if offer is not chosen), key=lambda offer: offer.seconds))
    return Route(collective=collective, nbytes=nbytes, graph=graph, chosen=chosen, alternatives=others, bound=least)


def _offer(graph: Graph, collective: Collective, nbytes: int, entry: Entry, least: Bound) -> Offer:
    found = duration(entry, nbytes)
    # What sums in the switch reach is known by measurement only.
    raw = entry.cost.overlapped if entry.raw_seconds_per_byte is None else entry.raw_seconds_per_byte
    edge = entry.cost.bottleneck
    where = (
        "the switch's own sums" if edge is None else edge_text(entry.schedule.graph if entry.schedule else graph, edge)
    )
    return Offer(
        algorithm=entry.algorithm,
        phases=entry.phases,
        runner=entry.runner,
        seconds=found.seconds,
        bus_bytes_per_second=nbytes * float(bus_factor(collective, graph.size)) / found.seconds,
        of_bound=float(least.seconds_per_byte) / raw if raw else 1.0,
        pieces=found.pieces,
        protocol=found.protocol,
        bottleneck=f"{where} at {entry.cost.prior.value:.0%} ({entry.cost.prior.source})",
        entry=entry,
    )


def edge_text(graph: Graph, edge: int) -> str:
    """An edge in words."""
    found = graph.edges[edge]
    rate = "" if found.bytes_per_second is None else f", {format_rate(found.bytes_per_second)}"
    return f"{node_text(graph, found.tail)} -> {node_text(graph, found.head)} ({found.link.value}{rate})"


def node_text(graph: Graph, node: int) -> str:
    """A node by what people call it: a device by its host and its place there."""
    found = graph.nodes[node]
    if found.kind is not NodeKind.device:
        return found.id
    place = sum(other == found.host for other in graph.hosts[:node]) if found.place is None else found.place
    return f"{found.host}/{'GPU' if found.compute_capability or found.name is None else 'device'} {place}"
