"""The choice by size: which route, how near the bound, and for groups of thousands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Graph, LinkClass, graph_of
from topology.model import Topology
from topology.network import NetworkSpec
from topology.presets import preset
from topology.routing.choose import choose, routes
from topology.routing.duration import duration
from topology.routing.menu import MOST_DEVICES, menu
from topology.routing.scale import cluster_menu, part_of
from topology.routing.software import Runner
from topology.units import GB, GIB, MIB

_ALL = tuple(Collective)


@pytest.mark.parametrize("collective", _ALL)
@pytest.mark.parametrize("name", ["dgx_h100", "dgx1_v100", "2x24gb-pcie", "pcie_l40s_x8", "a100_pcie_pairs_x4"])
def test_large_messages_come_near_the_bound(name: str, collective: Collective) -> None:
    entries = menu(graph_of(preset(name)), collective)
    chosen = choose(graph_of(preset(name)), collective, 16 * GIB)
    aim = 0.9 if collective is Collective.all_to_all else 0.95
    offers = (chosen.chosen, *chosen.alternatives)
    assert max(offer.of_bound for offer in offers) >= aim
    assert len(offers) == len(entries)


@pytest.mark.parametrize("collective", _ALL)
def test_no_offer_that_counts_sends_beats_the_bound(collective: Collective) -> None:
    route = choose(graph_of(preset("dgx_a100")), collective, GIB)
    for offer in (route.chosen, *route.alternatives):
        assert offer.of_bound <= 1 + 1e-9
        assert offer.seconds >= route.bound_seconds


def test_nvls_is_an_entry_of_its_own_and_may_beat_the_bound() -> None:
    route = choose(graph_of(preset("dgx_h100")), Collective.all_reduce, 16 * GIB)
    assert route.chosen.algorithm == "NVLS"
    assert route.chosen.of_bound > 1
    names = [offer.algorithm for offer in choose(graph_of(preset("dgx_a100")), Collective.all_reduce, GIB).alternatives]
    assert "NVLS" not in names


def test_times_grow_with_size_and_latency_decides_small_ones() -> None:
    found = routes(graph_of(preset("dgx_h100", nodes=2)), Collective.all_reduce, (1024, MIB, 64 * MIB, GIB))
    times = [route.chosen.seconds for route in found]
    assert times == sorted(times)
    fewest = min(offer.entry.cost.steps for offer in (found[0].chosen, *found[0].alternatives))
    assert found[0].chosen.entry.cost.steps <= 4 * fewest
    assert found[0].chosen.algorithm != found[-1].chosen.algorithm or found[0].chosen.protocol == "LL"


def test_slow_hosts_get_one_crossing_a_byte(slow_hosts: Callable[[int], Graph]) -> None:
    graph = slow_hosts(2)
    route = choose(graph, Collective.all_reduce, 64 * MIB)
    ring = next(offer for offer in route.alternatives if offer.algorithm == "ring")
    assert route.chosen.runner is Runner.executor
    assert route.chosen.of_bound == pytest.approx(1)
    assert ring.seconds / route.chosen.seconds >= 1.45


def test_every_library_route_has_protocols_on_gpus_only(slow_hosts: Callable[[int], Graph]) -> None:
    for entry in menu(graph_of(preset("dgx_a100")), Collective.all_gather):
        assert bool(entry.protocols) == (entry.runner is Runner.builtin)
    assert not any(entry.protocols for entry in menu(slow_hosts(2), Collective.all_gather))


def test_pieces_shorten_a_pipeline(slow_hosts: Callable[[int], Graph]) -> None:
    entry = next(e for e in menu(slow_hosts(2), Collective.all_reduce) if e.algorithm == "leaders")
    found = duration(entry, 64 * MIB)
    assert found.pieces > 1
    whole = 64 * MIB * entry.cost.stepwise
    assert 64 * MIB * entry.cost.overlapped < found.seconds < whole


def test_one_device_is_no_group() -> None:
    with pytest.raises(TopologyError, match="1 device"):
        choose(graph_of(preset("1x24gb")), Collective.all_reduce, MIB)


def clusters(nodes: int) -> Topology:
    return preset("dgx_h100", nodes=nodes, network=NetworkSpec())


@pytest.mark.parametrize("collective", _ALL)
def test_carried_over_costs_equal_those_of_the_whole(collective: Collective) -> None:
    """Nine hosts fit an explicit schedule: three and six must tell what they cost (trees are never quite even)."""
    graph = graph_of(preset("a100_pcie_pairs_x4", nodes=9))
    assert graph.size == 36
    carried = {entry.algorithm: entry for entry in cluster_menu(graph, collective)}
    whole = {entry.algorithm: entry for entry in menu(graph, collective, search=False)}
    assert carried.keys() == whole.keys()
    for name in whole.keys() - {"ring"}:  # the search for several rings is a heuristic
        assert carried[name].cost.overlapped == pytest.approx(whole[name].cost.overlapped, rel=0.1), name


def test_pairs_that_share_a_port_are_carried_over(slow_hosts: Callable[[int], Graph]) -> None:
    graph = slow_hosts(9)
    carried, whole = (
        {entry.algorithm: entry.cost.exchanges_at_once for entry in entries if entry.schedule}
        for entries in (cluster_menu(graph, Collective.all_to_all), menu(graph, Collective.all_to_all, search=False))
    )
    assert carried == whole
    assert whole["direct"] == 2 * 2 * 8


def test_a_thousand_hosts_have_a_route() -> None:
    graph = graph_of(clusters(20))
    assert graph.size > MOST_DEVICES
    entries = cluster_menu(graph, Collective.all_reduce)
    assert {"ring", "hierarchical", "double tree"} <= {entry.algorithm for entry in entries}
    route = choose(graph, Collective.all_reduce, GIB)
    assert route.chosen.seconds > route.bound_seconds * 0.9


def test_a_part_keeps_the_network() -> None:
    graph = graph_of(clusters(3))
    part = part_of(graph, graph.hosts[:1] + graph.hosts[-1:])
    assert part.size == 16
    assert any(edge.link is LinkClass.network for edge in part.edges)
    assert choose(part, Collective.all_gather, GIB).bound.bus_bytes_per_second > 300 * GB


def test_sparse_groups_of_a_cube_mesh_have_a_route() -> None:
    """Also those whose NVLinks join them only through one another, or not at all."""
    machine = preset("dgx1_v100")
    ids = [gpu.id for gpu in machine.gpus]
    for chosen in ((0, 1, 4), (0, 5, 6), (1, 4, 7), (0, 1, 2)):
        graph = graph_of(machine, [ids[at] for at in chosen])
        for collective in _ALL:
            assert choose(graph, collective, MIB).chosen.seconds > 0, (chosen, collective)
