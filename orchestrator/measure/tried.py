"""The library's collectives and the best schedules at several sizes, beside what the fitted model says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist

from orchestrator.measure.collectives import executor_of, library
from orchestrator.measure.serve import Entry
from orchestrator.measure.team import Team
from orchestrator.measure.use import TRIED
from topology.collectives import Collective
from topology.graph import Graph
from topology.routing.duration import duration, way_of
from topology.routing.menu import MOST_DEVICES, menu
from topology.routing.menu import Entry as Way
from topology.routing.software import Runner, Software
from topology.routing.tried import LIBRARY, Tried

_KIB: Final = 1 << 10
_SIZES: Final = (4 * _KIB, 64 * _KIB, 512 * _KIB, 4 * _KIB**2, 16 * _KIB**2, 64 * _KIB**2)
_LEAST_OF_EXECUTOR: Final = 512 * _KIB  # below, what is fixed decides, and that is fitted
_RUNS: Final = 3
_MOST_SECONDS: Final = 2.0  # of one run, by the model
_MOST_WAYS: Final = 3  # of the executor, for one collective and size
_SEARCHED: Final = 16  # ranks; above, ways that linear programs find take long to build
_ELEMENT_BYTES: Final = 4


def measure_tried(team: Team, graph: Graph, software: Software) -> list[Entry]:
    """Time what would be chosen and what the library does, until what would be chosen was timed.

    Args:
        team: that measures.
        graph: of the ranks, with measured links.
        software: with the fitted fixed times.
    """
    if graph.size > MOST_DEVICES:
        return []
    entries: list[Entry] = []
    for kind in Collective:
        ways = menu(graph, kind, search=graph.size <= _SEARCHED, software=software)
        for size in _SIZES:
            entries += _at_size(team, kind, size, ways)
    return entries


def _at_size(team: Team, kind: Collective, size: int, ways: Sequence[Way]) -> Iterator[Entry]:
    found: list[Tried] = []
    own = [way for way in ways if way.runner is Runner.builtin and way.software.name == "gloo"]
    # NCCL picks among its own by its own tables: whose time it took cannot be told.
    if own and _is_short(team, own[0], size):
        elements = size // _ELEMENT_BYTES // team.size * team.size
        seconds = team.seconds(*library(team, kind, elements), _RUNS)
        yield _entry(own[0], size, 1, seconds, found)
    ours = [way for way in ways if way.runner is Runner.executor and way.schedule]
    for _ in range(_MOST_WAYS if size >= _LEAST_OF_EXECUTOR else 0):
        named = _agreed(team, _best(ours, size, found))
        if named is None:
            return
        at, pieces = named
        yield _entry(ours[at], size, pieces, _timed(team, ours[at], size, pieces), found)


def _best(ours: Sequence[Way], size: int, found: Sequence[Tried]) -> tuple[int, int] | None:
    """The place of the schedule that would be taken, and its pieces; None where it was timed, or would take long."""
    times = [duration(replace(way, software=replace(way.software, tried=tuple(found))), size) for way in ours]
    at = min(range(len(ours)), key=lambda at: times[at].seconds, default=None)
    if at is None or times[at].seconds > _MOST_SECONDS or any(one.way == way_of(ours[at]) for one in found):
        return None
    return at, times[at].pieces


def _is_short(team: Team, way: Way, size: int) -> bool:
    return bool(_agreed(team, duration(way, size).seconds <= _MOST_SECONDS))


def _agreed(team: Team, value: Any) -> Any:  # noqa: ANN401 - plain values
    """What rank 0 says: another processor's last digit must not send ranks different ways."""
    held = [value]
    dist.broadcast_object_list(held, src=0, group=team.clock, device=torch.device("cpu"))
    return held[0]


def _timed(team: Team, way: Way, size: int, pieces: int) -> tuple[float, ...]:
    executor = executor_of(way, size, pieces)
    data = torch.zeros(size // _ELEMENT_BYTES, device=team.device)
    result = torch.empty_like(data) if way.collective is Collective.all_to_all else None
    try:
        return team.seconds(data.zero_, lambda: executor.run(data, result), _RUNS)
    finally:
        executor.close()
        dist.destroy_process_group(executor.group)


def _entry(way: Way, size: int, pieces: int, seconds: Sequence[float], found: list[Tried]) -> Entry:
    """Keep what a way took beside the model's time."""
    middle = median(seconds)
    by_model = duration(way, size).seconds
    name, ratio = way_of(way), middle / by_model
    found.append(Tried(collective=way.collective, way=name, nbytes=size, ratio=ratio))
    cut = "" if name == LIBRARY else f" in {pieces} pieces"
    return Entry(
        name=f"{TRIED}.{way.collective.value}.{name}.{size}",
        value=ratio,
        unit="share",
        repeats=len(seconds),
        spread=(max(seconds) - min(seconds)) / 2 / middle,
        how=f"{1e3 * middle:.3g} ms{cut}; by wires and fixed times {1e3 * by_model:.3g} ms",
    )
