"""The least time a collective needs on a graph, and the cut that sets it.

Counted are bytes that go through wires, copy by copy: a switch that sums or copies by itself (NVLS, SHARP) may be
faster. The bounds hold for any routes and any order of sends; that some schedule reaches them is not said here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topology.collectives import Collective, bus_factor, check_size
from topology.graph import UNIT_BYTES_PER_SECOND, Graph
from topology.routing.bound_programs import Exchange, Way, exchange, priced, tree_rate
from topology.routing.cuts import Arcs, Bound, Cut, arcs_of, cut_of, severed
from topology.routing.nets import Net, narrowest, net_of
from topology.routing.refine import Symmetry, View, symmetry_of, without_symmetry

_FEW_DEVICES: Final = 16  # up to which every node is looked at; symmetry makes more of them small
_SAME: Final = 1e-6  # relative difference that a solver leaves between equal rates
_ROUNDED: Final = 10**6


def bound(graph: Graph, collective: Collective, *, relay: bool = True) -> Bound:
    """Find the least time of a collective, per byte of its size M.

    Where a cut sets the time it is exact; otherwise it is that of a linear program, to six digits or better. Cuts set
    all-gather and reduce-scatter on graphs with equal capacities into and out of every switch, and all-reduce where
    its devices are alike, too.

    Args:
        graph: of two devices or more.
        collective: which one.
        relay: for an all-to-all, whether a device may pass on what is not for it.

    Raises:
        TopologyError: fewer than two devices, or some that others cannot reach.
    """
    check_size(graph.size)
    arcs = arcs_of(graph)
    if collective is Collective.all_to_all:
        return _all_to_all(graph, arcs, relay=relay)
    symmetry = symmetry_of(graph, arcs)
    if collective is Collective.all_reduce:
        return _all_reduce(graph, arcs, symmetry)
    return _one_way(graph, arcs, symmetry, collective)


def _bound(graph: Graph, collective: Collective, seconds: Fraction, cut: Cut | None) -> Bound:
    rate = float(bus_factor(collective, graph.size) / seconds) if seconds else float("inf")
    return Bound(collective=collective, seconds_per_byte=seconds, bus_bytes_per_second=rate, cut=cut)


def _one_way(graph: Graph, arcs: Arcs, symmetry: Symmetry, collective: Collective) -> Bound:
    """All-gather, or reduce-scatter as the all-gather of the graph turned round."""
    is_reverse = collective is Collective.reduce_scatter
    if graph.size <= _FEW_DEVICES:
        nets = [net_of(graph, is_reverse=is_reverse)]
    else:
        nets = [view.reversed_net if is_reverse else view.net for view in symmetry.views]
    found = narrowest(nets)
    if found is None:
        return _bound(graph, collective, Fraction(0), None)
    if graph.size <= _FEW_DEVICES:
        inside = np.zeros(len(graph.nodes), dtype=np.bool_)
        inside[list(found.inside)] = True
    else:
        inside = symmetry.views[found.net].lifted(found.inside)
    if is_reverse:
        inside = ~inside  # of the graph as it is, the edges of the cut lead out of the other side
    if not found.units_per_device:
        raise severed(graph, inside)
    rate, cut = graph.size * found.units_per_device, cut_of(graph, arcs, inside)
    if not arcs.is_balanced(graph.size):
        programmed = _programmed(graph, arcs, symmetry)
        trees = tree_rate(programmed, (Way.into if is_reverse else Way.out_of,), equal_roots=True)
        if trees is not None and trees.units < float(rate) * (1 - _SAME):
            bus_units = trees.units * (1 - 1 / graph.size)
            shared = _shared_way(graph, arcs, programmed, bus_units, is_reverse=is_reverse)
            if shared is not None:
                rate, cut = shared[0] * graph.size / (graph.size - 1), shared[1]
            else:
                rate, cut = _rounded(trees.units), _priced_edges(arcs, programmed, trees.prices)
    return _bound(graph, collective, 1 / (rate * UNIT_BYTES_PER_SECOND), cut)


def _programmed(graph: Graph, arcs: Arcs, symmetry: Symmetry) -> Symmetry:
    """What programs are written for: few devices node by node, since the solver finds their symmetry by itself."""
    return without_symmetry(graph, arcs) if graph.size <= _FEW_DEVICES else symmetry


def _all_reduce(graph: Graph, arcs: Arcs, symmetry: Symmetry) -> Bound:
    """Reduce-scatter and all-gather; where devices differ, the program that lets the two overlap."""
    gather = _one_way(graph, arcs, symmetry, Collective.all_gather)
    scatter = gather
    if not arcs.is_symmetric:
        scatter = _one_way(graph, arcs, symmetry, Collective.reduce_scatter)
    worse = max(gather, scatter, key=lambda one: one.seconds_per_byte)
    if worse.cut is None or symmetry.are_devices_alike:
        # On average like devices send what they take, and switches too. So the trees of one way can be turned round,
        # and both together are an all-gather of twice the rate.
        return _bound(graph, Collective.all_reduce, 2 * worse.seconds_per_byte, worse.cut)
    both = gather.seconds_per_byte + scatter.seconds_per_byte
    trees = tree_rate(_programmed(graph, arcs, symmetry), (Way.into, Way.out_of), equal_roots=False)
    if trees is None:
        return _bound(graph, Collective.all_reduce, Fraction(0), None)
    least = 1 / (_rounded(trees.units) * UNIT_BYTES_PER_SECOND)
    seconds = both if abs(float(both / least) - 1) < _SAME else least
    return _bound(graph, Collective.all_reduce, seconds, worse.cut)


def _rounded(rate: float) -> Fraction:
    return Fraction(rate).limit_denominator(_ROUNDED)


def _all_to_all(graph: Graph, arcs: Arcs, *, relay: bool) -> Bound:
    collective = Collective.all_to_all
    symmetry = without_symmetry(graph, arcs) if graph.size <= _FEW_DEVICES else symmetry_of(graph, arcs)
    found = exchange(symmetry, relay=relay)
    if found is None:
        return _bound(graph, collective, Fraction(0), None)
    if found.units_per_pair <= _SAME:
        why = "only other devices join" if not relay else "nothing joins"
        raise severed(graph, np.ones(len(graph.nodes), dtype=np.bool_), why)
    rate, cut = _explained(graph, arcs, symmetry, found)
    return _bound(graph, collective, 1 / (graph.size * rate * UNIT_BYTES_PER_SECOND), cut)


def _explained(graph: Graph, arcs: Arcs, symmetry: Symmetry, found: Exchange) -> tuple[Fraction, Cut]:
    """The rate of a pair, exact where a cut sets it, and what sets it."""
    best: tuple[tuple[int, int, int], Fraction, View, frozenset[int]] | None = None
    for view in symmetry.views:
        for held in {side & _device_classes(view) for side in (frozenset({view.own}), *_sides(view, found))}:
            count = view.net.weight(held)
            inside = view.net.around(held) if 0 < count < graph.size else None
            if inside is None:
                continue
            units, edges = view.net.leaving(inside)
            rate = Fraction(units or 0, count * (graph.size - count))
            key = (min(count, graph.size - count), edges, count)
            if float(rate) <= found.units_per_pair * (1 + _SAME) and (best is None or key < best[0]):
                best = key, rate, view, inside
    if best is not None:
        return best[1], cut_of(graph, arcs, best[2].lifted(best[3]))
    bus_units = (graph.size - 1) * found.units_per_pair
    for is_reverse in (False, True):
        shared = _shared_way(graph, arcs, symmetry, bus_units, is_reverse=is_reverse)
        if shared is not None:
            return shared[0] / (graph.size - 1), shared[1]
    return _rounded(found.units_per_pair), _priced_edges(arcs, symmetry, found.prices)


def _priced_edges(arcs: Arcs, symmetry: Symmetry, prices: NDArray[np.float64]) -> Cut:
    """The edges that a larger capacity would help."""
    dear = np.isin(symmetry.edge_classes, priced(prices))
    total = float(arcs.units[dear].sum()) * UNIT_BYTES_PER_SECOND
    return Cut(inside=(), edges=tuple(np.nonzero(dear)[0].tolist()), bytes_per_second=total)


def _shared_way(
    graph: Graph, arcs: Arcs, symmetry: Symmetry, bus_units: float, *, is_reverse: bool
) -> tuple[Fraction, Cut] | None:
    """A few devices that together can get (reversed: send) no more than `bus_units` each, and through what.

    Returns:
        The exact units of each, and the edges; None without such devices.
    """
    best: tuple[int, Fraction, View, frozenset[int], frozenset[tuple[int, int]]] | None = None
    for view in symmetry.views:
        net = view.reversed_net if is_reverse else view.net
        for some in _near(graph, view, net):
            count, found = net.weight(some), net.entering(some)
            if found is None or not 0 < count < graph.size or (best is not None and count >= best[0]):
                continue
            if found[0] <= count * bus_units * (1 + _SAME):
                best = count, Fraction(found[0], count), view, some, found[1]
    if best is None:
        return None
    _, units, view, some, full = best
    ends = zip(view.classes[arcs.tail].tolist(), view.classes[arcs.head].tolist(), strict=True)
    edges = tuple(at for at, (tail, head) in enumerate(ends) if ((head, tail) if is_reverse else (tail, head)) in full)
    near = view.lifted(some)[: graph.size]
    total = float(arcs.units[list(edges)].sum()) * UNIT_BYTES_PER_SECOND
    inside = tuple(np.nonzero(near if is_reverse else ~near)[0].tolist())
    return units, Cut(inside=inside, edges=edges, bytes_per_second=total)


def _near(graph: Graph, view: View, net: Net) -> Iterator[frozenset[int]]:
    """Classes of devices: the one of the view, those that get everything from the same nodes, those of its host."""
    devices = _device_classes(view)
    feeders = {tail for tail, head, _, _ in net.arcs if head == view.own}
    fed = {head for tail, head, _, _ in net.arcs if tail in feeders and tail not in devices}
    hosts = np.array([host == graph.hosts[view.device] for host in graph.hosts])
    mates = frozenset(view.classes[: graph.size][hosts].tolist())
    yield from dict.fromkeys((frozenset({view.own}), devices & fed, mates))


def _device_classes(view: View) -> frozenset[int]:
    return frozenset(np.nonzero(view.devices)[0].tolist())


def _sides(view: View, found: Exchange) -> Iterator[frozenset[int]]:
    """Sets of classes that may be the narrowest cut: all that is nearer than something, by the prices of the edges."""
    lengths = found.prices[view.arcs[:, 2]].tolist()
    small = _SAME * max(lengths, default=0.0)
    for is_reverse in (False, True):
        ahead: list[list[tuple[int, float]]] = [[] for _ in view.members]
        for (tail, head), length in zip(view.arcs[:, :2].tolist(), lengths, strict=True):
            one, other = (head, tail) if is_reverse else (tail, head)
            ahead[one].append((other, length))
        distance = _distances(ahead, view.own)
        for far in _steps(sorted(set(distance)), small):
            near = frozenset(at for at, value in enumerate(distance) if value < far)
            yield frozenset(range(len(distance))) - near if is_reverse else near


def _steps(values: list[float], small: float) -> Iterator[float]:
    """Thresholds between values that differ by more than rounding."""
    for before, after in pairwise(values):
        if after - before > small:
            yield (before + after) / 2 if after != float("inf") else before + 1.0


def _distances(ahead: list[list[tuple[int, float]]], start: int) -> list[float]:
    distance = [float("inf")] * len(ahead)
    distance[start] = 0.0
    queue = [(0.0, start)]
    while queue:
        near, node = heapq.heappop(queue)
        for head, length in ahead[node] if near <= distance[node] else ():
            if near + length < distance[head]:
                distance[head] = near + length
                heapq.heappush(queue, (near + length, head))
    return distance
