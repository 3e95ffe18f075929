"""Widest paths against all simple paths of small random graphs."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from topology.graph import Edge, Graph, LinkClass, Node, NodeKind
from topology.paths import path, paths_from, width

_WIDE = 1 << 40


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    size, others = draw(st.integers(2, 4)), draw(st.integers(0, 3))
    count = size + others
    nodes = [Node(id=f"d{at}", kind=NodeKind.device) for at in range(size)]
    kind = draw(st.sampled_from([NodeKind.pcie, NodeKind.network]))
    nodes += [Node(id=f"s{at}", kind=kind) for at in range(others)]
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] != pair[1])
    told = draw(st.lists(st.tuples(ends, st.sampled_from([None, 1, 2, 5]), st.booleans()), max_size=12))
    edges = tuple(
        Edge(tail=a, head=b, units=units, link=LinkClass.network if net else LinkClass.pcie)
        for (a, b), units, net in told
    )
    return Graph(nodes=tuple(nodes), edges=edges, size=size)


def simple_paths(graph: Graph, at: int, goal: int, seen: tuple[int, ...], *, relay: bool) -> Iterator[tuple[int, ...]]:
    """Every path without a node twice."""
    if at == goal:
        yield ()
        return
    if len(seen) > 1 and at < graph.size and not relay:
        return
    for edge in graph.leaving[at]:
        head = graph.edges[edge].head
        if head not in seen:
            for rest in simple_paths(graph, head, goal, (*seen, head), relay=relay):
                yield edge, *rest


def cost(graph: Graph, edges: tuple[int, ...]) -> tuple[int, int, int]:
    """Entries into networks, width (negative), hops: less is better."""
    entries = (graph.edges[at] for at in edges if graph.edges[at].link is LinkClass.network)
    nets = sum(graph.nodes[edge.tail].kind is not NodeKind.network for edge in entries)
    return nets, -(width(graph, edges) or _WIDE), len(edges)


@given(graphs(), st.booleans())
def test_the_widest_path_of_all(graph: Graph, relay: bool) -> None:
    for goal in range(1, graph.size):
        found = path(graph, 0, goal, relay=relay)
        every = list(simple_paths(graph, 0, goal, (0,), relay=relay))
        if not every:
            assert found is None
            continue
        assert found is not None
        assert cost(graph, found) == min(cost(graph, one) for one in every)


@given(graphs())
def test_a_device_reaches_itself_by_no_edge(graph: Graph) -> None:
    assert paths_from(graph, 0)[0] == ()
