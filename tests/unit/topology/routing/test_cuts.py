from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.collectives import Collective
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset
from topology.routing.bound import bound
from topology.routing.cuts import Arcs, arcs_of, cut_of
from topology.routing.max_flow import max_flow, reachable
from topology.routing.nets import narrowest, net_of

Wire = tuple[int, int, int | None]
MB = 10**6


def make_graph(size: int, others: int, wires: list[Wire]) -> Graph:
    """Devices first, then switches; every wire is one direction."""
    kinds = [NodeKind.device] * size + [NodeKind.pcie] * others
    return Graph(
        nodes=tuple(Node(id=f"n{at}", kind=kind) for at, kind in enumerate(kinds)),
        edges=tuple(Edge(tail=a, head=b, units=units, link=LinkClass.pcie) for a, b, units in wires),
        size=size,
    )


def both(*wires: Wire) -> list[Wire]:
    return [*wires, *((b, a, units) for a, b, units in wires)]


def random_graph(rng: random.Random, most: int = 60) -> Graph:
    size, others = rng.randint(2, 6), rng.randint(0, 3)
    nodes = list(range(size + others))
    wires: list[Wire] = []
    ring = nodes[:]
    rng.shuffle(ring)
    if rng.random() < 0.9:  # otherwise often something cannot be reached
        wires += [(a, b, rng.randint(1, most)) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)]
    for _ in range(rng.randint(0, 3 * len(nodes))):
        a, b = rng.sample(nodes, 2)
        wires.append((a, b, None if rng.random() < 0.1 else rng.randint(1, most)))
    return make_graph(size, others, wires or [(0, 1, 1)])


def of_all_cuts(graph: Graph, arcs: Arcs) -> Fraction | None:
    """Least units per device over every set of nodes with a device, but not all of them; None: no set has a limit."""
    sets = np.arange(1 << len(graph.nodes))
    held = sum((sets >> at) & 1 for at in range(graph.size))
    leaving, open_ended = np.zeros(len(sets), dtype=np.int64), np.zeros(len(sets), dtype=np.bool_)
    for tail, head, units in zip(arcs.tail.tolist(), arcs.head.tolist(), arcs.units.tolist(), strict=True):
        crosses = ((sets >> tail) & 1 == 1) & ((sets >> head) & 1 == 0)
        leaving[crosses] += max(units, 0)
        open_ended |= crosses & (units < 0)
    counts = (held > 0) & (held < graph.size) & ~open_ended
    pairs = set(zip(leaving[counts].tolist(), np.asarray(held)[counts].tolist(), strict=True))
    return min((Fraction(units, devices) for units, devices in pairs), default=None)


@pytest.mark.parametrize(("seed", "most"), [(11, 60), (12, 60), (13, 60), (14, 4), (15, 2 * 10**9)])
def test_the_optimum_is_that_of_all_cuts(seed: int, most: int) -> None:
    rng = random.Random(seed)
    limited = 0
    for _ in range(100):
        graph = random_graph(rng, most)
        arcs = arcs_of(graph)
        for turned in (arcs, arcs.reversed):
            found, expected = narrowest([net_of(graph, is_reverse=turned is not arcs)]), of_all_cuts(graph, turned)
            assert (None if found is None else found.units_per_device) == expected
            if found is not None:
                limited += 1
                inside = np.zeros(len(graph.nodes), dtype=np.bool_)
                inside[list(found.inside)] = True
                cut = cut_of(graph, turned, inside)
                assert 0 < len(cut.inside) < graph.size
                assert Fraction(round(cut.bytes_per_second), MB * len(cut.inside)) == expected
    assert limited > 150


@given(st.data())
def test_both_ways_to_compute_a_flow_agree(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 7))
    arc = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1), st.integers(0, 9)).filter(
        lambda a: a[0] != a[1]
    )
    arcs = data.draw(st.lists(arc, max_size=20))
    small, residual = max_flow(count, arcs, 0, 1, most=1000)
    factor = 2**40  # too large for the one
    large, other = max_flow(count, [(a, b, c * factor) for a, b, c in arcs], 0, 1, most=1000 * factor)
    assert large == small * factor
    # The smallest set of a narrowest cut is unique, so both must find the same one, and it carries the flow.
    inside = reachable(residual, 0)
    assert inside == reachable(other, 0)
    assert sum(c for a, b, c in arcs if a in inside and b not in inside) == small


def test_one_switch_gives_every_device_its_link() -> None:
    graph = make_graph(5, 1, both(*((at, 5, 700) for at in range(5))))
    found = bound(graph, Collective.all_gather)
    assert found.bus_bytes_per_second == 700 * MB
    assert found.seconds_per_byte == Fraction(4, 5 * 700 * MB)


@pytest.mark.parametrize(("hosts", "gpus"), [(2, 4), (4, 2), (3, 3), (2, 8)])
@pytest.mark.parametrize(("nvlink", "ports"), [(900, 40), (50, 400)])
def test_hosts_on_a_network_have_the_closed_form(hosts: int, gpus: int, nvlink: int, ports: int) -> None:
    """Every GPU has an NVLink to the switch of its host and a network port of its own."""
    size = hosts * gpus
    wires = [(at, size + at // gpus, nvlink) for at in range(size)] + [(at, size + hosts, ports) for at in range(size)]
    graph = make_graph(size, hosts + 1, both(*wires))
    expected = min(Fraction((size - 1) * gpus * ports, size - gpus), Fraction(nvlink + ports))
    for collective in (Collective.all_gather, Collective.reduce_scatter, Collective.all_reduce):
        found = bound(graph, collective)
        assert found.bus_bytes_per_second == pytest.approx(float(expected) * MB, rel=1e-12)


def test_published_bounds_of_two_dgx_2() -> None:
    """TE-CCL's model: 16 GPUs on a switch, 125 GB/s each; 8 of them have 12.5 GB/s to the other host."""
    wires = [(at, 32 + at // 16, 125_000) for at in range(32)] + [(at, at + 16, 12_500) for at in range(1, 16, 2)]
    graph = make_graph(32, 2, both(*wires))
    assert 1e-9 / bound(graph, Collective.all_gather).seconds_per_byte == pytest.approx(129.03, abs=0.005)
    assert 1e-9 / bound(graph, Collective.all_to_all).seconds_per_byte == pytest.approx(12.5, rel=1e-9)


def cube_mesh(first: int) -> list[Wire]:
    single, double = (
        [(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)],
        [
            (0, 3),
            (1, 2),
            (2, 3),
            (4, 7),
            (5, 6),
            (6, 7),
            (0, 4),
            (1, 5),
        ],
    )
    return [(first + a, first + b, 25_000 * times) for pairs, times in ((single, 1), (double, 2)) for a, b in pairs]


def test_published_bounds_of_two_ndv2() -> None:
    """Two cube meshes of eight V100, each with one port of 12.5 GB/s."""
    wires: list[Wire] = [*cube_mesh(0), *cube_mesh(8), (16, 17, 12_500)]
    wires += [(at, 16 + at // 8, 15_754) for at in range(16)]
    graph = make_graph(16, 2, both(*wires))
    assert 1e-9 / bound(graph, Collective.all_gather).seconds_per_byte == pytest.approx(25.0, rel=1e-9)
    assert 1e-9 / bound(graph, Collective.all_to_all).seconds_per_byte == pytest.approx(3.125, rel=1e-9)


def test_the_cube_mesh_has_six_nvlinks_a_gpu() -> None:
    graph = make_graph(8, 0, both(*cube_mesh(0)))
    assert bound(graph, Collective.all_reduce).bus_bytes_per_second == 150_000 * MB


@pytest.mark.parametrize(
    ("name", "group", "best", "worst"),
    [
        # Links of 25, 50 and 300 GB/s and PCIe Gen4 x16; a group that NVLink does not join has PCIe as well, and three
        # times the slowest link of a pair is what four devices get through it.
        ("dgx1_v100", 4, 100, 15.754),
        ("a100_pcie_pairs_x8", 4, 3 * 31.508, 31.508),
        ("a100_pcie_pairs_x4", 2, 300, 31.508),
    ],
)
def test_which_devices_form_a_group_matters(name: str, group: int, best: float, worst: float) -> None:
    machine = preset(name)
    ids = [device.id for device in machine.gpus]
    found = {
        bound(graph_of(machine, some), Collective.all_gather).bus_bytes_per_second for some in combinations(ids, group)
    }
    assert (max(found), min(found)) == (pytest.approx(best * 1e9), pytest.approx(worst * 1e9))


def test_of_equal_cuts_the_smallest_is_told() -> None:
    """Two pairs on a narrow link: one pair against the other, not three nodes against one."""
    graph = make_graph(4, 2, both((0, 4, 90), (1, 4, 90), (2, 5, 90), (3, 5, 90), (4, 5, 30)))
    cut = bound(graph, Collective.all_gather).cut
    assert cut is not None
    assert cut.inside in ((0, 1), (2, 3))
    assert [(graph.edges[at].tail, graph.edges[at].head) for at in cut.edges] in ([(4, 5)], [(5, 4)])
    assert cut.bytes_per_second == 30 * MB


def test_each_direction_counts_for_itself() -> None:
    """What leads to device 1 is slow: it lacks two shares of a gather, and of a scatter one sum."""
    graph = make_graph(3, 1, [(0, 3, 100), (1, 3, 100), (2, 3, 100), (3, 0, 100), (3, 1, 20), (3, 2, 100)])
    gather, scatter = (bound(graph, one) for one in (Collective.all_gather, Collective.reduce_scatter))
    assert (gather.bus_bytes_per_second, scatter.bus_bytes_per_second) == (20 * MB, 40 * MB)
    assert gather.cut is not None
    assert gather.cut.inside == (0, 2)
