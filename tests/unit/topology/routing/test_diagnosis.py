from __future__ import annotations

import json
from dataclasses import replace

import pytest

from topology.collectives import Collective
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.model import Link
from topology.network import NetworkKind, NetworkSpec
from topology.presets import preset
from topology.routing.bound import bound
from topology.routing.cuts import Cut
from topology.routing.diagnosis import cut_to_json, describe

GATHER, EXCHANGE = Collective.all_gather, Collective.all_to_all
GEN4 = "table: PCIe Gen4 x16, PCI Express base specification"


def said(graph: Graph, collective: Collective = GATHER, **options: bool) -> str:
    cut = bound(graph, collective, **options).cut
    assert cut is not None
    return describe(graph, cut)


def drawn(name: str, nodes: int = 1, network: NetworkSpec | None = None) -> Graph:
    return graph_of(preset(name, nodes=nodes, network=network))


def two_switches(uplink: int = 31_508, source: str = GEN4) -> Graph:
    """Four GPUs, two on each PCIe switch, both below one bridge."""
    kinds = [*[NodeKind.device] * 4, NodeKind.pcie, NodeKind.pcie, NodeKind.bridge]
    ids = ["a", "b", "c", "d", "box/switch0", "box/switch1", "box/bridge0"]
    wires = [(0, 4, 31_508), (1, 4, 31_508), (2, 5, 31_508), (3, 5, 31_508), (4, 6, uplink), (5, 6, uplink)]
    return Graph(
        nodes=tuple(Node(id=name, kind=kind, host="box") for name, kind in zip(ids, kinds, strict=True)),
        edges=tuple(
            Edge(tail=tail, head=head, units=units, link=LinkClass.pcie, source=source)
            for a, b, units in wires
            for tail, head in ((a, b), (b, a))
        ),
        size=4,
    )


def test_devices_behind_one_uplink() -> None:
    text = "these 2 GPUs (0, 1) leave through one PCIe Gen4 x16 uplink box/switch0 -> box/bridge0, 31.5 GB/s"
    assert said(two_switches(), EXCHANGE) in (text, text.replace("0, 1", "2, 3").replace("switch0", "switch1"))


def test_names_of_devices_are_the_callers() -> None:
    graph = two_switches()
    edge = next(at for at, e in enumerate(graph.edges) if (e.tail, e.head) == (4, 6))
    cut = Cut(inside=(0, 1), edges=(edge,), bytes_per_second=31.508e9)
    assert "GPUs (3, 6)" in describe(graph, cut, ("3", "6", "0", "1"))


def test_an_assumed_rate_is_told() -> None:
    assert said(two_switches(source=f"unknown; assumed: {GEN4}"), EXCHANGE).endswith("31.5 GB/s assumed")


@pytest.mark.parametrize(
    ("name", "nodes", "text"),
    [
        ("dgx_h100", 1, "each GPU's NVLink to the NVSwitch, 450.0 GB/s"),
        ("cpu", 1, "each CPU slot's path through host memory, 2.5 GB/s"),
        ("dgx1_v100", 2, "each host's 4 network ports, together 50.0 GB/s"),
        ("pcie_4090x2", 1, "each GPU's PCIe Gen4 x16 link, 31.5 GB/s"),
    ],
)
def test_what_every_device_or_host_has(name: str, nodes: int, text: str) -> None:
    graph = drawn(name, nodes)
    assert said(graph) == text
    assert said(graph, Collective.reduce_scatter) == text


def test_a_socket_link() -> None:
    text = said(drawn("a100_pcie_pairs_x4"))
    assert text.startswith("the socket link pairs2/node0 - pairs2/node1, 44.8 GB/s: GPUs ")
    assert text.endswith(("GPUs 0, 1 on one side of it", "GPUs 2, 3 on one side of it"))


def test_several_kinds_of_link_are_listed_the_widest_first() -> None:
    text = said(drawn("dgx1_v100"), EXCHANGE)
    assert "2 NVLinks (GPU 0 -> GPU 4, GPU 1 -> GPU 5) of 50.0 GB/s each (100.0 GB/s) and 2 NVLinks" in text
    assert text.startswith("these 4 GPUs (0-3) leave through ")
    assert text.endswith("together 150.0 GB/s")


def test_the_ports_of_the_slower_host() -> None:
    assert said(drawn("mixed_a100_h100"), EXCHANGE) == "the 8 network ports of host dgx-a100, together 200.0 GB/s"


def test_devices_of_one_host_that_are_alike() -> None:
    """Four GPUs of two hosts on one NVSwitch; those of the second host have half the links."""
    nodes = [Node(id=f"gpu{at}", kind=NodeKind.device, host="ab"[at // 2]) for at in range(4)]
    nodes.append(Node(id="switch", kind=NodeKind.nvswitch))
    ends = [(at, 4, (100_000, 50_000)[at // 2]) for at in range(4)]
    edges = [Edge(tail=t, head=h, units=u, link=LinkClass.nvlink) for a, b, u in ends for t, h in ((a, b), (b, a))]
    graph = Graph(nodes=tuple(nodes), edges=tuple(edges), size=4)
    assert said(graph) == "each GPU of host b: NVLink to the NVSwitch, 50.0 GB/s"


def test_nvlinks_and_ports_of_a_host_together() -> None:
    text = said(drawn("dgx_h100", 2))
    assert text.startswith("these 8 GPUs (0-7 of host dgx-h100-")
    assert ") are reached through 8 NVLinks from the NVSwitch of 450.0 GB/s each (3600.0 GB/s) and 8 network" in text
    assert text.endswith("together 4000.0 GB/s")


def test_many_hosts_are_counted() -> None:
    spec = NetworkSpec(kind=NetworkKind.leaf_spine, hosts_per_leaf=8, oversubscription=4)
    text = said(drawn("dgx_h100", 16, spec), EXCHANGE)
    assert text.startswith("these 64 GPUs of 8 hosts, dgx-h100-")
    assert "one uplink between network switches network/leaf" in text


def test_a_slow_direction_is_told() -> None:
    graph = two_switches(uplink=90_000)
    slow = tuple(replace(e, units=1000) if (e.tail, e.head) == (4, 0) else e for e in graph.edges)
    assert said(replace(graph, edges=slow)) == ("GPU 0: PCIe Gen4 x16 link box/switch0 -> GPU 0, 1.0 GB/s, inward")


def test_no_single_cut() -> None:
    text = said(drawn("h100_nvl_x8"), EXCHANGE, relay=False)
    assert text.startswith("no one cut, but ")
    assert "PCIe Gen5 x16" in text


def test_json_names_the_smaller_side_and_survives() -> None:
    graph = drawn("dgx1_v100")
    cut = bound(graph, GATHER).cut
    assert cut is not None
    told = json.loads(json.dumps(cut_to_json(graph, cut)))
    assert len(cut.inside) == 7
    assert told["devices"] == [graph.nodes[at].id for at in range(8) if at not in cut.inside]
    assert {link["b"] for link in told["links"]} == set(told["devices"])
    assert {link["kind"] for link in told["links"]} == {"NVLink"}
    assert sum(link["bytes_per_second"] for link in told["links"]) == told["bytes_per_second"] == 150e9
    assert told["text"] == describe(graph, cut)


def test_halves_of_a_switch_have_its_name() -> None:
    """Links of a machine, as the topology names their ends: also where the graph splits a switch in two."""
    machine = preset("dgx_h100", nodes=2)
    known = {end for link in machine.links for end in (link.a, link.b)}
    graph = graph_of(machine)
    for at in range(len(graph.edges)):
        cut = Cut(inside=(0,), edges=(at,), bytes_per_second=1e9)
        (link,) = cut_to_json(graph, cut)["links"]
        assert {link["a"], link["b"]} <= known


def test_a_slower_link_of_one_device_is_not_everyones() -> None:
    machine = preset("dgx_h100")
    first = machine.gpus[0].id
    links = tuple(
        Link(a=x.a, b=x.b, kind=x.kind, source="measured", bytes_per_second=100e9) if first in (x.a, x.b) else x
        for x in machine.links
    )
    assert said(graph_of(replace(machine, links=links))) == "GPU 0: NVLink to the NVSwitch, 100.0 GB/s"
