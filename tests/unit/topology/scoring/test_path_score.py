"""The score of one copy: way, narrowest wire, latency, sharing, and the words."""

from __future__ import annotations

import math

import pytest

from topology.errors import TopologyError
from topology.graph import Edge, Graph, LinkClass, Node, NodeKind, graph_of
from topology.presets import preset
from topology.scoring.copy_rules import CopyRules, CopyWay, copy_rules, level_of, way_of
from topology.scoring.latencies import LATENCIES, STAGING
from topology.scoring.path_score import PathScore, edge_name, path_score

MIB64 = 64 << 20


def score(name: str, source: int, target: int, *, nodes: int = 1, nbytes: int = MIB64) -> PathScore:
    topology = preset(name, nodes=nodes)
    return path_score(graph_of(topology), source, target, nbytes, rules=copy_rules(topology))


def two_switches(*, uplink: int | None = 16_000) -> Graph:
    """Two devices on each of two PCIe switches, which a wire joins."""
    ends = [(0, 4, 32_000), (1, 4, 32_000), (2, 5, 32_000), (3, 5, 32_000), (4, 5, uplink)]
    return Graph(
        nodes=tuple(Node(id=f"n{at}", kind=NodeKind.device if at < 4 else NodeKind.pcie, host="h") for at in range(6)),
        edges=tuple(
            Edge(tail=a, head=b, units=units, link=LinkClass.pcie) for x, y, units in ends for a, b in ((x, y), (y, x))
        ),
        size=4,
    )


def test_the_time_is_latency_and_transfer_at_the_narrowest_wire() -> None:
    found = path_score(two_switches(), 0, 3, 16_000_000)
    assert found.level == "PXB"
    assert found.way is CopyWay.peer
    assert found.bytes_per_second == 16e9
    assert found.latency_seconds == pytest.approx(3 * LATENCIES[LinkClass.pcie].seconds)
    assert found.seconds == pytest.approx(1e-3 + found.latency_seconds)
    assert [edge_name(two_switches(), at) for at in found.bottleneck] == ["n4 -> n5 (PCIe)"]


def test_copies_that_share_a_wire_halve_it() -> None:
    found = path_score(two_switches(), 0, 3, 1)
    assert found.sharing is not None
    assert (found.sharing.copies, found.sharing.bytes_per_second) == (2, 8e9)
    assert found.busy_bytes_per_second == 8e9
    assert "2 copies at once share n4 -> n5 (PCIe): 8.0 GB/s each" in found.words
    near = path_score(two_switches(), 0, 1, 1)
    assert near.sharing is None
    assert near.busy_bytes_per_second == near.bytes_per_second == 32e9
    wide = path_score(two_switches(uplink=64_000), 0, 3, 1)
    assert wide.sharing is None  # two copies fit


def test_an_unlimited_wire_limits_and_shares_nothing() -> None:
    nodes = tuple(Node(id=f"n{at}", kind=NodeKind.device, host="h") for at in range(2))
    edges = tuple(Edge(tail=a, head=1 - a, units=None, link=LinkClass.nvlink) for a in range(2))
    found = path_score(Graph(nodes=nodes, edges=edges, size=2), 0, 1, 1000)
    assert (found.bytes_per_second, found.bottleneck, found.sharing) == (math.inf, (), None)
    assert found.seconds == found.latency_seconds
    assert "no limit" in found.words


@pytest.mark.parametrize(
    ("name", "target", "level", "way", "rate"),
    [
        ("dgx_h100", 7, "NV", CopyWay.direct, 450.0),
        ("a100_pcie_pairs_x8", 1, "NV", CopyWay.direct, 300.0),
        ("a100_pcie_pairs_x8", 2, "NODE", CopyWay.host_memory, 31.508),
        ("a100_pcie_pairs_x8", 7, "SYS", CopyWay.host_memory, 31.508),
        ("pcie_l40s_x8", 1, "PIX", CopyWay.peer, 31.508),
        ("pcie_l40s_x8", 4, "SYS", CopyWay.host_memory, 31.508),
        ("pcie_4090x8", 1, "NODE", CopyWay.host_memory, 31.508),
        ("g5_12xlarge", 1, "PHB", CopyWay.host_memory, 31.508),
        ("cpu", 1, "NODE", CopyWay.memory, 2.5),
    ],
)
def test_ways_on_one_host(name: str, target: int, level: str, way: CopyWay, rate: float) -> None:
    found = score(name, 0, target)
    assert (found.level, found.way) == (level, way)
    assert found.bytes_per_second == pytest.approx(rate * 1e9)
    assert (found.latency_seconds > STAGING.seconds) == (way is CopyWay.host_memory)
    assert way.value in found.words


def test_geforce_cards_are_told_why_they_pass_host_memory() -> None:
    assert "the driver of these cards allows no peer copies over PCIe" in score("pcie_4090x2", 0, 1).words
    assert "limit for peer copies is PXB" in score("a100_pcie_pairs_x8", 0, 2).words


@pytest.mark.parametrize(
    ("name", "way", "word"),
    [
        ("dgx_h100", CopyWay.rdma, "only PCIe switches"),
        ("g5_12xlarge", CopyWay.staged_network, "is no RDMA port"),
        ("a100_pcie_pairs_x8", CopyWay.staged_network, "limit for GPU-direct RDMA is PXB"),
        ("gh200", CopyWay.rdma, "over C2C"),
    ],
)
def test_ways_between_hosts(name: str, way: CopyWay, word: str) -> None:
    topology = preset(name, nodes=2)
    graph = graph_of(topology)
    found = path_score(graph, 0, graph.size // 2, MIB64, rules=copy_rules(topology))
    assert (found.level, found.way) == ("NET", way)
    assert word in found.words


def test_amd_processors_with_two_gpus_pass_peer_copies() -> None:
    ends = [(0, 2, 32_000), (1, 2, 32_000)]
    graph = Graph(
        nodes=(
            *(Node(id=f"g{at}", kind=NodeKind.device, host="h") for at in range(2)),
            Node(id="root", kind=NodeKind.bridge, host="h"),
        ),
        edges=tuple(
            Edge(tail=a, head=b, units=u, link=LinkClass.pcie) for x, y, u in ends for a, b in ((x, y), (y, x))
        ),
        size=2,
    )
    path = (0, 3)
    assert level_of(graph, path) == "PHB"
    assert way_of(graph, path, CopyRules())[0] is CopyWay.host_memory
    assert way_of(graph, path, CopyRules(peers_through_cpu=frozenset({"h"})))[0] is CopyWay.peer


def test_rules_are_read_from_processor_ports_and_number_of_gpus() -> None:
    eight = copy_rules(preset("pcie_4090x8"))
    assert eight.peers_through_cpu == frozenset()  # AMD, but eight GPUs
    two = preset("pcie_4090x2")
    is_amd = "AMD" in (two.hosts[0].cpu_name or "")
    assert (two.hosts[0].name in copy_rules(two).peers_through_cpu) == is_amd
    assert copy_rules(preset("g5_12xlarge")).rdma_nics == frozenset()
    assert len(copy_rules(preset("p5")).rdma_nics or ()) == 32


def test_a_large_cluster_looks_at_the_two_hosts_alone() -> None:
    found = score("dgx_h100", 0, 8, nodes=12)
    assert found.bytes_per_second == 50e9
    assert found.sharing is None  # each GPU has a port


@pytest.mark.parametrize(
    ("source", "target", "nbytes", "problem"),
    [(0, 9, 1, "no rank 9"), (-1, 0, 1, "no rank -1"), (2, 2, 1, "rank 2 at both ends"), (0, 1, -5, "-5 bytes")],
)
def test_impossible_copies_are_refused(source: int, target: int, nbytes: int, problem: str) -> None:
    with pytest.raises(TopologyError, match=problem):
        path_score(two_switches(), source, target, nbytes)


def test_a_pair_that_only_a_relay_joins_is_refused() -> None:
    with pytest.raises(TopologyError, match="relay it through a device"):
        score("dgx1_v100", 0, 6)


def test_every_kind_of_wire_has_a_latency_with_a_source() -> None:
    assert set(LATENCIES) == set(LinkClass)
    assert all(item.source and item.seconds >= 0 for item in LATENCIES.values())
    # Measured without P2P against with it: 10.9 us and 1.12 us on one pair.
    assert 8e-6 < STAGING.seconds < 25e-6
    assert 0.36e-6 <= 2 * LATENCIES[LinkClass.pcie].seconds <= 1.12e-6
