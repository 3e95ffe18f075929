"""The capacity graph of a group: which wires count, in which direction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of, link_class
from topology.model import Link, SwitchKind
from topology.network import NetworkSpec
from topology.presets import preset
from topology.units import GB


def kinds(graph: Graph) -> set[LinkClass]:
    """Which wires a graph has."""
    return {edge.link for edge in graph.edges}


def test_nvlink_alone_where_it_joins_the_group() -> None:
    graph = graph_of(preset("dgx_a100"))
    assert kinds(graph) == {LinkClass.nvlink}
    assert {edge.units for edge in graph.edges} == {300_000}


def test_pcie_counts_where_nvlink_leaves_gaps() -> None:
    pairs = preset("a100_pcie_pairs_x4")
    assert kinds(graph_of(pairs)) >= {LinkClass.nvlink, LinkClass.pcie}
    one_pair = [device.id for device in pairs.gpus[:2]]
    assert kinds(graph_of(pairs, one_pair)) == {LinkClass.nvlink}


def test_pcie_of_nvlinked_hosts_leads_to_the_network_only() -> None:
    graph = graph_of(preset("dgx_h100", nodes=2))
    ahead: dict[int, list[int]] = {}
    for edge in graph.edges:
        if edge.link is not LinkClass.nvlink and edge.link is not LinkClass.network:
            ahead.setdefault(edge.tail, []).append(edge.head)
    reached, waiting = {0}, [0]
    while waiting:
        for head in ahead.get(waiting.pop(), []):
            if head not in reached:
                reached.add(head)
                waiting.append(head)
    ends = {graph.nodes[at].kind for at in reached if at}
    assert NodeKind.nic in ends
    assert NodeKind.device not in ends


def test_gpus_without_copies_meet_in_host_memory_only() -> None:
    graph = graph_of(preset("pcie_4090x8"))
    assert graph.through_host == {"pcie8"}
    turns = [
        node.id
        for at, node in enumerate(graph.nodes)
        if node.kind in (NodeKind.pcie, NodeKind.bridge)
        and any(edge.head == at and edge.tail < graph.size for edge in graph.edges)
        and any(edge.tail == at and edge.head < graph.size for edge in graph.edges)
    ]
    assert turns == []


def test_order_of_devices_is_the_rank_order() -> None:
    machine = preset("dgx1_v100")
    chosen = [machine.gpus[5].id, machine.gpus[1].id]
    assert graph_of(machine, chosen).device_ids == tuple(chosen)


def test_other_devices_are_not_in_the_graph() -> None:
    machine = preset("dgx1_v100")
    graph = graph_of(machine, [gpu.id for gpu in machine.gpus[:4]])
    assert graph.size == 4
    assert sum(node.kind is NodeKind.device for node in graph.nodes) == 4


def test_measured_rates_replace_those_of_the_topology() -> None:
    machine = preset("2x24gb-pcie")
    link = next(link for link in machine.links if link.kind == "PCIe")
    graph = graph_of(machine, measured={frozenset((link.a, link.b)): 11 * GB})
    found = {edge.units for edge in graph.edges if edge.source == "measured"}
    assert found == {11_000}


def test_dark_links_carry_nothing() -> None:
    machine = preset("4xv100-16gb")
    dark = replace(machine.links[0], bytes_per_second=0.0)
    assert dark.kind.startswith("NV")
    graph = graph_of(replace(machine, links=(dark, *machine.links[1:])))
    names = {frozenset((graph.nodes[e.tail].id, graph.nodes[e.head].id)) for e in graph.edges}
    assert frozenset((dark.a, dark.b)) not in names


def test_cpu_slots_meet_in_host_memory() -> None:
    graph = graph_of(preset("cpu"), host_copy_bytes_per_second=7 * GB)
    assert kinds(graph) == {LinkClass.memory}
    assert {edge.units for edge in graph.edges} == {7000}


def test_slow_networks_keep_their_rate() -> None:
    machine = preset("dgx_h100", nodes=2, network=NetworkSpec(bytes_per_second=25e6))
    units = {edge.units for edge in graph_of(machine).edges if edge.link is LinkClass.network}
    assert units == {25}


def test_hosts_without_a_network_are_told() -> None:
    machine = preset("dgx_h100", nodes=2)
    lone = {switch.id for switch in machine.switches if switch.kind is SwitchKind.network}
    cut = replace(
        machine,
        links=tuple(link for link in machine.links if not {link.a, link.b} & lone),
        switches=tuple(switch for switch in machine.switches if switch.id not in lone),
    )
    with pytest.raises(TopologyError, match="network"):
        graph_of(cut)


def test_unknown_and_doubled_devices_are_told_together() -> None:
    machine = preset("dgx1_v100")
    first = machine.gpus[0].id
    with pytest.raises(TopologyError) as caught:
        graph_of(machine, [first, first, "GPU-none"])
    assert len(caught.value.problems) == 2


def test_a_graph_of_other_nodes_is_refused() -> None:
    nodes = (Node(id="a", kind=NodeKind.device), Node(id="s", kind=NodeKind.nvswitch))
    edge = Edge(tail=0, head=7, units=1, link=LinkClass.nvlink)
    with pytest.raises(TopologyError, match="0 -> 7"):
        Graph(nodes=nodes, edges=(edge,), size=1)
    with pytest.raises(TopologyError, match="nvswitch"):
        Graph(nodes=nodes, edges=(), size=2)


def test_links_of_other_hosts_stay_out() -> None:
    machine = preset("dgx_h100", nodes=3)
    two = [gpu.id for host in machine.hosts[:2] for gpu in host.devices]
    hosts = {node.host for node in graph_of(machine, two).nodes} - {None}
    assert hosts == {machine.hosts[0].name, machine.hosts[1].name}


def test_a_virtual_link_counts_as_a_port() -> None:
    link = Link(a="x", b="y", kind="virtual", source="")
    assert link_class(link.kind) is LinkClass.port
