"""Packed trees come near the bottleneck cut, which is found here by trying every cut."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset
from topology.routing.arborescence import cheapest_tree
from topology.routing.bound import bound
from topology.routing.packing import packing, paired
from topology.routing.shares import apportioned
from topology.routing.trees import Hop, Tree, turned, twins

THREE = (Collective.all_gather, Collective.reduce_scatter, Collective.all_reduce)


def graph_from(size: int, count: int, links: list[tuple[int, int, int]]) -> Graph:
    nodes = [Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(size)]
    nodes += [Node(id=f"s{at}", kind=NodeKind.pcie) for at in range(size, count)]
    edges = [Edge(tail=a, head=b, units=units, link=LinkClass.pcie) for a, b, units in links]
    return Graph(nodes=tuple(nodes), edges=tuple(edges), size=size)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Devices and switches, joined and with further links, of one capacity in both directions."""
    size = draw(st.integers(2, 5))
    count = size + draw(st.integers(0, 3))
    pairs = {(draw(st.integers(0, at - 1)), at) for at in range(1, count)}
    more = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).map(sorted).map(tuple)
    pairs |= {(a, b) for a, b in draw(st.lists(more, max_size=5)) if a != b}
    units = st.sampled_from([100, 200, 300, 500, 1000])
    links = []
    for a, b in sorted(pairs):
        one = draw(units)
        links += [(a, b, one), (b, a, one)]
    return graph_from(size, count, links)


def cut_rate(graph: Graph) -> Fraction:
    """MB/s of every rank's broadcast that no cut forbids: all sets of nodes are tried."""
    rates = []
    for inside in product((False, True), repeat=len(graph.nodes)):
        held = sum(inside[: graph.size])
        if 0 < held < graph.size:
            leaving = sum(e.units or 0 for e in graph.edges if inside[e.tail] and not inside[e.head])
            rates.append(Fraction(leaving, held))
    return min(rates)


@given(graph=graphs())
@settings(max_examples=10)
def test_trees_come_near_the_narrowest_cut(graph: Graph) -> None:
    rate = cut_rate(graph)
    for collective in (Collective.all_gather, Collective.reduce_scatter):
        seconds = packing(graph, collective).overlapped_seconds_per_byte
        reached = 1 / (graph.size * float(rate) * 1e6) / seconds
        assert 0.97 <= reached <= 1 + 1e-9


@given(graph=graphs())
@settings(max_examples=6)
def test_an_all_reduce_is_never_slower_than_both_halves(graph: Graph) -> None:
    seconds = packing(graph, Collective.all_reduce).overlapped_seconds_per_byte
    halves = 2 / (graph.size * float(cut_rate(graph)) * 1e6)
    least = float(bound(graph, Collective.all_reduce).seconds_per_byte)
    assert least * (1 - 1e-6) <= seconds <= halves / 0.97
    assert least / seconds >= 0.97


def test_unequal_parts_spare_a_slow_device() -> None:
    # Three devices at 1000 MB/s round a switch and one at 100: it sends M and receives M, not 2 * 3/4 M each way.
    links = [(a, 4, units) for a, units in enumerate((1000, 1000, 1000, 100))]
    graph = graph_from(4, 5, [*links, *((b, a, units) for a, b, units in links)])
    assert packing(graph, Collective.all_reduce).overlapped_seconds_per_byte == pytest.approx(1 / 100e6, rel=0.01)
    gather = packing(graph, Collective.all_gather).overlapped_seconds_per_byte
    assert gather == pytest.approx(0.75 / 100e6, rel=0.01)


@pytest.mark.parametrize("collective", THREE)
@pytest.mark.parametrize(
    ("name", "nodes"),
    [("dgx1_v100", 1), ("a100_pcie_pairs_x8", 1), ("pcie_4090x8", 1), ("pcie_a40_x4", 2), ("2xa100-40gb+2xt4", 2)],
)
def test_machines_without_a_good_ring_are_served(name: str, nodes: int, collective: Collective) -> None:
    graph = graph_of(preset(name, nodes=nodes))
    made = packing(graph, collective)
    assert float(bound(graph, collective).seconds_per_byte) / made.overlapped_seconds_per_byte > 0.98
    assert len(made.chunks) <= 8 * graph.size


def test_directions_of_unequal_capacity() -> None:
    # A ring that is wide one way round and narrow the other.
    links = [(at, (at + 1) % 4, 900) for at in range(4)] + [((at + 1) % 4, at, 100) for at in range(4)]
    graph = graph_from(4, 4, links)
    assert twins(graph) is None
    for collective in THREE:
        made = packing(graph, collective)
        assert float(bound(graph, collective).seconds_per_byte) / made.overlapped_seconds_per_byte > 0.98


def test_too_large_a_group_and_an_all_to_all_are_refused() -> None:
    with pytest.raises(TopologyError, match="up to 72 devices"):
        packing(graph_of(preset("dgx_h100", nodes=10)), Collective.all_gather)
    with pytest.raises(TopologyError, match="does not carry out all_to_all"):
        packing(graph_of(preset("gh200", nodes=2)), Collective.all_to_all)


def test_links_without_a_limit_cost_nothing() -> None:
    nodes = tuple(Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(3))
    ends = ((0, 1, None), (1, 0, None), (1, 2, 100), (2, 1, 100))
    edges = tuple(Edge(tail=a, head=b, units=units, link=LinkClass.inside) for a, b, units in ends)
    half = packing(Graph(nodes=nodes, edges=edges, size=3), Collective.all_gather)
    assert half.overlapped_seconds_per_byte == pytest.approx(2 / 3 / 100e6, rel=0.01)
    free = packing(Graph(nodes=nodes[:2], edges=edges[:2], size=2), Collective.all_reduce)
    assert free.overlapped_seconds_per_byte == 0


def test_parallel_links_are_both_used() -> None:
    graph = graph_from(2, 2, [(0, 1, 100), (0, 1, 50), (1, 0, 100), (1, 0, 50)])
    made = packing(graph, Collective.all_gather)
    assert made.overlapped_seconds_per_byte == pytest.approx(0.5 / 150e6, rel=0.01)
    assert set(made.edge_seconds_per_unit) == {0, 1, 2, 3}


def plain_cheapest(costs: np.ndarray, root: int) -> float:
    """The cheapest tree by trying all parents."""
    size, best = len(costs), float("inf")
    others = [node for node in range(size) if node != root]
    for parents in product(range(size), repeat=size - 1):
        above = dict(zip(others, parents, strict=True))
        if all(leads_to(root, node, above) for node in others):
            best = min(best, sum(costs[above[node], node] for node in others))
    return best


def leads_to(root: int, node: int, above: dict[int, int]) -> bool:
    for _ in range(len(above) + 1):
        if node == root:
            return True
        node = above[node]
    return False


@given(size=st.integers(2, 5), data=st.data())
@settings(max_examples=25)
def test_the_cheapest_tree_is_that_of_all_trees(size: int, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.integers(0, 6), min_size=size * size, max_size=size * size))
    costs = np.array(drawn, dtype=float).reshape(size, size)
    root = data.draw(st.integers(0, size - 1))
    parent = cheapest_tree(costs, root)
    above = {node: parent[node] for node in range(size) if node != root}
    assert all(leads_to(root, node, above) for node in above)
    assert sum(costs[up, node] for node, up in above.items()) == pytest.approx(plain_cheapest(costs, root))


@given(weights=st.lists(st.floats(0, 5), min_size=1, max_size=9), parts=st.integers(1, 500))
def test_apportioned_parts_are_whole_and_close(weights: list[float], parts: int) -> None:
    found = apportioned(weights, parts)
    assert sum(found) == parts
    total = sum(weights)
    if total > 1e-6:
        assert all(abs(part - weight / total * parts) < 1 + 1e-6 for part, weight in zip(found, weights, strict=True))


def test_pairs_of_trees_keep_the_shares_of_roots() -> None:
    def tree(root: int, share: str) -> Tree:
        return Tree(root=root, share=Fraction(share), hops=())

    into = (tree(0, "1/3"), tree(0, "1/6"), tree(1, "1/2"))
    out = (tree(0, "1/4"), tree(0, "1/4"), tree(1, "1/8"), tree(1, "3/8"))
    first, second = paired(into, out)
    assert [(t.root, t.share) for t in first] == [(t.root, t.share) for t in second]
    for root in (0, 1):
        assert sum(t.share for t in first if t.root == root) == Fraction(1, 2)
    assert len(first) == 5


def test_a_turned_tree_runs_back_over_the_twins() -> None:
    graph = graph_from(3, 4, [(0, 3, 5), (3, 0, 5), (1, 3, 7), (3, 1, 7), (2, 3, 9), (3, 2, 9)])
    twin = twins(graph)
    assert twin == (1, 0, 3, 2, 5, 4)
    hops = (Hop(step=0, source=0, target=1, path=(0, 3)), Hop(step=1, source=1, target=2, path=(2, 5)))
    back = turned(Tree(root=0, share=Fraction(1), hops=hops), twin)
    assert [(h.step, h.source, h.target, h.path) for h in back.hops] == [(0, 2, 1, (4, 3)), (1, 1, 0, (2, 1))]
