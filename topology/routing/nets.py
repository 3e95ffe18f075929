"""The narrowest cut of a net: what limits all-gather and reduce-scatter, in exact rationals and without arrays.

An all-gather of M bytes over N devices needs (M / N) max |S with devices| / B+(S) seconds, over all sets S of nodes
that lack some device: that device needs every share held in S, and only B+(S) leaves S (Zhao et al., "ForestColl",
arXiv 2402.06787). Let x be the bytes per second that every device could send to all others at once; x is possible if
a source that feeds x into every device can send N x to each of them. Dinkelbach's method (1967) starts above and
takes the ratio of a violated cut as the next x, until none is violated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from topology.graph import Graph
from topology.routing.max_flow import Residual, max_flow, reachable, reversed_residual

_FEW = 64  # devices for which the smallest cut of the least width is looked for


@dataclass(frozen=True, kw_only=True)
class Net:
    """Nodes with a number of devices each, and arcs between them. A node may stand for many alike.

    Attributes:
        weights: devices of each node.
        arcs: (tail, head, units, number of edges); units are the sum over the edges, None limits nothing.
        sinks: the nodes that need everything: each is one device.
    """

    weights: tuple[int, ...]
    arcs: tuple[tuple[int, int, int | None, int], ...]
    sinks: tuple[int, ...]

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return sum(self.weights)

    def weight(self, inside: frozenset[int]) -> int:
        """Devices in a set of nodes."""
        return sum(self.weights[node] for node in inside)

    def leaving(self, inside: frozenset[int]) -> tuple[int | None, int]:
        """Units and number of the edges that leave a set of nodes; None where one has no limit."""
        crossing = [arc for arc in self.arcs if arc[0] in inside and arc[1] not in inside]
        limits = [units for _, _, units, _ in crossing if units is not None]
        return sum(limits) if len(limits) == len(crossing) else None, sum(arc[3] for arc in crossing)

    def flow(self, rate: Fraction, sink: int) -> tuple[bool, Residual]:
        """Whether every device can send `rate` to the sink at once, and the capacities left; the source comes last."""
        feed, scale, source = rate.numerator, rate.denominator, len(self.weights)
        most = feed * self.size
        arcs = [(tail, head, most if units is None else units * scale) for tail, head, units, _ in self.arcs]
        arcs += [(source, node, feed * weight) for node, weight in enumerate(self.weights) if weight]
        sent, residual = max_flow(source + 1, arcs, source, sink, most=most)
        return sent == most, residual

    def around(self, held: frozenset[int]) -> frozenset[int] | None:
        """The nodes of the narrowest cut between some device nodes and all others; None where it has no limit."""
        most = 1 + sum(units or 0 for _, _, units, _ in self.arcs)
        source, sink = len(self.weights), len(self.weights) + 1
        arcs = [(tail, head, most if units is None else units) for tail, head, units, _ in self.arcs]
        devices = [node for node, weight in enumerate(self.weights) if weight]
        arcs += [(source, node, most) if node in held else (node, sink, most) for node in devices]
        sent, residual = max_flow(sink + 1, arcs, source, sink, most=most)
        return None if sent == most else reachable(residual, source) - {source}

    def entering(self, targets: frozenset[int]) -> tuple[int, frozenset[tuple[int, int]]] | None:
        """What some device nodes can get from all devices, each other included, when no switch copies.

        Returns:
            The units, and the arcs (tail, head) that limit them; None where nothing does.
        """
        most = 1 + sum(units or 0 for _, _, units, _ in self.arcs)
        devices = [node for node, weight in enumerate(self.weights) if weight]
        count = len(self.weights)
        taking = {node: count + at for at, node in enumerate(devices)}  # what a device takes ends there
        source, sink = count + len(devices), count + len(devices) + 1
        arcs = [(tail, taking.get(head, head), most if u is None else u) for tail, head, u, _ in self.arcs]
        arcs += [(source, node, most) for node in devices] + [(taking[node], sink, most) for node in targets]
        sent, residual = max_flow(sink + 1, arcs, source, sink, most=most)
        if sent == most:
            return None
        near = reachable(reversed_residual(residual), sink)
        full = ((tail, head) for tail, head, _, _ in self.arcs if tail not in near and taking.get(head, head) in near)
        return sent, frozenset(full)


def net_of(graph: Graph, *, is_reverse: bool = False) -> Net:
    """Every node of the graph for itself, and all devices as sinks; reversed: with all edges turned round."""
    return Net(
        weights=tuple(int(at < graph.size) for at in range(len(graph.nodes))),
        arcs=tuple(
            (edge.head, edge.tail, edge.units, 1) if is_reverse else (edge.tail, edge.head, edge.units, 1)
            for edge in graph.edges
        ),
        sinks=tuple(range(graph.size)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowest:
    """The narrowest cut of several nets: `units_per_device` leave the set `inside` of nodes of the net at `net`."""

    units_per_device: Fraction
    net: int
    inside: frozenset[int]


def narrowest(nets: Sequence[Net]) -> Narrowest | None:
    """Find the least units that leave a set of nodes, for each device in it, over all sets that lack a sink.

    Of several such sets the one with the fewest devices inside or outside is taken, then with the fewest edges.

    Returns:
        None where an unlimited edge leaves every such set.
    """
    total = sum(units or 0 for net in nets for _, _, units, _ in net.arcs)
    rate = Fraction(total + 1)
    left: list[tuple[Fraction, int, int, Residual]] = []
    for at, net in enumerate(nets):
        for sink in net.sinks:
            rate = min([rate, *_alone(net, sink)])
            while rate > 0:
                held, residual = net.flow(rate, sink)
                if held:
                    left.append((rate, at, sink, residual))
                    break
                rate = _ratio(net, reachable(residual, len(net.weights)) - {len(net.weights)})
    if rate == 0 or rate > total:
        return _severed(nets) if rate == 0 else None
    # Of a sink that was looked at before the rate fell to its least nothing is known: its cuts may be wider.
    known = ((at, sink, residual if at_rate == rate else None) for at_rate, at, sink, residual in left)
    _, chosen, inside = min(_tight(nets, rate, known), key=lambda item: item[0])
    return Narrowest(units_per_device=rate, net=chosen, inside=inside)


def _alone(net: Net, sink: int) -> Iterator[Fraction]:
    """The cut around a sink, where it has a limit."""
    into = [units for _, head, units, _ in net.arcs if head == sink]
    if net.size > 1 and None not in into:
        yield Fraction(sum(units or 0 for units in into), net.size - 1)


def _ratio(net: Net, inside: frozenset[int]) -> Fraction:
    units, _ = net.leaving(inside)
    if units is None:
        raise AssertionError("a violated cut has a limit")
    return Fraction(units, net.weight(inside))


def _severed(nets: Sequence[Net]) -> Narrowest:
    """The first set that nothing leaves: what a sink cannot be reached from."""
    for at, net in enumerate(nets):
        forward: list[list[int]] = [[] for _ in net.weights]
        for tail, head, _, _ in net.arcs:
            forward[tail].append(head)
        back = reversed_residual(tuple(map(tuple, forward)))
        for sink in net.sinks:
            inside = frozenset(range(len(net.weights))) - reachable(back, sink)
            if net.weight(inside):
                return Narrowest(units_per_device=Fraction(0), net=at, inside=inside)
    raise AssertionError("a rate of 0 means that some device cannot be reached")


def _tight(
    nets: Sequence[Net], rate: Fraction, known: Iterable[tuple[int, int, Residual | None]]
) -> Iterator[tuple[tuple[int, int, int], int, frozenset[int]]]:
    """Yield cuts of exactly that rate, each with how hard it is to explain.

    At this rate a set is narrowest if no residual arc leaves it. What cannot reach the sink is the largest such set,
    what a device reaches the smallest one with that device in it.
    """
    looked = set()
    for at, sink, residual in known:
        net = nets[at]
        spare = net.flow(rate, sink)[1] if residual is None else residual
        everything = frozenset(range(len(net.weights)))
        inside = everything - reachable(reversed_residual(spare), sink)
        if not net.weight(inside):
            continue
        found = [inside]
        if at not in looked:
            starts = [node for node in sorted(inside) if net.weights[node]][:_FEW]
            found += [reachable(spare, node) & everything for node in starts]
        looked.add(at)
        for one in found:
            held = net.weight(one)
            yield (min(held, net.size - held), net.leaving(one)[1], held), at, one
