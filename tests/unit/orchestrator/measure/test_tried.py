"""Which ways are timed on a group, and what becomes of the seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.measure.serve import Entry
from orchestrator.measure.tried import Trial, trials
from topology.collectives import Collective
from topology.graph import Graph, graph_of
from topology.presets import preset
from topology.routing.duration import duration
from topology.routing.software import GLOO, NCCL, Runner


def _played(graph: Graph, seconds: Callable[[Trial], float]) -> tuple[list[Trial], list[Entry]]:
    """What is tried, and noted, when each takes so long."""
    entries: list[Entry] = []
    tried: list[Trial] = []
    mine = trials(graph, GLOO, entries)
    trial = next(mine, None)
    while trial is not None:
        tried.append(trial)
        try:
            trial = mine.send([seconds(trial)] * 3)
        except StopIteration:
            trial = None
    return tried, entries


def _modelled(trial: Trial) -> float:
    return duration(trial.way, trial.nbytes).seconds


def test_where_the_model_is_right_one_schedule_of_a_size_is_enough() -> None:
    tried, entries = _played(graph_of(preset("cpu")), _modelled)
    assert len(tried) == len(entries)
    assert [entry.value for entry in entries] == pytest.approx([1.0] * len(entries))
    ours = [(one.way.collective, one.nbytes) for one in tried if one.way.runner is Runner.executor]
    assert len(ours) == len(set(ours))
    library = {(one.way.collective, one.nbytes) for one in tried if one.way.runner is Runner.builtin}
    assert len(library) == 4 * 6
    assert tried[0].nbytes == 4 << 20, "the most telling size comes first"


def test_where_a_schedule_disappoints_the_next_ones_are_tried() -> None:
    graph = graph_of(preset("cpu"))
    tried, entries = _played(graph, lambda trial: 5 * _modelled(trial))
    here = [one for one in tried if (one.way.collective, one.nbytes) == (Collective.all_reduce, 4 << 20)]
    ours = [_modelled(one) for one in here if one.way.runner is Runner.executor]
    assert 1 < len(ours) <= 3
    assert ours == sorted(ours)
    assert [entry.value for entry in entries] == pytest.approx([5.0] * len(entries))
    assert {entry.name.rpartition(".")[2] for entry in entries} == {"2"}


def test_what_takes_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.measure.tried._MOST_SECONDS", 0.01)
    tried, _ = _played(graph_of(preset("cpu")), _modelled)
    assert {one.nbytes for one in tried} >= {4 << 10, 64 << 10, 512 << 10}
    assert 64 << 20 not in {one.nbytes for one in tried}
    assert max(map(_modelled, tried)) <= 0.01
    assert {one.runs for one in tried} == {9}


def test_what_nccl_does_itself_is_not_tried() -> None:
    mine = trials(graph_of(preset("8xa100-80gb")), NCCL, [])
    assert next(mine).way.runner is Runner.executor
