"""Islands, and schedules that exchange across them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset
from topology.routing.bound import bound
from topology.routing.hierarchical import hierarchical, leaders
from topology.routing.islands import Hops, hosts_of, islands_of, near_order
from topology.routing.ring import ring
from topology.schedule import Schedule

THREE = (Collective.all_gather, Collective.reduce_scatter, Collective.all_reduce)


def hosts_of_ranks(sizes: tuple[int, ...], wire: int = 25, memory: int = 2500) -> Graph:
    """Hosts of some CPU ranks, each with one NIC."""
    nodes = [
        Node(id=f"h{host}/cpu{at}", kind=NodeKind.device, host=f"h{host}")
        for host, size in enumerate(sizes)
        for at in range(size)
    ]
    size = len(nodes)
    ends: list[tuple[int, int, int, LinkClass]] = []
    network = size + len(sizes)
    rank = 0
    for host, count in enumerate(sizes):
        nodes.append(Node(id=f"h{host}/node0", kind=NodeKind.socket, host=f"h{host}"))
        ends += [(at, size + host, memory, LinkClass.memory) for at in range(rank, rank + count)]
        ends.append((size + host, network, wire, LinkClass.network))
        rank += count
    nodes.append(Node(id="net", kind=NodeKind.network))
    both = [*ends, *((b, a, units, link) for a, b, units, link in ends)]
    edges = tuple(Edge(tail=a, head=b, units=units, link=link) for a, b, units, link in both)
    return Graph(nodes=tuple(nodes), edges=edges, size=size)


def wire_shares(schedule: Schedule) -> set[Fraction]:
    """What part of M each NIC sends or receives."""
    edges = schedule.graph.edges
    return {
        seconds * (edges[at].units or 0)
        for at, seconds in schedule.edge_seconds_per_unit.items()
        if edges[at].link is LinkClass.network
    }


def test_leaders_send_each_byte_over_the_wire_once() -> None:
    graph = hosts_of_ranks((2, 2))
    assert wire_shares(leaders(graph, Collective.all_reduce)) == {Fraction(1)}
    assert wire_shares(leaders(graph, Collective.all_gather)) == {Fraction(1, 2)}
    assert wire_shares(ring(graph, Collective.all_reduce)) == {Fraction(3, 2)}


def test_the_leader_is_the_device_nearest_to_the_nic() -> None:
    # Two hosts of two sockets with a device each; the NIC is on the second one.
    nodes = [Node(id=f"h{at // 2}/d{at % 2}", kind=NodeKind.device, host=f"h{at // 2}") for at in range(4)]
    nodes += [Node(id=f"h{at // 2}/node{at % 2}", kind=NodeKind.socket, host=f"h{at // 2}") for at in range(4)]
    nodes.append(Node(id="net", kind=NodeKind.network))
    ends = [(at, 4 + at, 1000, LinkClass.pcie) for at in range(4)]
    ends += [(4, 5, 500, LinkClass.socket), (6, 7, 500, LinkClass.socket)]
    ends += [(5, 8, 100, LinkClass.network), (7, 8, 100, LinkClass.network)]
    both = [*ends, *((b, a, units, link) for a, b, units, link in ends)]
    edges = tuple(Edge(tail=a, head=b, units=units, link=link) for a, b, units, link in both)
    made = leaders(Graph(nodes=tuple(nodes), edges=edges, size=4), Collective.all_reduce)
    across = {(s.source, s.target) for s in made.sends if s.source // 2 != s.target // 2}
    assert across == {(1, 3), (3, 1)}


def test_three_hosts_exchange_round_or_directly_at_the_same_load() -> None:
    made = leaders(hosts_of_ranks((2, 2, 2)), Collective.all_reduce)
    assert wire_shares(made) == {Fraction(4, 3)}
    assert [phase.name for phase in made.phases] == [
        "sum inside every island (round a ring)",
        "sum across 3 islands (directly)",
        "exchange across 3 islands (directly)",
        "broadcast inside every island (round a ring)",
    ]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4).map(tuple),
    collective=st.sampled_from(THREE),
    num_across=st.integers(1, 4),
)
@settings(max_examples=20)
def test_uneven_hosts_and_any_number_across(sizes: tuple[int, ...], collective: Collective, num_across: int) -> None:
    graph = hosts_of_ranks(sizes)
    # That it can be made at all is the proof that it delivers.
    made = hierarchical(graph, collective, hosts_of(graph), num_across=num_across)
    across = {s.source for s in made.sends if graph.hosts[s.source] != graph.hosts[s.target]}
    assert len(across) == len(sizes) * min(num_across, *sizes)
    assert made.phases[-1].last == made.num_steps - 1
    if collective is not Collective.all_reduce:
        # Each host's parts leave it once for every other host, in whatever way the ranks are spread.
        out = max(wire_shares(made))
        assert out >= max(Fraction(sum(sizes) - size, sum(sizes)) for size in sizes)


@pytest.mark.parametrize("collective", THREE)
@pytest.mark.parametrize(
    ("name", "nodes"), [("dgx_h100", 4), ("p5", 2), ("p4d", 2), ("h100_nvl_x8", 1), ("h100_nvl_x8", 4)]
)
def test_hosts_with_a_nic_for_each_device_come_near_the_bound(name: str, nodes: int, collective: Collective) -> None:
    graph = graph_of(preset(name, nodes=nodes))
    made = hierarchical(graph, collective)
    assert float(bound(graph, collective).seconds_per_byte) / made.overlapped_seconds_per_byte > 0.93


def test_each_nic_of_a_device_carries_a_part() -> None:
    graph = graph_of(preset("p5", nodes=2))
    assert len(Hops(graph).lanes(0, 8)) == 4
    assert len(Hops(graph).lanes(0, 1)) == 1
    made = hierarchical(graph, Collective.all_gather)
    assert len(made.chunks) == 4 * 16


def test_a_cluster_of_128_devices_is_proved() -> None:
    made = leaders(graph_of(preset("dgx_h100", nodes=16)), Collective.all_reduce)
    assert made.num_steps == 2 * (7 + 15)


def test_islands_are_what_fast_links_join() -> None:
    def islands(name: str, nodes: int = 1) -> tuple[tuple[int, ...], ...]:
        return islands_of(graph_of(preset(name, nodes=nodes)))

    assert islands("a100_pcie_pairs_x4") == ((0, 1), (2, 3))
    assert islands("dgx_h100", 2) == (tuple(range(8)), tuple(range(8, 16)))
    assert islands("pcie_l40s_x8") == (tuple(range(8)),)
    assert islands("pcie_l40s_x8", 2) == (tuple(range(8)), tuple(range(8, 16)))
    assert len(islands("gb200_nvl72")) == 18  # one NVLink domain: its hosts


def test_neighbours_stand_together() -> None:
    graph = graph_of(preset("pcie_l40s_x8", nodes=2))
    ids = [graph.device_ids[at * 3 % 16] for at in range(16)]
    mixed = graph_of(preset("pcie_l40s_x8", nodes=2), ids)
    walked = [ids[rank] for rank in near_order(Hops(mixed))]
    at = {name: number for number, name in enumerate(graph.device_ids)}
    assert {at[name] for name in walked[:4]} == {0, 1, 2, 3}  # one PCIe switch
    assert {at[name] for name in walked[:8]} == set(range(8))


def test_one_island_or_wrong_islands_are_refused() -> None:
    single = graph_of(preset("pcie_l40s_x8"))
    with pytest.raises(TopologyError, match="one island only"):
        hierarchical(single, Collective.all_gather)
    with pytest.raises(TopologyError, match="which are not each of the 8 once"):
        leaders(single, Collective.all_gather, ((0, 1, 2), (2, 3, 4)))
    with pytest.raises(TopologyError, match="does not carry out"):
        leaders(single, Collective.all_to_all)
