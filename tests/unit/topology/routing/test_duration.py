"""The terms of a route's time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from topology.collectives import Collective
from topology.graph import Graph, graph_of
from topology.presets import preset
from topology.routing.duration import duration, pieces_moving, whole_moving
from topology.routing.menu import Entry, menu
from topology.routing.software import GLOO, NCCL, Runner, Software

_PLAIN = Software(name="gloo", launch_seconds=0.0, step_seconds=0.0, source="by hand")
_SIZE = 64 * 2**20


def entry(graph: Graph, kind: Collective, name: str, software: Software = _PLAIN) -> Entry:
    return next(x for x in menu(graph, kind, search=False, software=software) if x.algorithm == name)


def test_a_ring_of_three_or_more_sends_nobody_what_it_gets(slow_hosts: Callable[[int], Graph]) -> None:
    hindered = replace(_PLAIN, one_way_share=0.5)
    ring = entry(slow_hosts(2), Collective.all_gather, "ring")
    assert ring.cost.exchanges == 0
    assert whole_moving(replace(ring, software=hindered), _SIZE) == pytest.approx(whole_moving(ring, _SIZE))


@pytest.mark.parametrize(("share", "turn"), [(0.5, 1.0), (0.8, 0.25), (1.0, 0.0), (0.4, 1.0)])
def test_of_many_pairs_the_last_one_leaves_a_gap(slow_hosts: Callable[[int], Graph], share: float, turn: float) -> None:
    direct = entry(slow_hosts(2), Collective.all_to_all, "direct")
    pairs = direct.cost.exchanges_at_once
    assert pairs == 4  # two ranks of a host to two of the other
    hindered = replace(_PLAIN, one_way_share=share, many_ways_share=0.7)
    expected = whole_moving(direct, _SIZE) * (1 + turn / pairs)
    assert whole_moving(replace(direct, software=hindered), _SIZE) == pytest.approx(expected)


def test_a_pair_alone_takes_turns_for_the_whole_message() -> None:
    graph = graph_of(preset("cpu"))
    direct = entry(graph, Collective.all_to_all, "direct")
    assert (graph.size, direct.cost.exchanges_at_once) == (2, 1)
    hindered = replace(direct, software=replace(_PLAIN, one_way_share=0.5))
    assert whole_moving(hindered, _SIZE) == pytest.approx(2 * whole_moving(direct, _SIZE))


def test_a_gap_fills_the_bucket_again(slow_hosts: Callable[[int], Graph]) -> None:
    direct = entry(slow_hosts(2), Collective.all_to_all, "direct", replace(_PLAIN, one_way_share=0.5))
    bursty = replace(direct, software=replace(direct.software, burst_seconds=0.01))
    assert whole_moving(direct, _SIZE) - whole_moving(bursty, _SIZE) == pytest.approx(2 * 0.01)


def test_pieces_fill_the_gaps_of_many_pairs(slow_hosts: Callable[[int], Graph]) -> None:
    graph = slow_hosts(2)
    software = replace(_PLAIN, one_way_share=0.5, many_ways_share=0.8, piece_bytes=2**20)
    direct = entry(graph, Collective.all_to_all, "direct", software)
    cut = entry(graph, Collective.all_to_all, "direct in pieces", software)
    assert pieces_moving(cut, _SIZE, 64) < whole_moving(direct, _SIZE)
    assert pieces_moving(cut, _SIZE, 1) > pieces_moving(cut, _SIZE, 64)


def test_a_burst_is_taken_off_once_and_only_between_hosts(slow_hosts: Callable[[int], Graph]) -> None:
    bursty = replace(_PLAIN, burst_seconds=0.01)
    for graph, gain in ((slow_hosts(2), 0.01), (graph_of(preset("cpu")), 0.0)):
        with_, without = (entry(graph, Collective.all_gather, "ring", one) for one in (bursty, _PLAIN))
        assert whole_moving(without, _SIZE) - whole_moving(with_, _SIZE) == pytest.approx(gain, abs=1e-9)
        assert whole_moving(with_, 1) >= 0


def test_sums_take_what_the_busiest_rank_adds(slow_hosts: Callable[[int], Graph]) -> None:
    graph = slow_hosts(2)
    ring = entry(graph, Collective.all_reduce, "ring", replace(_PLAIN, sum_bytes_per_second=1e9))
    assert ring.cost.summed == pytest.approx(3 / 4)  # four ranks: each adds all parts but one
    plain = entry(graph, Collective.all_reduce, "ring")
    assert whole_moving(ring, _SIZE) - whole_moving(plain, _SIZE) == pytest.approx(0.75 * _SIZE / 1e9)
    assert entry(graph, Collective.all_gather, "ring").cost.summed == 0


def test_gloo_gathers_into_memory_of_its_own(slow_hosts: Callable[[int], Graph]) -> None:
    software = replace(_PLAIN, result_copy_bytes_per_second=1e9)
    for kind, name, more in (
        (Collective.all_gather, "ring", _SIZE / 1e9),
        (Collective.all_reduce, "ring", 0.0),
        (Collective.all_to_all, "direct", 0.0),
    ):
        with_, without = (entry(slow_hosts(2), kind, name, one) for one in (software, _PLAIN))
        assert whole_moving(with_, _SIZE) - whole_moving(without, _SIZE) == pytest.approx(more, abs=1e-9)


def test_a_reduce_scatter_over_gloo_takes_what_an_all_reduce_does(slow_hosts: Callable[[int], Graph]) -> None:
    graph = slow_hosts(2)
    scatter, reduce = (entry(graph, kind, "ring") for kind in (Collective.reduce_scatter, Collective.all_reduce))
    assert whole_moving(scatter, _SIZE) == pytest.approx(whole_moving(reduce, _SIZE))
    assert whole_moving(entry(graph, Collective.all_gather, "ring"), _SIZE) < whole_moving(scatter, _SIZE)


def test_the_executor_has_times_of_its_own(slow_hosts: Callable[[int], Graph]) -> None:
    graph = slow_hosts(2)
    software = replace(_PLAIN, launch_seconds=1.0, executor_launch_seconds=2.0, executor_step_seconds=0.0)
    assert duration(entry(graph, Collective.all_reduce, "ring", software), 4).seconds == pytest.approx(1, abs=1e-3)
    assert duration(entry(graph, Collective.all_reduce, "leaders", software), 4).seconds == pytest.approx(2, abs=1e-3)
    for one in (GLOO, NCCL):
        assert one.launch_of(Runner.executor) == one.launch_seconds
        assert one.step_of(Runner.executor) == one.step_seconds
