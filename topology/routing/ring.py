"""Ring schedules: one ring in the best order, or several that share the data by what their links carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol

from topology.collectives import Collective, check_size
from topology.errors import TopologyError
from topology.graph import Graph
from topology.routing import few_rings
from topology.routing.islands import MOST_LANES, Hops, hosts_of
from topology.routing.orders import best_order
from topology.routing.shares import apportioned, passes_of
from topology.routing.trees import Hop, Tree, refusal, schedule_of_trees
from topology.schedule import Phase, Schedule

MOST_RINGS: Final = 32
_MOST_CHUNKS: Final = 1024  # rings times devices
MOST_DEVICES: Final = 64  # for several rings at once; one ring has no such limit

_PARTS: Final = 840  # a rank's part is cut in so many
MOST_SEARCHED: Final = 32  # up to so many devices rings are also searched by prices, beyond the obvious ones
_LEAST_SHARES: Final = (0.1, 0.05, 0.02, 0.005, 1e-9)  # smaller rings are left out, if _KEPT allows it
_KEPT: Final = 0.99  # of the rate, with the rings that are left
_GIVEN_AWAY: Final = 0.004  # of the rate, for fewer rings


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
    plain, orders = _plain(graph)
    solver = _solver(graph.size)
    paths = [candidate.paths for candidate in plain]
    found = [*plain, *(Ring(order=order, paths=own) for order, own in solver.search(graph, orders, paths))]
    columns = [passes_of(candidate.paths) for candidate in found]
    rate, _ = solver.pack(graph, columns)
    most = max(1, min(MOST_RINGS, _MOST_CHUNKS // graph.size))
    # Rings over the widest paths rather than found ones, and few rather than many, where that costs next to nothing.
    costs = [1.0 if at < len(plain) else 1.5 for at in range(len(found))]
    shares = solver.settle(graph, columns, rate * (1 - _GIVEN_AWAY), costs)
    ranked = sorted(range(len(found)), key=lambda at: -shares[at])
    kept, weights = ranked[:most], shares
    for least in _LEAST_SHARES:
        kept = [at for at in ranked[:most] if shares[at] >= least] or ranked[:1]
        reached, weights = solver.pack(graph, [columns[at] for at in kept])
        if reached >= _KEPT * rate:
            break
    parts = apportioned([float(weight) for weight in weights], _PARTS)
    return tuple(
        Ring(order=found[at].order, paths=found[at].paths, share=Fraction(part, _PARTS))
        for at, part in zip(kept, parts, strict=True)
        if part
    )


class _Solver(Protocol):
    """What rings are searched and weighed with; columns count how often a ring passes each edge."""

    def search(
        self, graph: Graph, orders: Sequence[tuple[int, ...]], known: Sequence[tuple[tuple[int, ...], ...]]
    ) -> Sequence[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]: ...

    def pack(self, graph: Graph, columns: Sequence[Counter[int]]) -> tuple[float, Sequence[float]]: ...

    def settle(
        self, graph: Graph, columns: Sequence[Counter[int]], rate: float, costs: Sequence[float]
    ) -> Sequence[float]: ...


def _solver(size: int) -> _Solver:
    if size <= few_rings.MOST_DEVICES:
        return few_rings
    # Loads scipy, which takes longer than a plan for a few devices.
    from topology.routing import many_rings

    return many_rings


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


def _plain(graph: Graph) -> tuple[list[Ring], list[tuple[int, ...]]]:
    """Rings worth weighing before any search, and their orders: the best one both ways, and rotated in the hosts."""
    hops = Hops(graph)
    order = best_order(graph, hops)
    found: dict[tuple[tuple[int, ...], ...], Ring] = {}

    def keep(candidate: Ring) -> None:
        found.setdefault(candidate.paths, candidate)

    keep(_widest(hops, order))
    keep(_widest(hops, (order[0], *reversed(order[1:]))))
    shifted = _shifted(graph, order)
    for one in shifted:
        keep(_widest(hops, one))
        for lane in range(1, MOST_LANES if graph.size <= MOST_SEARCHED else 1):
            keep(_by_lane(hops, one, lane))
    return list(found.values()), [order, *shifted]


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
