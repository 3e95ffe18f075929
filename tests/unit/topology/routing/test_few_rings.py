"""Rings found without a solver carry what all rings together can, and never much less than a solver's search finds."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset
from topology.routing import few_rings, many_rings
from topology.routing.cheapest_ring import cheapest_tour
from topology.routing.ring import best_rings
from topology.routing.shares import passes_of

costs_of = st.integers(2, 7).flatmap(
    lambda size: st.lists(st.lists(st.integers(1, 9), min_size=size, max_size=size), min_size=size, max_size=size)
)


@given(costs=costs_of)
@settings(max_examples=100)
def test_the_cheapest_tour_is_the_cheapest_of_all(costs: list[list[int]]) -> None:
    size = len(costs)

    def total(order: tuple[int, ...]) -> int:
        return sum(costs[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True))

    found = cheapest_tour(costs)
    assert sorted(found) == list(range(size))
    assert total(found) == min(total((0, *rest)) for rest in permutations(range(1, size)))


@st.composite
def meshes(draw: st.DrawFn) -> Graph:
    """Up to five devices, each two joined by a wire of their own, and a switch that joins all.

    Of some graphs every wire carries as much the other way, of others it does not.
    """
    size, is_even = draw(st.integers(3, 5)), draw(st.booleans())
    nodes = [Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(size)]
    nodes.append(Node(id="s", kind=NodeKind.pcie))
    units = st.sampled_from([0, 0, 25, 25, 50, 60])
    to_switch = st.sampled_from([5, 10])
    pairs = [(a, b, units) for a in range(size) for b in range(a)] + [(at, size, to_switch) for at in range(size)]
    ends = []
    for a, b, amounts in pairs:
        there = draw(amounts)
        ends += [(a, b, there), (b, a, there if is_even else draw(amounts))]
    edges = tuple(Edge(tail=a, head=b, units=wide, link=LinkClass.nvlink) for a, b, wide in ends if wide)
    return Graph(nodes=tuple(nodes), edges=edges, size=size)


def every_ring(graph: Graph) -> list[tuple[tuple[int, ...], ...]]:
    """All orders, and for each neighbour the wire of the two and the way over the switch."""
    at = {(edge.tail, edge.head): number for number, edge in enumerate(graph.edges)}
    found = []
    for rest in permutations(range(1, graph.size)):
        order = (0, *rest)
        ways = [
            [*([(at[a, b],)] if (a, b) in at else []), (at[a, graph.size], at[graph.size, b])]
            for a, b in zip(order, (*order[1:], order[0]), strict=True)
        ]
        found += list(product(*ways))
    return found


@given(graph=meshes())
@settings(max_examples=15, deadline=None)
def test_the_search_ends_at_the_optimum_over_all_rings(graph: Graph) -> None:
    best, _ = many_rings.pack(graph, [passes_of(paths) for paths in every_ring(graph)])
    found = [paths for _, paths in few_rings.search(graph, (), ())]
    columns = [passes_of(paths) for paths in found]
    rate, weights = few_rings.pack(graph, columns)
    assert best * (1 - 1e-3) - 1e-9 <= rate <= best * (1 + 1e-9)
    assert rate == pytest.approx(many_rings.pack(graph, columns)[0], rel=1e-9)
    assert sum(weights) == pytest.approx(rate)
    costs = [1.0 + at % 2 / 2 for at in range(len(columns))]
    one, other = (solver.settle(graph, columns, rate * 0.99, costs) for solver in (few_rings, many_rings))
    assert sum(one) == pytest.approx(1.0, rel=1e-9)
    cost, least = (sum(map(float.__mul__, costs, map(float, shares))) for shares in (one, other))
    assert cost == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize(
    ("size", "missing", "rings"),
    [
        (8, {(0, 4), (1, 5), (2, 6), (3, 7)}, 6),  # three rounds without a common wire, each both ways
        (8, set(), 7),  # rings one way each: seven wires of a device make no pairs
        (6, set(), 20),  # no five rings share no wire, so these do
        (8, {(0, 1), (2, 3)}, 6),  # the devices that lack a wire limit all
    ],
)
def test_meshes_are_filled_by_few_rings(size: int, missing: set[tuple[int, int]], rings: int) -> None:
    nodes = tuple(Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(size))
    ends = [(a, b) for a, b in permutations(range(size), 2) if (min(a, b), max(a, b)) not in missing]
    edges = tuple(Edge(tail=a, head=b, units=100, link=LinkClass.xgmi) for a, b in ends)
    graph = Graph(nodes=nodes, edges=edges, size=size)
    found = best_rings(graph)
    rate, _ = few_rings.pack(graph, [passes_of(one.paths) for one in found])
    wires = min(sum(edge.tail == rank for edge in edges) for rank in range(size))
    assert 0.998 * 100 * wires <= rate <= 100 * wires * (1 + 1e-9)
    assert len(found) <= rings


@pytest.mark.parametrize("name", ["dgx1_v100", "4xv100-16gb", "a100_sxm_x4", "h100_nvl_x8"])
def test_machines_get_as_much_as_by_the_search_with_a_solver(name: str) -> None:
    graph = graph_of(preset(name))
    order = tuple(range(graph.size))
    known = [ring_paths for _, ring_paths in many_rings.search(graph, [order], ())]
    best, _ = many_rings.pack(graph, [passes_of(paths) for paths in known])
    rings = best_rings(graph)
    rate, _ = few_rings.pack(graph, [passes_of(one.paths) for one in rings])
    assert rate >= best * 0.99
    assert all(one.share > 0 for one in rings)


def test_devices_that_only_others_reach_are_told() -> None:
    nodes = tuple(Node(id=f"d{at}", kind=NodeKind.device, host="h") for at in range(3))
    line = [(0, 1), (1, 0), (1, 2), (2, 1)]
    graph = Graph(
        nodes=nodes, edges=tuple(Edge(tail=a, head=b, units=5, link=LinkClass.nvlink) for a, b in line), size=3
    )
    with pytest.raises(TopologyError, match="through other devices only"):
        few_rings.search(graph, (), ())
