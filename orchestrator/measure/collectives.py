"""What collectives take: torch's own, and schedules carried out by the executor; and the fixed times they tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

from orchestrator.collectives.execute import Executor, Pieces
from orchestrator.measure.serve import Entry
from orchestrator.measure.software_fit import Run, SoftwareFit, fit_software
from orchestrator.measure.team import TIMEOUT, Team
from orchestrator.measure.use import (
    EXECUTOR_LAUNCH,
    EXECUTOR_MESSAGE,
    EXECUTOR_SHARE,
    EXECUTOR_STEP,
    LAUNCH,
    RESULT_COPY,
    STEP,
    SUM,
)
from topology.collectives import Collective
from topology.graph import Graph
from topology.routing.duration import pieces_moving, whole_moving
from topology.routing.menu import Entry as Way
from topology.routing.menu import menu
from topology.routing.software import Runner, Software

_RUNS: Final = 3
_SIZES: Final = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
# Bytes and pieces: what they take differs by messages at the same bytes, and by bytes at the same messages.
_CUTS: Final = ((64 << 10, 1), (64 << 10, 8), (64 << 10, 32), (1 << 20, 1), (1 << 20, 8), (8 << 20, 8))
_KINDS: Final = (Collective.all_reduce, Collective.all_gather, Collective.reduce_scatter, Collective.all_to_all)
_ELEMENT_BYTES: Final = 4
_SUMMED_BYTES: Final = 512 << 10
_COPIED_BYTES: Final = 48 << 20  # more than the C library keeps for use again


def measure_collectives(team: Team, graph: Graph, software: Software) -> list[Entry]:
    """Time collectives of several sizes, and fit the fixed times of the library and of the executor.

    Args:
        team: that measures.
        graph: of the ranks, with measured links.
        software: with the measured shares of links.

    Raises:
        ArithmeticError: too few runs to tell.
    """
    adding = _sum(team)
    entries, library, executor = [adding], [], []
    copying = None if team.is_cuda else _result_copy(team)
    if copying is not None:
        entries.append(copying)
        software = replace(software, result_copy_bytes_per_second=copying.value)
    software = replace(software, sum_bytes_per_second=adding.value)
    for kind in _KINDS:
        ways = menu(graph, kind, search=False, software=software)
        for size, seconds, run in _library(team, kind, ways):
            entries.append(_timed(f"{kind.value}.{software.name}.{size}", seconds))
            library.append(run)
        if kind is not Collective.reduce_scatter:
            for name, seconds, run in _executor(team, kind, ways):
                entries.append(_timed(name, seconds))
                executor.append(run)
    fit = fit_software(library)
    times = {LAUNCH: fit.launch_seconds, STEP: fit.step_seconds}
    entries += _fixed(times, fit, f"torch's own collectives over {software.name}")
    if executor:
        fit = fit_software(executor)
        times = {
            EXECUTOR_LAUNCH: fit.launch_seconds,
            EXECUTOR_STEP: fit.step_seconds,
            EXECUTOR_MESSAGE: fit.message_seconds,
        }
        entries += _fixed(times, fit, "schedules by sends and receives")
        share = min(1.0, fit.share)
        how = "of the links' rates in those runs: what copies within a host and sums cost the cores is in it"
        entry = Entry(name=EXECUTOR_SHARE, value=share, unit="share", repeats=fit.runs, spread=fit.error, how=how)
        entries.append(entry)
    return entries


def _timed(name: str, seconds: Sequence[float]) -> Entry:
    middle = median(seconds)
    spread = (max(seconds) - min(seconds)) / 2 / middle
    return Entry(name=name, value=middle, unit="s", repeats=len(seconds), spread=spread, how="slowest rank")


def _fixed(times: Mapping[str, float], fit: SoftwareFit, what: str) -> Iterator[Entry]:
    how = f"fit of {fit.runs} runs of {what}, which it meets within {fit.error:.0%} (median)"
    for name, value in times.items():
        if value > 0:
            yield Entry(name=name, value=value, unit="s", repeats=fit.runs, spread=fit.error, how=how)


def _library(team: Team, kind: Collective, ways: Sequence[Way]) -> Iterator[tuple[int, tuple[float, ...], Run]]:
    way = next((way for way in ways if way.runner is Runner.builtin and way.schedule), None)
    if way is None:
        return
    for size in _SIZES:
        elements = size // _ELEMENT_BYTES // team.size * team.size
        seconds = team.seconds(*library(team, kind, elements), _RUNS)
        run = Run(messages=way.cost.steps, moving_seconds=whole_moving(way, size), seconds=median(seconds))
        yield size, seconds, run


def library(team: Team, kind: Collective, elements: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """What prepares torch's own collective of that many elements, and what carries it out."""
    part = elements // team.size
    data = torch.zeros(elements, device=team.device)
    result = torch.empty_like(data)
    own = data[team.rank * part : (team.rank + 1) * part].clone()
    actions: dict[Collective, Callable[[], object]] = {
        Collective.all_reduce: lambda: dist.all_reduce(data),
        Collective.all_gather: lambda: dist.all_gather_into_tensor(result, own),
        Collective.reduce_scatter: lambda: dist.reduce_scatter_tensor(own, data),
        Collective.all_to_all: lambda: dist.all_to_all_single(result, data),
    }
    return data.zero_, actions[kind]


def _executor(team: Team, kind: Collective, ways: Sequence[Way]) -> Iterator[tuple[str, tuple[float, ...], Run]]:
    ours = [way for way in ways if way.runner is Runner.executor and way.schedule]
    if not ours:
        return
    way = min(ours, key=lambda way: way.cost.overlapped)
    for size, pieces in _CUTS:
        seconds = carried_out(team, way, size, pieces, _RUNS)
        messages, moving = way.cost.steps + pieces - 1, pieces_moving(way, size, pieces)
        handled = way.cost.messages * pieces
        run = Run(messages=messages, handled=handled, moving_seconds=moving, seconds=median(seconds))
        yield f"{kind.value}.{way.algorithm}.{size}.{pieces}", seconds, run


def carried_out(team: Team, way: Way, size: int, pieces: int, runs: int) -> tuple[float, ...]:
    """Seconds of each run of a schedule whose chunks are cut into so many pieces; all ranks call this.

    Its group goes afterwards: threads of gloo's groups wake up a hundred times a second, and those of many groups on
    many ranks slow down what is measured next.
    """
    executor = executor_of(way, size, pieces)
    data = torch.zeros(size // _ELEMENT_BYTES, device=team.device)
    result = torch.empty_like(data) if way.collective is Collective.all_to_all else None
    try:
        return team.seconds(data.zero_, lambda: executor.run(data, result), runs)
    finally:
        executor.close()
        dist.destroy_process_group(executor.group)


def executor_of(way: Way, size: int, pieces: int) -> Executor:
    """An executor that cuts the chunks of a route into so many pieces; all ranks call this."""
    if way.schedule is None:
        raise ValueError(f"{way.algorithm} has no schedule")
    largest = max(float(chunk.share) for chunk in way.schedule.chunks)
    cut = Pieces(piece_bytes=max(1, round(size * largest / pieces)))
    return Executor(way.schedule, dist.new_group(timeout=TIMEOUT), cut)


def _result_copy(team: Team) -> Entry:
    """Copying a result out of new memory on all ranks at once, as torch does after an all-gather over gloo."""
    data = torch.empty(_COPIED_BYTES, dtype=torch.uint8)

    def copy() -> None:
        fresh = torch.empty_like(data)
        fresh[:: os.sysconf("SC_PAGE_SIZE")] = (
            0  # what is received is written anyway; that its pages are new costs more
        )
        data.copy_(fresh)

    seconds = team.seconds(lambda: None, copy, 5)
    middle = median(seconds)
    spread = (max(seconds) - min(seconds)) / 2 / middle
    how = f"{_COPIED_BYTES >> 20} MiB out of new memory on {team.size} ranks at once"
    rate = _COPIED_BYTES / middle
    return Entry(name=RESULT_COPY, value=rate, unit="bytes/s", repeats=len(seconds), spread=spread, how=how)


def _sum(team: Team) -> Entry:
    """Adding up on all ranks at once, as they do when their messages have come."""
    one = torch.zeros(_SUMMED_BYTES // _ELEMENT_BYTES, device=team.device)
    other = torch.zeros_like(one)
    calls = 16

    def add() -> None:
        for _ in range(calls):
            one.add_(other)

    seconds = team.seconds(lambda: None, add, 5)
    middle = median(seconds)
    spread = (max(seconds) - min(seconds)) / 2 / middle
    how = f"additions of {_SUMMED_BYTES >> 10} KiB on {team.size} ranks at once"
    rate = calls * _SUMMED_BYTES / middle
    return Entry(name=SUM, value=rate, unit="bytes/s", repeats=len(seconds), spread=spread, how=how)
