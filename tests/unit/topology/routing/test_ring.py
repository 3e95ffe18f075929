"""Ring orders agree with trying them all; several rings use the links that one leaves idle."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset
from topology.routing.bound import bound
from topology.routing.orders import best_order, order_cost
from topology.routing.ring import Ring, best_rings, multi_ring, ring
from topology.routing.tours import Tours


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> Graph:
    """Devices and up to three switches, joined by links of some capacities; two directions may differ."""
    size = draw(st.integers(3, most))
    extra = draw(st.integers(0, 3))
    count = size + extra
    nodes = [Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(size)]
    nodes += [Node(id=f"s{at}", kind=NodeKind.pcie) for at in range(extra)]
    units = st.sampled_from([1, 2, 3, 5, 10, 30, None])
    pairs = {(at, draw(st.integers(0, at - 1))) for at in range(1, count)}
    pairs |= set(draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=6)))
    edges = []
    for a, b in sorted(pairs):
        if a != b:
            up, down = draw(units), draw(units)
            edges += [Edge(tail=a, head=b, units=up, link=LinkClass.pcie)]
            edges += [Edge(tail=b, head=a, units=down, link=LinkClass.pcie)]
    return Graph(nodes=tuple(nodes), edges=tuple(edges), size=size)


@given(graph=graphs())
@settings(max_examples=25)
def test_the_best_order_is_as_good_as_any(graph: Graph) -> None:
    least = min(order_cost(graph, (0, *rest)) for rest in permutations(range(1, graph.size)))
    assert order_cost(graph, best_order(graph)) == least


@given(graph=graphs(5), collective=st.sampled_from([Collective.all_gather, Collective.reduce_scatter]))
@settings(max_examples=25)
def test_a_ring_takes_what_its_order_costs(graph: Graph, collective: Collective) -> None:
    made = ring(graph, collective)
    per_byte = order_cost(graph, best_order(graph)) * Fraction(graph.size - 1, graph.size)
    assert made.overlapped_seconds_per_byte == pytest.approx(float(per_byte) / 1e6)
    both = ring(graph, Collective.all_reduce)
    assert both.overlapped_seconds_per_byte == pytest.approx(2 * float(per_byte) / 1e6)
    assert both.num_steps == 2 * (graph.size - 1)


def test_eight_devices_of_a_cube_mesh_agree_with_all_orders() -> None:
    graph = graph_of(preset("dgx1_v100"))
    shuffled = graph_of(preset("dgx1_v100"), [graph.device_ids[at] for at in (3, 5, 0, 6, 1, 7, 4, 2)])
    found = order_cost(shuffled, best_order(shuffled))
    assert found == Fraction(1, 50_000)  # two NVLinks on every hop, which the rank order does not have
    assert order_cost(graph, range(8)) > found
    assert found == order_cost(graph, best_order(graph))


@pytest.mark.parametrize("name", ["pcie_l40s_x8", "a100_pcie_pairs_x8"])
def test_many_devices_in_any_order_are_sorted_by_neighbourhood(name: str) -> None:
    plain = graph_of(preset(name, nodes=2))
    mixed = graph_of(preset(name, nodes=2), [plain.device_ids[at * 5 % 16] for at in range(16)])
    assert order_cost(mixed, best_order(mixed)) == order_cost(plain, best_order(plain))
    assert order_cost(mixed, range(16)) > order_cost(mixed, best_order(mixed))


@given(data=st.data(), size=st.integers(9, 12))
@settings(max_examples=10)
def test_more_devices_than_can_all_be_tried_never_do_worse_than_the_rank_order(data: st.DataObject, size: int) -> None:
    # Round a switch of wide links, some pairs joined by a still wider one.
    nodes = [Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(size)]
    nodes.append(Node(id="s", kind=NodeKind.pcie))
    ranks = st.integers(0, size - 1)
    pairs = data.draw(st.sets(st.tuples(ranks, ranks).filter(lambda pair: pair[0] < pair[1]), max_size=12))
    ends = [(at, size, data.draw(st.sampled_from([5, 10]))) for at in range(size)]
    ends += [(a, b, 30) for a, b in sorted(pairs)]
    both = [*ends, *((b, a, units) for a, b, units in ends)]
    edges = tuple(Edge(tail=a, head=b, units=units, link=LinkClass.pcie) for a, b, units in both)
    graph = Graph(nodes=tuple(nodes), edges=edges, size=size)
    found = best_order(graph)
    assert sorted(found) == list(range(size))
    assert order_cost(graph, found) <= order_cost(graph, range(size))


def test_stretches_are_turned_where_the_walk_to_neighbours_ends_badly() -> None:
    # Two rows of five on narrow links to a switch; wide links join each row, and the ends of both, in a ladder.
    rows = [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    ends = [(at, 10, 10) for at in range(10)]
    ends += [(a, b, 100) for row in rows for a, b in pairwise(row)]
    ends += [(0, 1, 100), (8, 9, 100), (4, 5, 100)]
    both = [*ends, *((b, a, units) for a, b, units in ends)]
    nodes = [Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(10)]
    nodes.append(Node(id="s", kind=NodeKind.pcie))
    edges = tuple(Edge(tail=a, head=b, units=units, link=LinkClass.nvlink) for a, b, units in both)
    graph = Graph(nodes=tuple(nodes), edges=edges, size=10)
    assert order_cost(graph, best_order(graph)) == Fraction(1, 100)


def test_an_order_given_by_hand_is_kept_and_checked() -> None:
    graph = graph_of(preset("a100_sxm_x4"))
    made = ring(graph, Collective.all_gather, [2, 0, 3, 1])
    assert {(send.source, send.target) for send in made.sends} == {(2, 0), (0, 3), (3, 1), (1, 2)}
    for wrong in ([0, 1, 2], [0, 1, 2, 2], [1, 2, 3, 4]):
        with pytest.raises(TopologyError, match="name each of the ranks 0 to 3 once"):
            ring(graph, Collective.all_gather, wrong)


def test_an_all_to_all_is_refused() -> None:
    graph = graph_of(preset("a100_sxm_x4"))
    for build in (ring, multi_ring):
        with pytest.raises(TopologyError, match="does not carry out all_to_all"):
            build(graph, Collective.all_to_all)


@pytest.mark.parametrize(
    ("name", "nodes", "one", "several"),
    [
        ("dgx1_v100", 1, 0.35, 0.98),  # a cube mesh has rings without a common link
        ("h100_nvl_x8", 1, 0.43, 0.85),
        ("dgx_h100", 2, 0.11, 0.77),  # one ring uses one NIC of eight; no ring can do better than 400 of 513
    ],
)
def test_several_rings_reach_what_one_cannot(name: str, nodes: int, one: float, several: float) -> None:
    graph = graph_of(preset(name, nodes=nodes))
    least = float(bound(graph, Collective.all_gather).seconds_per_byte)
    assert least / ring(graph, Collective.all_gather).overlapped_seconds_per_byte < one
    assert least / multi_ring(graph, Collective.all_gather).overlapped_seconds_per_byte > several


def test_shares_of_rings_sum_to_one_and_rings_can_be_given() -> None:
    graph = graph_of(preset("dgx1_v100"))
    rings = best_rings(graph)
    assert sum(found.share for found in rings) == 1
    half = [Ring(order=found.order, paths=found.paths, share=Fraction(1, len(rings))) for found in rings]
    assert multi_ring(graph, Collective.all_gather, half).num_steps == 7
    with pytest.raises(TopologyError, match="of the data"):
        multi_ring(graph, Collective.all_gather, half[1:])


def test_rings_of_a_large_cluster_are_not_searched() -> None:
    with pytest.raises(TopologyError, match="up to 64 devices"):
        best_rings(graph_of(preset("dgx_h100", nodes=9)))


@given(data=st.data(), size=st.integers(9, 11))
@settings(max_examples=15)
def test_tours_are_whole_and_no_worse_than_the_orders_known(data: st.DataObject, size: int) -> None:
    costs = np.array(data.draw(st.lists(st.floats(0.1, 9), min_size=size * size, max_size=size * size)))
    costs = costs.reshape(size, size)
    order = tuple(range(size))
    found = Tours(size, [order]).cheapest(costs)
    assert sorted(found) == list(order)

    def total(one: tuple[int, ...]) -> float:
        return sum(costs[a, b] for a, b in zip(one, (*one[1:], one[0]), strict=True))

    assert total(found) <= total(order) + 1e-9
