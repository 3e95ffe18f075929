from __future__ import annotations

import random
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from scipy.optimize import linprog

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.network import NetworkKind, NetworkSpec
from topology.presets import preset, preset_names
from topology.routing import bound as bound_module
from topology.routing.bound import bound
from topology.routing.bound_programs import Way, tree_rate
from topology.routing.cuts import arcs_of
from topology.routing.refine import without_symmetry

Wire = tuple[int, int, int | None]
MB = 10**6
GB = 10**9


def make_graph(size: int, others: int, wires: list[Wire], per_host: int = 0) -> Graph:
    """Devices first, then switches; every wire is one direction. `per_host` devices share a host, 0: all."""
    return Graph(
        nodes=tuple(
            Node(
                id=f"n{at}",
                kind=NodeKind.device if at < size else NodeKind.pcie,
                host=f"host{at // per_host}" if per_host and at < size else None,
            )
            for at in range(size + others)
        ),
        edges=tuple(Edge(tail=a, head=b, units=units, link=LinkClass.pcie) for a, b, units in wires),
        size=size,
    )


def both(*wires: Wire) -> list[Wire]:
    return [*wires, *((b, a, units) for a, b, units in wires)]


def random_graph(rng: random.Random, size: int, others: int, more: int) -> Graph:
    nodes = list(range(size + others))
    rng.shuffle(nodes)
    wires: list[Wire] = [(a, b, rng.randint(1, 9)) for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)]
    wires += [(*rng.sample(nodes, 2), rng.randint(1, 9)) for _ in range(more)]
    return make_graph(size, others, wires)


def hosts_on_network(hosts: int, gpus: int, nvlink: int, ports: int) -> Graph:
    """Each GPU has an NVLink to the switch of its host and a port on one network."""
    size = hosts * gpus
    wires = [(at, size + at // gpus, nvlink) for at in range(size)] + [(at, size + hosts, ports) for at in range(size)]
    return make_graph(size, hosts + 1, both(*wires), gpus)


def plain_exchange(graph: Graph, *, relay: bool) -> float:
    """Lambda in MB/s by one commodity for each ordered pair of devices: the definition, and slow."""
    pairs = list(permutations(range(graph.size), 2))
    edges, nodes = graph.edges, len(graph.nodes)
    width = len(pairs) * len(edges) + 1
    equal, upper = np.zeros((len(pairs) * nodes, width)), np.zeros((len(edges), width))
    for at, (source, target) in enumerate(pairs):
        for number, edge in enumerate(edges):
            column = at * len(edges) + number
            if not relay and edge.tail < graph.size and edge.tail != source:
                continue
            equal[at * nodes + edge.head, column] += 1
            equal[at * nodes + edge.tail, column] -= 1
            upper[number, column] = 1
        equal[at * nodes + target, -1] = -1
        equal[at * nodes + source, -1] = 1
    cost = np.zeros(width)
    cost[-1] = -1
    found = linprog(
        cost, A_ub=upper, b_ub=[e.units for e in edges], A_eq=equal, b_eq=np.zeros(len(equal)), method="highs"
    )
    return -found.fun


def lambda_of(graph: Graph, *, relay: bool = True) -> float:
    seconds = bound(graph, Collective.all_to_all, relay=relay).seconds_per_byte
    return float(1 / (graph.size * seconds * MB))


@pytest.mark.parametrize("seed", range(12))
def test_an_all_to_all_is_as_fast_as_its_definition_allows(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randint(2, 5), rng.randint(0, 3), 8)
    assert lambda_of(graph) == pytest.approx(plain_exchange(graph, relay=True), rel=1e-6)
    least = plain_exchange(graph, relay=False)
    if least < 1e-9:
        with pytest.raises(TopologyError, match="only other devices join"):
            bound(graph, Collective.all_to_all, relay=False)
    else:
        assert lambda_of(graph, relay=False) == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize(("hosts", "gpus"), [(2, 2), (2, 3), (3, 2), (4, 2)])
def test_classes_of_a_cluster_give_the_plain_answer(monkeypatch: pytest.MonkeyPatch, hosts: int, gpus: int) -> None:
    monkeypatch.setattr(bound_module, "_FEW_DEVICES", 1)
    graph = hosts_on_network(hosts, gpus, 90, 20)
    for relay in (True, False):
        assert lambda_of(graph, relay=relay) == pytest.approx(plain_exchange(graph, relay=relay), rel=1e-6)


@pytest.mark.parametrize("hosts", [2, 4, 12])
def test_an_all_to_all_between_hosts_has_the_closed_form(hosts: int) -> None:
    graph = graph_of(preset("dgx_h100", nodes=hosts))
    size, ports = 8 * hosts, 400
    found = bound(graph, Collective.all_to_all)
    assert found.bus_bytes_per_second == pytest.approx(ports / 8 * (size - 1) / (size - 8) * GB, rel=1e-9)
    assert found.cut is not None
    assert found.cut.bytes_per_second == ports * GB


def test_a_network_with_too_few_uplinks_is_told() -> None:
    """Two leaves of four hosts, a quarter of the uplinks: 32 GPUs through 4 x 400 / 4 GB/s."""
    spec = NetworkSpec(kind=NetworkKind.leaf_spine, hosts_per_leaf=4, oversubscription=4)
    graph = graph_of(preset("dgx_h100", nodes=8, network=spec))
    found = bound(graph, Collective.all_to_all)
    assert found.bus_bytes_per_second == pytest.approx(63 * 400 / 32**2 * GB, rel=1e-9)
    assert found.cut is not None
    assert len(found.cut.inside) == 32
    assert len(found.cut.edges) == 1


def test_a_cube_mesh_needs_relay() -> None:
    """Four by four GPUs, each NVLinked to one on the other side: 4 x 4 pairs cross 150 GB/s of NVLink."""
    graph = graph_of(preset("dgx1_v100"))
    found = bound(graph, Collective.all_to_all)
    assert found.cut is not None
    assert found.cut.inside in ((0, 1, 2, 3), (4, 5, 6, 7))
    assert found.seconds_per_byte == Fraction(16, 8 * 150 * GB)
    with pytest.raises(TopologyError, match="only other devices join"):
        bound(graph, Collective.all_to_all, relay=False)


def test_without_one_narrowest_cut_the_narrow_wires_are_told() -> None:
    """K(2, 3), each wire of capacity 1: the known gap between flows and cuts."""
    graph = make_graph(5, 0, both(*product((0, 1), (2, 3, 4), (1,))))
    found = bound(graph, Collective.all_to_all)
    # Of the pairs 14 must enter one of the first two devices, 14 one of the last three, through 6 wires each.
    assert lambda_of(graph) == pytest.approx(6 / 14)
    assert found.cut is not None
    assert found.cut.inside == ()
    assert set(found.cut.edges) in (set(range(6)), set(range(6, 12)), set(range(12)))
    assert found.cut.bytes_per_second == len(found.cut.edges) * MB


def plain_reduce(graph: Graph) -> float:
    """X in MB/s by listing every tree into and out of every root; devices only."""
    size, edges = graph.size, graph.edges
    cost, columns, roots = [], [], []
    for root in range(size):
        rest = [at for at in range(size) if at != root]
        for is_out in (True, False):
            chosen = [
                [n for n, e in enumerate(edges) if (e.head if is_out else e.tail) == node and e.tail != e.head]
                for node in rest
            ]
            for tree in product(*chosen):
                above = {node: (edges[n].tail if is_out else edges[n].head) for node, n in zip(rest, tree, strict=True)}
                if all(leads_to(above, node, root) for node in rest):
                    columns.append([float(n in tree) for n in range(len(edges))])
                    roots.append([(1.0 if is_out else -1.0) * (root == at) for at in range(size)])
                    cost.append(-1.0 if is_out else 0.0)
    limits = [e.units for e in edges]
    found = linprog(
        cost,
        A_ub=np.array(columns).T,
        b_ub=limits,
        A_eq=np.array(roots).T,
        b_eq=np.zeros(size),
        method="highs",
    )
    return -found.fun


def leads_to(above: dict[int, int], node: int, root: int) -> bool:
    for _ in above:
        if node == root:
            return True
        node = above[node]
    return node == root


@pytest.mark.parametrize("seed", range(15))
def test_an_all_reduce_is_as_fast_as_the_best_trees(seed: int) -> None:
    rng = random.Random(100 + seed)
    size = rng.randint(2, 4)
    graph = random_graph(rng, size, 0, rng.randint(0, 5))
    expected = plain_reduce(graph)
    found = tree_rate(without_symmetry(graph, arcs_of(graph)), (Way.into, Way.out_of), equal_roots=False)
    assert found is not None
    assert found.units == pytest.approx(expected, rel=1e-6)
    assert float(1 / (bound(graph, Collective.all_reduce).seconds_per_byte * MB)) == pytest.approx(expected, rel=1e-6)


def test_an_all_reduce_may_beat_its_two_halves_where_devices_differ() -> None:
    """A chain of three: sums meet in the middle and go back while the next come, so each wire carries M once."""
    graph = make_graph(3, 0, both((0, 1, 10), (1, 2, 10)))
    assert bound(graph, Collective.all_reduce).seconds_per_byte == Fraction(1, 10 * MB)
    halves = [bound(graph, one).seconds_per_byte for one in (Collective.all_gather, Collective.reduce_scatter)]
    assert sum(halves) == Fraction(4, 3) / (10 * MB)


def test_seven_devices_and_one_share_the_wire_between_them() -> None:
    """The lone device sends M and takes M, both at once."""
    wires = [*((at, 8, 900) for at in range(7)), (7, 9, 900), (8, 9, 20)]
    graph = make_graph(8, 2, both(*wires))
    assert float(bound(graph, Collective.all_reduce).seconds_per_byte) == pytest.approx(1 / (20 * MB), rel=1e-6)
    assert bound(graph, Collective.all_gather).seconds_per_byte == Fraction(7, 8 * 20 * MB)


@pytest.mark.parametrize("name", ["dgx_h100", "dgx1_v100", "h100_nvl_x8", "pcie_4090x8", "gb200_nvl72"])
def test_where_devices_are_alike_an_all_reduce_takes_both_halves(name: str) -> None:
    graph = graph_of(preset(name))
    halves = [bound(graph, one).seconds_per_byte for one in (Collective.all_gather, Collective.reduce_scatter)]
    assert bound(graph, Collective.all_reduce).seconds_per_byte == sum(halves)


@pytest.mark.parametrize("seed", range(6))
def test_an_all_reduce_lies_between_its_limits(seed: int) -> None:
    rng = random.Random(200 + seed)
    graph = random_graph(rng, rng.randint(2, 6), rng.randint(0, 2), 10)
    seconds = bound(graph, Collective.all_reduce).seconds_per_byte
    halves = [bound(graph, one).seconds_per_byte for one in (Collective.all_gather, Collective.reduce_scatter)]
    assert max(halves) * (1 - 1e-6) <= seconds <= sum(halves) * (1 + 1e-6)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_bounds(name: str) -> None:
    machine = preset(name)
    if len(machine.gpus or machine.devices) < 2:
        machine = preset(name, nodes=2)
        if not machine.nics:
            pytest.skip("one device, and no network")
    graph = graph_of(machine)
    for collective in (Collective.all_gather, Collective.all_to_all):
        found = bound(graph, collective)
        assert found.cut is not None
        assert 1 * GB < found.bus_bytes_per_second < 2000 * GB


def test_what_has_no_limit_takes_no_time() -> None:
    graph = make_graph(2, 1, both((0, 2, None), (1, 2, None)))
    for collective in Collective:
        found = bound(graph, collective)
        assert (found.seconds_per_byte, found.cut) == (0, None)


def test_devices_that_cannot_be_reached_are_named() -> None:
    graph = make_graph(3, 0, [(0, 1, 5), (1, 0, 5), (1, 2, 5)])
    for collective in (Collective.all_gather, Collective.reduce_scatter, Collective.all_reduce):
        with pytest.raises(TopologyError, match="nothing leads out of n2"):
            bound(graph, collective)
    with pytest.raises(TopologyError):
        bound(graph, Collective.all_to_all)


def test_one_device_has_nothing_to_exchange() -> None:
    with pytest.raises(TopologyError, match="two devices or more"):
        bound(make_graph(1, 0, []), Collective.all_gather)


def test_a_switch_in_two_halves_does_not_copy() -> None:
    """Two GPUs share the way down from the CPU: each gets half of it, although every cut would allow all of it."""
    halves = [(0, 4), (1, 4), (2, 5), (3, 5)]
    wires: list[Wire] = [(gpu, up, 40) for gpu, up in halves] + [(up + 2, gpu, 40) for gpu, up in halves]
    wires += [(4, 8, 30), (5, 8, 30), (8, 6, 30), (8, 7, 30)]
    graph = make_graph(4, 5, wires)
    for collective in (Collective.all_gather, Collective.reduce_scatter, Collective.all_reduce, Collective.all_to_all):
        found = bound(graph, collective)
        assert found.bus_bytes_per_second == pytest.approx(15 * MB, rel=1e-6)
        assert found.cut is not None
        assert len(found.cut.edges) == 1
        assert found.cut.bytes_per_second == 30 * MB
        assert len(found.cut.inside) == 2


@pytest.mark.parametrize("seed", range(10))
def test_cuts_and_trees_agree_where_switches_are_balanced(seed: int) -> None:
    rng = random.Random(300 + seed)
    one_way = random_graph(rng, rng.randint(2, 5), rng.randint(0, 3), 8)
    wires = [(e.tail, e.head, e.units) for e in one_way.edges]
    graph = make_graph(one_way.size, len(one_way.nodes) - one_way.size, both(*wires))
    arcs = arcs_of(graph)
    assert arcs.is_balanced(graph.size)
    trees = tree_rate(without_symmetry(graph, arcs), (Way.out_of,), equal_roots=True)
    assert trees is not None
    seconds = bound(graph, Collective.all_gather).seconds_per_byte
    assert float(1 / (seconds * MB)) == pytest.approx(trees.units, rel=1e-6)


def test_ports_and_nvlink_add_up() -> None:
    """B + W / g: what reaches the GPUs of a host over their NVLinks and its ports."""
    graph = graph_of(preset("dgx_h100", nodes=2))
    found = bound(graph, Collective.all_gather)
    assert found.bus_bytes_per_second == pytest.approx((450 + 400 / 8) * GB, rel=1e-6)
    assert found.cut is not None
    assert len(found.cut.inside) == 8
    assert found.cut.bytes_per_second == (8 * 450 + 400) * GB
