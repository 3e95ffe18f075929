"""Two trees that complement each other, few steps, both halves busy."""

from __future__ import annotations

from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import graph_of
from topology.presets import preset
from topology.routing.double_tree import binary_parents, double_tree, mirrored_parents


def depth_of(parents: list[int], at: int) -> int:
    steps = 0
    while parents[at] != at:
        at, steps = parents[at], steps + 1
        assert steps <= len(parents)
    return steps


@given(size=st.integers(1, 200))
@settings(max_examples=40)
def test_trees_are_binary_and_no_node_is_inside_both(size: int) -> None:
    inner = []
    for parents in (binary_parents(size), mirrored_parents(size)):
        children = [[at for at in range(size) if parents[at] == node and at != node] for node in range(size)]
        assert sum(parents[at] == at for at in range(size)) == 1
        assert max(map(len, children)) <= 2
        assert max(depth_of(parents, at) for at in range(size)) <= ceil(log2(size + 1))
        inner.append({node for node in range(size) if children[node]})
    assert not inner[0] & inner[1]


def test_one_host_has_trees_over_its_devices() -> None:
    made = double_tree(graph_of(preset("dgx_h100")))
    assert made.num_steps == 6
    assert len(made.chunks) == 2


def test_hosts_are_entered_at_every_device_by_its_own_nic() -> None:
    graph = graph_of(preset("dgx_h100", nodes=4))
    made = double_tree(graph)
    across = {s.source % 8 for s in made.sends if graph.hosts[s.source] != graph.hosts[s.target]}
    assert across == set(range(8))
    assert all(s.source % 8 == s.target % 8 for s in made.sends if graph.hosts[s.source] != graph.hosts[s.target])
    # One pair of trees enters by one NIC of eight.
    single = double_tree(graph, num_pairs=1)
    assert single.overlapped_seconds_per_byte > 4 * made.overlapped_seconds_per_byte


def test_each_nic_of_a_device_carries_a_part() -> None:
    graph = graph_of(preset("p5", nodes=2))
    made = double_tree(graph)
    nics = {at for s in made.sends for at in s.path if "nic" in graph.nodes[graph.edges[at].head].kind.value}
    assert len(nics) == 2 * 64  # into every NIC of both hosts, from its device and from the network


def test_steps_grow_with_the_logarithm_of_hosts() -> None:
    steps = [double_tree(graph_of(preset("gh200", nodes=nodes))).num_steps for nodes in (4, 16, 64)]
    assert steps == [4, 8, 12]


def test_only_an_all_reduce_is_done() -> None:
    for collective in (Collective.all_gather, Collective.reduce_scatter, Collective.all_to_all):
        with pytest.raises(TopologyError, match="does not carry out"):
            double_tree(graph_of(preset("gh200", nodes=2)), collective)
