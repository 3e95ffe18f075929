"""The all-to-all bound: against closed forms, a plain program over all edges, and a proof by prices."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset
from topology.routing.concurrent_flow import concurrent_flow, tidy_flows
from topology.routing.contraction import contracted
from topology.routing.flow_proof import most_units

CUBE = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7))


def graph(size: int, wires: list[tuple[int, int, int | None]], *, both: bool = True) -> Graph:
    """A graph of `size` devices; nodes above are switches."""
    count = max((*(end for a, b, _ in wires for end in (a, b)), size - 1)) + 1
    kinds = [NodeKind.device if at < size else NodeKind.pcie for at in range(count)]
    ways = [(a, b, u) for a, b, u in wires] + ([(b, a, u) for a, b, u in wires] if both else [])
    return Graph(
        nodes=tuple(Node(id=f"n{at}", kind=kind, host="h") for at, kind in enumerate(kinds)),
        edges=tuple(Edge(tail=a, head=b, units=u, link=LinkClass.pcie) for a, b, u in ways),
        size=size,
    )


def plain(found: Graph, *, relay: bool) -> float:
    """The same program in MB/s without contraction, symmetry or sparse matrices."""
    size, edges, count = found.size, found.edges, len(found.nodes)
    pairs = [
        (source, at)
        for source in range(size)
        for at, edge in enumerate(edges)
        if relay or edge.tail == source or edge.tail >= size
    ]
    equal = np.zeros((size * count, len(pairs) + 1))
    upper = np.zeros((len(edges), len(pairs) + 1))
    for column, (source, at) in enumerate(pairs):
        equal[source * count + edges[at].head, column] += 1
        equal[source * count + edges[at].tail, column] -= 1
        upper[at, column] = 1
    for source in range(size):
        for target in range(size):
            equal[source * count + target, -1] = -1 if source != target else size - 1
    cost = np.zeros(len(pairs) + 1)
    cost[-1] = -1
    limits = [1e6 if edge.units is None else edge.units for edge in edges]
    result = linprog(cost, A_ub=upper, b_ub=limits, A_eq=equal, b_eq=np.zeros(size * count), method="highs")
    return float(result.x[-1])


def rate(found: Graph, *, relay: bool = True) -> float:
    return concurrent_flow(found, relay=relay).bytes_per_second / 1e6


def test_a_switch_shares_each_device_s_wire_among_the_others() -> None:
    star = graph(5, [(at, 5, 1000) for at in range(5)])
    found = concurrent_flow(star)
    assert found.bytes_per_second == pytest.approx(250e6)
    assert found.bus_bytes_per_second == pytest.approx(1e9)
    assert found.seconds_per_byte == pytest.approx(1 / (5 * 250e6))


def test_a_full_mesh_gives_each_pair_its_wire() -> None:
    mesh = graph(4, [(a, b, 700) for a in range(4) for b in range(a)])
    assert rate(mesh) == rate(mesh, relay=False) == pytest.approx(700)


def test_a_chain_needs_relay_and_is_limited_by_its_middle() -> None:
    chain = graph(4, [(0, 1, 800), (1, 2, 800), (2, 3, 800)])
    assert rate(chain, relay=False) == 0
    assert rate(chain) == pytest.approx(200)  # two on each side: four pairs cross the middle each way
    middle = {(chain.edges[at].tail, chain.edges[at].head) for at in concurrent_flow(chain).bottleneck}
    assert middle <= {(1, 2), (2, 1)}
    assert middle


def test_a_cube_mesh_without_other_wires_cannot_do_without_relay() -> None:
    mesh = graph(8, [*((a, b, 100) for a, b in CUBE), *((a, a + 4, 100) for a in range(4))])
    assert rate(mesh, relay=False) == 0
    # Each of the four wires between the halves carries a quarter of the 4 x 4 pairs one way.
    assert rate(mesh) == pytest.approx(25)


def test_two_switches_are_limited_by_their_uplink_which_is_named() -> None:
    box = graph(4, [(0, 4, 1000), (1, 4, 1000), (2, 5, 1000), (3, 5, 1000), (4, 5, 400)])
    found = concurrent_flow(box)
    assert found.bytes_per_second == pytest.approx(100e6)
    ends = {frozenset((box.edges[at].tail, box.edges[at].head)) for at in found.bottleneck}
    assert ends == {frozenset((4, 5))}


def test_a_wire_without_a_limit_limits_nothing() -> None:
    box = graph(2, [(0, 2, None), (2, 3, None), (3, 1, None)])
    assert concurrent_flow(box).bytes_per_second == math.inf
    assert concurrent_flow(box).seconds_per_byte == 0
    with pytest.raises(TopologyError, match="no wire on the way has a limit"):
        tidy_flows(box)


def test_a_pair_without_a_way_has_no_rate() -> None:
    apart = graph(3, [(0, 1, 100)])
    found = concurrent_flow(apart)
    assert (found.bytes_per_second, found.seconds_per_byte, found.flows) == (0, math.inf, ())
    with pytest.raises(TopologyError, match="no path between some pair"):
        tidy_flows(apart)


def test_one_device_has_no_one_to_talk_to() -> None:
    with pytest.raises(TopologyError, match="1 device"):
        concurrent_flow(graph(1, [(0, 1, 5)]))


def test_published_all_to_all_bound_of_two_dgx2() -> None:
    """TE-CCL (SIGCOMM 2024): 12.5 GB/s algorithm bandwidth over 2 x 16 GPUs, 16 NICs of 12.5 GB/s a host."""
    wires = [(at, 32 + at // 16, 125_000) for at in range(32)]
    wires += [(at, 34 + at % 16, 12_500) for at in range(32)]
    found = concurrent_flow(graph(32, [(a, b, u) for a, b, u in wires]))
    # Each host's NICs carry 16 x 16 pairs.
    assert found.bytes_per_second == pytest.approx(16 * 12.5e9 / 256, rel=1e-6)


@st.composite
def machines(draw: st.DrawFn) -> Graph:
    """Devices on a random tree of switches, plus random wires, some one-way, some without a limit."""
    size = draw(st.integers(2, 5))
    switches = draw(st.integers(1, 5))
    limit = st.sampled_from([None, 100, 100, 200, 250, 400])
    wires = [
        (at, size + draw(st.integers(0, switches - 1)), draw(st.sampled_from([100, 100, 200]))) for at in range(size)
    ]
    wires += [(size + at, size + draw(st.integers(0, at - 1)), draw(limit)) for at in range(1, switches)]
    ways = [*wires, *((b, a, u) for a, b, u in wires)]
    nodes = st.integers(0, size + switches - 1)
    extra = draw(st.lists(st.tuples(nodes, nodes, limit), max_size=4))
    return graph(size, ways + [(a, b, u) for a, b, u in extra if a != b], both=False)


@settings(max_examples=30)
@given(found=machines(), relay=st.booleans())
def test_as_the_plain_program_says_and_proved_by_prices(found: Graph, relay: bool) -> None:
    best = concurrent_flow(found, relay=relay)
    if best.bytes_per_second == math.inf:
        assert plain(found, relay=relay) >= 1e4
        return
    expected = plain(found, relay=relay)
    assert best.bytes_per_second / 1e6 == pytest.approx(expected, rel=1e-6, abs=1e-6)
    proved = most_units(found, best.prices, relay=relay)
    assert proved is not None
    assert float(proved) == pytest.approx(expected, rel=1e-5)


@settings(max_examples=20)
@given(found=machines(), relay=st.booleans())
def test_flows_are_kept_and_fit_the_wires(found: Graph, relay: bool) -> None:
    best = concurrent_flow(found, relay=relay)
    total = [0.0] * len(found.edges)
    for source, flow in enumerate(best.flows):
        balance = [0.0] * len(found.nodes)
        for at, value in flow.items():
            total[at] += value
            balance[found.edges[at].head] += value
            balance[found.edges[at].tail] -= value
        # Unlimited wires inside a folded node are left out: what matters is what reaches the devices.
        for target in range(found.size):
            want = -(found.size - 1) if target == source else 1
            assert balance[target] == pytest.approx(want * best.bytes_per_second, rel=1e-6)
    for at, edge in enumerate(found.edges):
        assert edge.bytes_per_second is None or total[at] <= edge.bytes_per_second * (1 + 1e-7)


@settings(max_examples=20)
@given(found=machines(), prices=st.lists(st.floats(0, 1), min_size=40, max_size=40))
def test_no_prices_prove_less_than_the_flow(found: Graph, prices: list[float]) -> None:
    limited = {at: prices[at % 40] for at, edge in enumerate(found.edges) if edge.units is not None}
    proved = most_units(found, limited, relay=True)
    best = concurrent_flow(found)
    if proved is not None and best.bytes_per_second < math.inf:
        assert float(proved) >= best.bytes_per_second / 1e6 * (1 - 1e-9)


def test_prices_of_nothing_prove_nothing_and_a_missing_way_proves_zero() -> None:
    chain = graph(3, [(0, 1, 100), (1, 2, 100)])
    assert most_units(chain, {}, relay=True) is None
    assert most_units(chain, {0: 1.0}, relay=False) == Fraction(0)
    assert most_units(chain, dict.fromkeys(range(4), 1.0), relay=True) == Fraction(400, 8)


@pytest.mark.parametrize(
    ("name", "relay", "expected"),
    [
        ("dgx1_v100", False, 0),  # where NVLink joins all there is nothing else, and it joins no 0 and 5
        ("dgx1_v100", True, 9.375),
        ("pcie_l40s_x8", False, 31.508 / 16),
        ("pcie_l40s_x8", True, 31.508 / 16),
        ("a100_pcie_pairs_x4", True, 44.8 / 4),
    ],
)
def test_drawn_machines(name: str, relay: bool, expected: float) -> None:
    assert rate(graph_of(preset(name)), relay=relay) == pytest.approx(expected * 1000, rel=1e-3)


@pytest.mark.parametrize(("nodes", "bus"), [(2, 93.75), (4, 64.583)])
def test_a_cluster_has_the_closed_form_of_its_nics(nodes: int, bus: float) -> None:
    """W / g x (N - 1) / (N - g), with 8 NICs of 50 GB/s and 8 devices a host."""
    found = concurrent_flow(graph_of(preset("dgx_h100", nodes=nodes)))
    assert found.bus_bytes_per_second == pytest.approx(bus * 1e9, rel=1e-4)


def test_a_rack_is_solved_by_its_symmetry() -> None:
    rack = graph(72, [(at, 72, 900_000) for at in range(72)])
    assert rate(rack) == pytest.approx(900_000 / 71)
    assert contracted(rack).num_nodes == 73


def test_folding_keeps_what_limits_and_where_it_is() -> None:
    #  0 - 3 - 4 - 1 in a row, a dead end 5, and a device 2 at 4 through an unlimited pair 6 = 4.
    found = graph(3, [(0, 3, 300), (3, 4, 200), (4, 1, 500), (4, 5, 50), (2, 6, 100), (6, 4, None)])
    small = contracted(found)
    assert small.num_nodes == 4  # three devices and one switch
    assert sorted(arc.units or 0 for arc in small.arcs) == [100, 100, 200, 200, 500, 500]
    way = [at for at, arc in enumerate(small.arcs) if arc.tail == 2] + [
        at for at, arc in enumerate(small.arcs) if arc.head == 1
    ]
    path = small.path(way)
    assert [(found.edges[at].tail, found.edges[at].head) for at in path] == [(2, 6), (6, 4), (4, 1)]
