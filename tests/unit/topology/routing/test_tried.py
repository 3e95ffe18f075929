"""Ratios of what was timed to what the model says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.collectives import Collective
from topology.graph import Graph, graph_of
from topology.presets import preset
from topology.routing.choose import choose
from topology.routing.duration import duration, modelled, way_of
from topology.routing.menu import menu
from topology.routing.software import GLOO, NCCL, Runner
from topology.routing.tried import LIBRARY, Tried, ratio_of

_KIND = Collective.all_reduce


def _tried(way: str, nbytes: int, ratio: float, kind: Collective = _KIND) -> Tried:
    return Tried(collective=kind, way=way, nbytes=nbytes, ratio=ratio)


def test_between_two_sizes_it_goes_straight_in_logarithms_and_outside_it_stays() -> None:
    tried = (_tried("ring", 1 << 10, 4.0), _tried("ring", 1 << 20, 1.0))
    assert ratio_of(tried, _KIND, "ring", 1 << 10) == pytest.approx(4.0)
    assert ratio_of(tried, _KIND, "ring", 1 << 15) == pytest.approx(2.0)
    assert ratio_of(tried, _KIND, "ring", 1 << 30) == pytest.approx(1.0)
    assert ratio_of(tried, _KIND, "ring", 0) == pytest.approx(4.0)


def test_what_was_not_tried_is_like_the_others_of_the_executor() -> None:
    tried = (_tried("ring", 1 << 20, 2.0), _tried("trees", 1 << 20, 8.0), _tried(LIBRARY, 1 << 20, 100.0))
    assert ratio_of(tried, _KIND, "leaders", 1 << 20) == pytest.approx(4.0)
    assert ratio_of(tried, _KIND, LIBRARY, 1 << 20) == pytest.approx(100.0)
    assert ratio_of(tried[:2], _KIND, LIBRARY, 1 << 20) == 1.0
    assert ratio_of(tried, Collective.all_gather, "ring", 1 << 20) == 1.0
    assert ratio_of((), _KIND, "ring", 1 << 20) == 1.0


@given(
    points=st.dictionaries(st.integers(1, 2**40), st.floats(0.01, 100.0), min_size=1, max_size=6),
    nbytes=st.integers(1, 2**41),
)
def test_a_ratio_stays_between_those_that_were_timed(points: dict[int, float], nbytes: int) -> None:
    tried = tuple(_tried("ring", size, ratio) for size, ratio in points.items())
    found = ratio_of(tried, _KIND, "ring", nbytes)
    assert min(points.values()) * (1 - 1e-9) <= found <= max(points.values()) * (1 + 1e-9)


def test_a_size_that_was_timed_is_predicted_as_it_was(slow_hosts: Callable[[int], Graph]) -> None:
    graph, size = slow_hosts(2), 4 << 20
    for entry in menu(graph, _KIND, software=GLOO):
        software = replace(GLOO, tried=(_tried(way_of(entry), size, 1.5),))
        found = duration(replace(entry, software=software), size)
        assert found.seconds == pytest.approx(1.5 * modelled(entry, size).seconds)
        assert found.pieces == modelled(entry, size).pieces


def test_the_choice_follows_what_was_tried(slow_hosts: Callable[[int], Graph]) -> None:
    graph, size = slow_hosts(4), 64 << 20
    first = choose(graph, _KIND, size, software=GLOO)
    assert first.chosen.runner is Runner.executor
    slow = replace(GLOO, tried=(_tried(first.chosen.algorithm, size, 3.0), _tried(LIBRARY, size, 0.9)))
    second = choose(graph, _KIND, size, software=slow)
    assert second.chosen.runner is Runner.builtin
    assert second.chosen.seconds == pytest.approx(
        0.9 * next(offer.seconds for offer in first.alternatives if offer.runner is Runner.builtin)
    )


def test_nothing_tried_changes_nothing() -> None:
    graph = graph_of(preset("8xa100-80gb"))
    for entry in menu(graph, _KIND, software=NCCL):
        assert duration(entry, 1 << 20) == modelled(entry, 1 << 20)
