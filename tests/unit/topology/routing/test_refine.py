from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.network import NetworkKind, NetworkSpec
from topology.presets import preset
from topology.routing.bound_programs import Way, exchange, tree_rate
from topology.routing.cuts import arcs_of
from topology.routing.nets import narrowest, net_of
from topology.routing.refine import refined, symmetry_of, without_symmetry

Wire = tuple[int, int, int | None]


def make_graph(size: int, hosts: list[str | None], wires: list[Wire]) -> Graph:
    """The first `size` nodes are devices; one host name for each node, None for the network."""
    return Graph(
        nodes=tuple(
            Node(id=f"n{at}", kind=NodeKind.device if at < size else NodeKind.pcie, host=host)
            for at, host in enumerate(hosts)
        ),
        edges=tuple(Edge(tail=a, head=b, units=units, link=LinkClass.pcie) for a, b, units in wires),
        size=size,
    )


def both(*wires: Wire) -> list[Wire]:
    return [*wires, *((b, a, units) for a, b, units in wires)]


@st.composite
def plain_graphs(draw: st.DrawFn) -> Graph:
    """Random digraphs, all nodes on one host, joined by a ring at least."""
    size, others = draw(st.integers(2, 5)), draw(st.integers(0, 2))
    nodes = draw(st.permutations(range(size + others)))
    units = st.integers(1, 3)
    wires: list[Wire] = [(a, b, draw(units)) for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)]
    ends = st.tuples(st.integers(0, size + others - 1), st.integers(0, size + others - 1)).filter(
        lambda e: e[0] != e[1]
    )
    wires += [(*e, u) for e, u in draw(st.lists(st.tuples(ends, st.none() | units), max_size=12))]
    return make_graph(size, ["host"] * (size + others), wires)


@st.composite
def clusters(draw: st.DrawFn) -> Graph:
    """Copies of one or two random hosts, joined by a switch; devices and switches are numbered in any order."""
    kinds = draw(st.lists(plain_graphs(), min_size=1, max_size=2))
    copies = [draw(st.sampled_from(kinds)) for _ in range(draw(st.integers(2, 3)))]
    ports = {id(kind): (draw(st.integers(0, len(kind.nodes) - 1)), draw(st.integers(1, 4))) for kind in kinds}
    names = [(host, at) for host, kind in enumerate(copies) for at in range(len(kind.nodes))]
    devices = draw(st.permutations([name for name in names if name[1] < copies[name[0]].size]))
    rest = draw(st.permutations([name for name in names if name[1] >= copies[name[0]].size]))
    number = {name: at for at, name in enumerate([*devices, *rest])}
    wires: list[Wire] = []
    for host, kind in enumerate(copies):
        wires += [(number[host, e.tail], number[host, e.head], e.units) for e in kind.edges]
        port, units = ports[id(kind)]
        wires += both((number[host, port], len(number), units))
    hosts = [*(f"host{host}" for host, _ in [*devices, *rest]), None]
    return make_graph(len(devices), hosts, wires)


def assert_equal_cuts(graph: Graph) -> None:
    arcs = arcs_of(graph)
    small = symmetry_of(graph, arcs)
    for turned, nets in ((arcs, [v.net for v in small.views]), (arcs.reversed, [v.reversed_net for v in small.views])):
        found, expected = narrowest(nets), narrowest([net_of(graph, is_reverse=turned is not arcs)])
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found.units_per_device == expected.units_per_device
            inside = small.views[found.net].lifted(found.inside)
            crossing = inside[turned.tail] & ~inside[turned.head]
            held = int(inside[: graph.size].sum())
            assert 0 < held < graph.size
            assert turned.units[crossing].sum() == expected.units_per_device * held


def assert_equal_rates(graph: Graph) -> None:
    arcs = arcs_of(graph)
    small, whole = symmetry_of(graph, arcs), without_symmetry(graph, arcs)
    pairs = []
    for ways, equal in (((Way.out_of,), True), ((Way.into,), True), ((Way.into, Way.out_of), False)):
        trees, known = (tree_rate(one, ways, equal_roots=equal) for one in (small, whole))
        pairs.append((trees and trees.units, known and known.units))
    for relay in (True, False):
        one, other = exchange(small, relay=relay), exchange(whole, relay=relay)
        pairs.append((one and one.units_per_pair, other and other.units_per_pair))
    for rate, expected in pairs:
        assert (rate is None) == (expected is None)
        if expected is not None:
            assert rate == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(plain_graphs() | clusters())
@settings(max_examples=40)
def test_cuts_are_the_same_with_and_without_classes(graph: Graph) -> None:
    assert_equal_cuts(graph)


@given(plain_graphs() | clusters())
@settings(max_examples=12)
def test_rates_are_the_same_with_and_without_classes(graph: Graph) -> None:
    assert_equal_rates(graph)


@given(clusters())
@settings(max_examples=20)
def test_nodes_of_a_class_have_the_same_edges_to_every_class(graph: Graph) -> None:
    arcs = arcs_of(graph)
    small = symmetry_of(graph, arcs)
    for classes in (small.classes, *(view.classes for view in small.views)):
        seen = {}
        for node in range(len(graph.nodes)):
            own, out, into = classes[node], arcs.tail == node, arcs.head == node
            edges = (
                sorted(zip(classes[arcs.head[out]].tolist(), arcs.units[out].tolist(), strict=True)),
                sorted(zip(classes[arcs.tail[into]].tolist(), arcs.units[into].tolist(), strict=True)),
                node < graph.size,
            )
            assert seen.setdefault(own, edges) == edges


def ring(*nodes: int) -> list[Wire]:
    return both(*((a, b, 10) for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)))


def test_one_ring_of_six_is_not_two_rings_of_three() -> None:
    """Every device has two neighbours and a port, in each host; colours alone see no difference."""
    wires = [*ring(0, 1, 2, 3, 4, 5), *ring(6, 7, 8), *ring(9, 10, 11)]
    wires += both(*((at, 12, 1) for at in range(12)))
    graph = make_graph(12, [*["a"] * 6, *["b"] * 6, None], wires)
    arcs = arcs_of(graph)
    assert len(np.unique(refined(arcs, np.array([1] * 12 + [2], dtype=np.uint64)))) == 2
    small = symmetry_of(graph, arcs)
    assert sorted(view.alike for view in small.views) == [6, 6]
    assert_equal_cuts(graph)
    assert_equal_rates(graph)


def test_a_ring_within_one_host_is_told_from_two() -> None:
    wires = [*ring(0, 1, 2, 3, 4, 5), *ring(6, 7, 8), *ring(9, 10, 11), *both(*((at, 12, 1) for at in range(12)))]
    graph = make_graph(12, ["a"] * 13, wires)
    assert len(symmetry_of(graph, arcs_of(graph)).views) == 2
    assert_equal_cuts(graph)
    assert_equal_rates(graph)


def test_directions_are_told_apart() -> None:
    """A ring of one direction: each device has one edge in and one out, but two classes have other capacities."""
    graph = make_graph(4, ["a"] * 4, [(0, 1, 5), (1, 2, 7), (2, 3, 5), (3, 0, 7)])
    assert [view.alike for view in symmetry_of(graph, arcs_of(graph)).views] == [2, 2]


@pytest.mark.parametrize("kind", list(NetworkKind))
def test_a_large_cluster_becomes_small(kind: NetworkKind) -> None:
    spec = NetworkSpec(kind=kind, hosts_per_leaf=None if kind is NetworkKind.flat else 8)
    graph = graph_of(preset("dgx_h100", nodes=24, network=spec))
    small = symmetry_of(graph, arcs_of(graph))
    assert small.are_devices_alike
    assert len(small.views[0].members) < 150
    assert small.views[0].devices.sum() == 192


def test_the_order_of_nodes_and_edges_does_not_matter() -> None:
    graph = graph_of(preset("dgx1_v100", nodes=3))
    rng = random.Random(5)
    devices, others = list(range(graph.size)), list(range(graph.size, len(graph.nodes)))
    for part in (devices, others):
        rng.shuffle(part)
    order = devices + others
    place = {old: new for new, old in enumerate(order)}
    edges = [Edge(tail=place[e.tail], head=place[e.head], units=e.units, link=e.link) for e in graph.edges]
    rng.shuffle(edges)
    mixed = Graph(nodes=tuple(graph.nodes[at] for at in order), edges=tuple(edges), size=graph.size)
    one, other = (symmetry_of(each, arcs_of(each)) for each in (graph, mixed))
    assert sorted(one.members.tolist()) == sorted(other.members.tolist())
    assert sorted(view.alike for view in one.views) == sorted(view.alike for view in other.views)
