"""The library's collectives and the best schedules at several sizes, beside what the fitted model says of them.

Rank 0 decides and sends what is tried, schedules too: the last digit of another processor must not part the ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

from orchestrator.measure.collectives import carried_out, library
from orchestrator.measure.serve import Entry
from orchestrator.measure.team import Team
from orchestrator.measure.use import tried_name
from topology.collectives import Collective
from topology.graph import Graph
from topology.routing.duration import duration, way_of
from topology.routing.menu import MOST_DEVICES, menu
from topology.routing.menu import Entry as Way
from topology.routing.software import Runner, Software
from topology.routing.tried import Tried

_KIB: Final = 1 << 10
# The most telling ones first: time may run out.
_SIZES: Final = (4 * _KIB**2, 64 * _KIB**2, 16 * _KIB**2, 512 * _KIB, 64 * _KIB, 4 * _KIB)
_LEAST_OF_EXECUTOR: Final = 512 * _KIB  # below, what is fixed decides, and that is fitted
# Runs of a trial, by the model's seconds of one: gloo's own all-to-all takes 1.0 or 1.3 times its time, by chance.
_RUNS: Final = ((0.5, 9), (2.0, 5), (math.inf, 2))
_MOST_SECONDS: Final = 6.0
_BUDGET_SECONDS: Final = 200.0  # of all
_MOST_WAYS: Final = 3  # of the executor, for one collective and size
_SEARCHED: Final = 16  # ranks; above, ways that linear programs find take long to build
_ELEMENT_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A way to be timed."""

    way: Way
    nbytes: int
    pieces: int = 1
    runs: int


Trials = Generator[Trial, Sequence[float], None]


def measure_tried(team: Team, graph: Graph, software: Software) -> list[Entry]:
    """Time what the library does, and schedules, the fastest by the model first, while the next may be faster.

    Args:
        team: that measures.
        graph: of the ranks, with measured links.
        software: with the fitted fixed times.

    Returns:
        What rank 0 found; nothing on the others.
    """
    entries: list[Entry] = []
    # In the model alone: a fit that rests on what was tried before would correct itself.
    mine = trials(graph, replace(software, tried=()), entries) if team.rank == 0 else None
    deadline = time.monotonic() + _BUDGET_SECONDS
    trial = None if mine is None else next(mine, None)
    while (trial := _agreed(team, trial if time.monotonic() < deadline else None)) is not None:
        seconds = _timed(team, trial)
        trial = None if mine is None else _after(mine, seconds)
    return entries


def trials(graph: Graph, software: Software, entries: list[Entry]) -> Trials:
    """Yield what is to be timed, take the seconds of its runs, and add to the entries."""
    if graph.size > MOST_DEVICES:
        return
    search = graph.size <= _SEARCHED
    ways = {kind: menu(graph, kind, search=search, software=software) for kind in Collective}
    for size in _SIZES:
        for kind in Collective:
            yield from _at_size(graph, ways[kind], size, entries)


def _at_size(graph: Graph, ways: Sequence[Way], size: int, entries: list[Entry]) -> Trials:
    # NCCL picks among its own by its own tables: whose time it took cannot be told.
    own = [way for way in ways if way.runner is Runner.builtin and way.schedule and way.software.name == "gloo"]
    for way in own[:1]:
        told = duration(way, size)
        if told.seconds <= _MOST_SECONDS:
            trial = Trial(way=way, nbytes=size, runs=_runs(told.seconds))
            entries.append(_entry(graph, trial, (yield trial)))
    if size < _LEAST_OF_EXECUTOR:
        return
    ours = [way for way in ways if way.runner is Runner.executor and way.schedule]
    fastest = _MOST_SECONDS
    for way in sorted(ours, key=lambda way: duration(way, size).seconds)[:_MOST_WAYS]:
        told = duration(way, size)
        if told.seconds >= fastest:  # the model leaves out what else takes time: it is not to be beaten by much
            return
        trial = Trial(way=way, nbytes=size, pieces=told.pieces, runs=_runs(told.seconds))
        seconds = yield trial
        fastest = min(fastest, median(seconds))
        entries.append(_entry(graph, trial, seconds))


def _runs(seconds: float) -> int:
    return next(runs for most, runs in _RUNS if seconds <= most)


def _after(mine: Trials, seconds: Sequence[float]) -> Trial | None:
    try:
        return mine.send(seconds)
    except StopIteration:
        return None


def _agreed(team: Team, trial: Trial | None) -> Trial | None:
    """What rank 0 says."""
    held = [trial]
    dist.broadcast_object_list(held, src=0, group=team.clock, device=torch.device("cpu"))
    return held[0]


def _timed(team: Team, trial: Trial) -> tuple[float, ...]:
    way, elements = trial.way, trial.nbytes // _ELEMENT_BYTES
    if way.runner is Runner.builtin:
        return team.seconds(*library(team, way.collective, elements // team.size * team.size), trial.runs)
    return carried_out(team, way, trial.nbytes, trial.pieces, trial.runs)


def _entry(graph: Graph, trial: Trial, seconds: Sequence[float]) -> Entry:
    """Keep what a way took beside the model's time."""
    way, middle = trial.way, median(seconds)
    by_model = duration(way, trial.nbytes).seconds
    tried = Tried(collective=way.collective, way=way_of(way), nbytes=trial.nbytes, ratio=middle / by_model)
    cut = "" if way.runner is Runner.builtin else f" in {trial.pieces} pieces"
    return Entry(
        name=tried_name(tried, graph),
        value=tried.ratio,
        unit="ratio",
        repeats=len(seconds),
        spread=(max(seconds) - min(seconds)) / 2 / middle,
        how=f"{1e3 * middle:.3g} ms{cut}; by wires and fixed times {1e3 * by_model:.3g} ms",
    )
