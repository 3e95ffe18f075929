"""Ring schedules: one ring in the best order, or several that share the data by what their links carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from topology.collectives import Collective, check_size
from topology.errors import TopologyError
from topology.graph import Graph
from topology.routing.columns import Column, Shortest, capacities, pack, passes_of, settle
from topology.routing.forest import apportioned
from topology.routing.islands import MOST_LANES, Hops, hosts_of
from topology.routing.orders import best_order
from topology.routing.tours import Tours
from topology.routing.trees import Hop, Tree, refusal, schedule_of_trees
from topology.schedule import Phase, Schedule

MOST_RINGS: Final = 32
_MOST_CHUNKS: Final = 1024  # rings times devices
MOST_DEVICES: Final = 64  # for several rings at once; one ring has no such limit

_PARTS: Final = 840  # a rank's part is cut in so many
_MOST_SEARCHED: Final = 32  # up to so many devices rings are also searched by prices, beyond the obvious ones
_MOST_TURNS: Final = 72
_FIRST_TURNS: Final = 16  # before the linear program prices
_LEAST_GAIN: Final = 0.002  # over as many turns; less ends the search
_LEAST_SHARES: Final = (0.1, 0.05, 0.02, 0.005, 1e-9)  # smaller rings are left out, if _KEPT allows it
_KEPT: Final = 0.99  # of the rate, with the rings that are left
_GIVEN_AWAY: Final = 0.004  # of the rate, for fewer rings
_SHARPNESS: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Ranks in order, the path from each to the next, and the share of the data that runs on it."""

    order: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]
    share: Fraction = Fraction(1)


def ring(graph: Graph, collective: Collective, order: Sequence[int] | None = None) -> Schedule:
    """One ring, in the given order or the best one.

    Raises:
        TopologyError: an order that does not name every rank once, or an all-to-all.
    """
    check_size(graph.size)
    if collective is Collective.all_to_all:
        raise refusal("ring", collective)
    hops = Hops(graph)
    chosen = best_order(graph, hops) if order is None else tuple(order)
    if sorted(chosen) != list(range(graph.size)):
        raise TopologyError(
            asked=f"a ring over {graph.size} devices",
            found=f"the order {', '.join(map(str, chosen[:16]))}",
            remedy=f"name each of the ranks 0 to {graph.size - 1} once",
        )
    return _schedule("ring", graph, collective, [_widest(hops, chosen)])


def multi_ring(graph: Graph, collective: Collective, rings: Sequence[Ring] = ()) -> Schedule:
    """Several rings at once, each with its share of the data; without `rings` those of `best_rings`.

    Raises:
        TopologyError: an all-to-all, too many devices to search rings for, or shares that do not sum to 1.
    """
    check_size(graph.size)
    if collective is Collective.all_to_all:
        raise refusal("multi_ring", collective)
    return _schedule("multi_ring", graph, collective, list(rings) or list(best_rings(graph)))


def best_rings(graph: Graph) -> tuple[Ring, ...]:
    """Rings, with shares, that together carry most: cube meshes have several without a common link, hosts one a NIC.

    Raises:
        TopologyError: more than MOST_DEVICES devices.
    """
    if graph.size > MOST_DEVICES:
        raise TopologyError(
            asked=f"several rings over {graph.size} devices",
            found=f"rings are searched for up to {MOST_DEVICES} devices",
            remedy="use one ring or a hierarchy, or search the rings of a smaller cluster of the same hosts",
        )
    found, num_plain = _candidates(graph)
    columns = [(0, passes_of(candidate.paths)) for candidate in found]
    rate = pack(graph, columns, (0,)).rate
    most = max(1, min(MOST_RINGS, _MOST_CHUNKS // graph.size))
    # Rings over the widest paths rather than found ones, and few rather than many, where that costs next to nothing.
    costs = np.where(np.arange(len(found)) < num_plain, 1.0, 1.5)
    shares = settle(columns, (0,), capacities(graph) / (rate * (1 - _GIVEN_AWAY)), costs)
    ranked = sorted(range(len(found)), key=lambda at: -shares[at])
    kept, weights = ranked[:most], shares
    for least in _LEAST_SHARES:
        kept = [at for at in ranked[:most] if shares[at] >= least] or ranked[:1]
        packed = pack(graph, [columns[at] for at in kept], (0,))
        weights = packed.weights
        if packed.rate >= _KEPT * rate:
            break
    parts = apportioned([float(weight) for weight in weights], _PARTS)
    return tuple(
        Ring(order=found[at].order, paths=found[at].paths, share=Fraction(part, _PARTS))
        for at, part in zip(kept, parts, strict=True)
        if part
    )


def _widest(hops: Hops, order: tuple[int, ...]) -> Ring:
    paths = tuple(hops.path(rank, order[(at + 1) % len(order)]) for at, rank in enumerate(order))
    return Ring(order=order, paths=paths)


def _by_lane(hops: Hops, order: tuple[int, ...], lane: int) -> Ring:
    """The same ring over other NICs of its devices, where they have several."""
    lanes = [hops.lanes(rank, order[(at + 1) % len(order)]) for at, rank in enumerate(order)]
    return Ring(order=order, paths=tuple(paths[lane % len(paths)] for paths in lanes))


def _schedule(algorithm: str, graph: Graph, collective: Collective, rings: Sequence[Ring]) -> Schedule:
    last = graph.size - 2
    words = {
        "into": (Phase(name="pass partial sums round the ring to the rank they belong to", first=0, last=last),),
        "out": (Phase(name="pass every rank's part round the ring", first=0, last=last),),
    }
    return schedule_of_trees(
        algorithm,
        graph,
        collective,
        out=[tree for found in rings for tree in _chains(found, begin=0)],
        into=[tree for found in rings for tree in _chains(found, begin=1)],
        words=words,
    )


def _chains(found: Ring, *, begin: int) -> list[Tree]:
    """The chain from each rank all round to the one before it; with `begin` 1 from the one after it to itself."""
    size = len(found.order)
    share = found.share / size
    trees = []
    for at, root in enumerate(found.order):
        places = [(at + begin + step) % size for step in range(size - 1)]
        hops = tuple(
            Hop(step=step, source=found.order[place], target=found.order[(place + 1) % size], path=found.paths[place])
            for step, place in enumerate(places)
        )
        trees.append(Tree(root=root, share=share, hops=hops))
    return trees


def _candidates(graph: Graph) -> tuple[list[Ring], int]:
    """Rings worth weighing: the best order both ways, orders rotated in the hosts, and the cheapest under prices.

    Those over the widest paths come first; how many they are is told as well.
    """
    hops = Hops(graph)
    order = best_order(graph, hops)
    found: dict[tuple[tuple[int, ...], ...], Ring] = {}

    def keep(candidate: Ring) -> Ring:
        return found.setdefault(candidate.paths, candidate)

    keep(_widest(hops, order))
    keep(_widest(hops, (order[0], *reversed(order[1:]))))
    shifted = _shifted(graph, order)
    for one in shifted:
        keep(_widest(hops, one))
        for lane in range(1, MOST_LANES if graph.size <= _MOST_SEARCHED else 1):
            keep(_by_lane(hops, one, lane))
    num_plain = len(found)
    if graph.size <= _MOST_SEARCHED:
        _search_by_prices(graph, [order, *shifted], keep)
    return list(found.values()), num_plain


def _shifted(graph: Graph, order: Sequence[int]) -> list[tuple[int, ...]]:
    """Orders that enter and leave each host at other devices: every second host is walked backwards.

    Neighbours over the network then stand at the same place of their hosts, which is one rail.
    """
    hosts = [tuple(rank for rank in order if rank in set(host)) for host in hosts_of(graph)]
    if len(hosts) < 2:  # noqa: PLR2004 - one host has no neighbour
        return []
    turns = max(map(len, hosts))
    return [
        tuple(
            rank
            for number, host in enumerate(hosts)
            for at in [turn % len(host)]
            for rank in ((*host[at:], *host[:at]) if number % 2 == 0 else reversed((*host[at:], *host[:at])))
        )
        for turn in range(turns)
    ]


def _search_by_prices(graph: Graph, orders: Sequence[tuple[int, ...]], keep: Callable[[Ring], Ring]) -> None:
    """Add rings that are cheap by prices of the edges: first by the loads of those before, then by the duals."""
    limits = capacities(graph)
    seconds = np.where(np.isfinite(limits), 1.0 / np.where(np.isfinite(limits), limits, 1.0), 0.0)
    loads = np.zeros(len(graph.edges))
    shortest, tours = Shortest(graph), Tours(graph.size, orders)
    columns: list[Column] = []
    best = 0.0
    for turn in range(_MOST_TURNS if graph.size <= _MOST_SEARCHED // 2 else _MOST_TURNS // 2):
        if turn < _FIRST_TURNS or turn % 2:
            lengths = seconds * np.exp(_SHARPNESS * (loads / max(float(loads.max()), 1e-30) - 1))
        else:
            packed = pack(graph, columns, (0,))
            if turn > 2 * _FIRST_TURNS and packed.rate < best * (1 + _LEAST_GAIN):
                return
            lengths, best = packed.lengths, packed.rate if turn % _FIRST_TURNS == 0 else best
        routes = shortest.search(lengths)
        order = tours.cheapest(routes.costs)
        paths = tuple(routes.path(rank, order[(at + 1) % len(order)]) for at, rank in enumerate(order))
        keep(Ring(order=order, paths=paths))
        passes = passes_of(paths)
        columns.append((0, passes))
        for edge, count in passes.items():
            loads[edge] += count * seconds[edge]
