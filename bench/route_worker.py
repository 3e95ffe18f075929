"""One rank of `bench/namespaces.py`: times the library's collectives and our schedules, and what the links do.

    python bench/route_worker.py SETTINGS.json RANK

The ranks meet at a file; rank 0 writes what all of them measured.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from shaped_hosts import INTERFACE, graph

from launch.parent_death import die_with_parent
from orchestrator.collectives.execute import Executor, Pieces
from topology.collectives import Collective
from topology.routing.menu import menu

_TIMEOUT: Final = timedelta(seconds=120)
_ELEMENT_BYTES: Final = 4
_QUIET_SECONDS: Final = 0.02  # until the last packets are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Runs of one way to carry out a collective.

    Attributes:
        collective: which.
        way: `gloo`, or the algorithm of our schedule.
        size_bytes: M, as the schedules count it.
        piece_bytes: of our schedule; 0 for gloo.
        depth: of our schedule; 0 for gloo.
        seconds: of each run, the slowest rank's.
        egress_bytes: median over the runs of what the busiest host sent.
        pool_bytes: of the buffers that rank 0 keeps.
    """

    collective: str
    way: str
    size_bytes: int
    piece_bytes: int
    depth: int
    seconds: tuple[float, ...]
    egress_bytes: int
    pool_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Something to time: what it needs afresh for each run, and what it does with that."""

    prepare: Callable[[], torch.Tensor]
    action: Callable[[torch.Tensor], object]


class Clock:
    """Times what all ranks do together, in a process group that nothing else uses."""

    def __init__(self, runs: int) -> None:
        """Make the group; all ranks call this."""
        self._group, self._runs = dist.new_group(timeout=_TIMEOUT), runs

    def time(self, ways: Sequence[Way]) -> list[tuple[tuple[float, ...], int]]:
        """Seconds of each run and median egress bytes of each way, the largest over the ranks.

        The ways take turns, so that other work on the machine meets all of them alike. A first turn is left out.
        """
        turns = [[self._once(way) for way in ways] for _ in range(self._runs + 1)][1:]
        by_way = [[turn[at] for turn in turns] for at in range(len(ways))]
        return [(tuple(seconds for seconds, _ in runs), int(median(sent for _, sent in runs))) for runs in by_way]

    def _once(self, way: Way) -> tuple[float, int]:
        given = way.prepare()
        dist.barrier(group=self._group)
        before, begin = _sent_bytes(), time.perf_counter()
        way.action(given)
        taken = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=self._group)
        time.sleep(_QUIET_SECONDS)
        sent = torch.tensor([_sent_bytes() - before])
        dist.all_reduce(sent, op=dist.ReduceOp.MAX, group=self._group)
        return float(taken), int(sent)


def _sent_bytes() -> int:
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])
    return 0


def main() -> None:
    """Measure what the settings ask for."""
    die_with_parent()
    settings, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    torch.set_num_threads(1)  # ranks share the cores
    size = settings["hosts"] * settings["slots"]
    dist.init_process_group(
        "gloo", init_method=f"file://{settings['meet']}", rank=rank, world_size=size, timeout=_TIMEOUT
    )
    clock = Clock(settings["runs"])
    found = [asdict(timed) for timed in _collectives(settings, clock)]
    links = list(_links(settings, clock)) if settings["links"] else []
    if rank == 0:
        Path(settings["answer"]).write_text(json.dumps({"collectives": found, "links": links}))
    dist.barrier()
    dist.destroy_process_group()


def _collectives(settings: dict[str, Any], clock: Clock) -> Iterator[Timed]:
    where = graph(settings["hosts"], settings["slots"], settings["bits_per_second"])
    for name, ways in settings["ways"].items():
        collective = Collective(name)
        schedules = {entry.algorithm: entry.schedule for entry in menu(where, collective) if entry.schedule}
        executors = []
        for way in ways:
            if way["algorithm"] not in schedules:
                raise SystemExit(f"no {name} called {way['algorithm']!r}, only {', '.join(schedules)}")
            pieces = Pieces(piece_bytes=way["piece_bytes"], depth=way["depth"], most=way["most"])
            executors.append((way, Executor(schedules[way["algorithm"]], dist.new_group(timeout=_TIMEOUT), pieces)))
        for size_bytes in settings["sizes"]:
            yield from _of_size(collective, size_bytes, executors, clock)
        for _, executor in executors:
            executor.close()


def _of_size(
    collective: Collective, size_bytes: int, executors: list[tuple[dict[str, Any], Executor]], clock: Clock
) -> Iterator[Timed]:
    elements = size_bytes // _ELEMENT_BYTES
    for _, executor in executors:
        _check(executor, elements)
    timed = clock.time([_library(collective, elements), *(_ours(executor, elements) for _, executor in executors)])
    named: list[tuple[dict[str, Any], int]] = [({"algorithm": "gloo", "piece_bytes": 0, "depth": 0}, 0)]
    named += [(way, executor.pool_bytes) for way, executor in executors]
    for (way, pool_bytes), (seconds, egress) in zip(named, timed, strict=True):
        yield Timed(
            collective=collective.value,
            way=way["algorithm"],
            size_bytes=size_bytes,
            piece_bytes=way["piece_bytes"],
            depth=way["depth"],
            seconds=seconds,
            egress_bytes=egress,
            pool_bytes=pool_bytes,
        )


def _library(collective: Collective, elements: int) -> Way:
    rank, size = dist.get_rank(), dist.get_world_size()
    part = elements // size
    data, result = torch.randn(elements), torch.empty(elements)
    actions: dict[Collective, Callable[[torch.Tensor], object]] = {
        Collective.all_reduce: dist.all_reduce,
        Collective.all_gather: lambda x: dist.all_gather_into_tensor(result, x[rank * part : (rank + 1) * part]),
        Collective.reduce_scatter: lambda x: dist.reduce_scatter_tensor(result[:part], x),
        Collective.all_to_all: lambda x: dist.all_to_all_single(result, x),
    }
    return Way(prepare=data.clone, action=actions[collective])


def _ours(executor: Executor, elements: int) -> Way:
    data = torch.randn(elements)
    result = torch.empty(elements) if executor.schedule.collective is Collective.all_to_all else None
    return Way(prepare=data.clone, action=lambda x: executor.run(x, result))


def _check(executor: Executor, elements: int) -> None:
    """Compare with the library's result on whole numbers, which have no rounding."""
    rank, size = dist.get_rank(), dist.get_world_size()
    part, kind = elements // size, executor.schedule.collective
    data = (torch.arange(elements) % 97 + rank).float()
    ours, theirs, result = data.clone(), data.clone(), torch.empty(elements)
    if kind is Collective.all_to_all:
        executor.run(data, result)
        dist.all_to_all_single(theirs, data)
        ours = result
    elif kind is Collective.all_gather:
        executor.run(ours)
        dist.all_gather_into_tensor(theirs, data[rank * part : (rank + 1) * part].clone())
    else:
        executor.run(ours)
        dist.all_reduce(theirs)
        if kind is Collective.reduce_scatter:
            ours, theirs = executor.block(ours), executor.block(theirs)
    if not torch.equal(ours, theirs):
        raise SystemExit(f"rank {rank}: {executor.schedule.algorithm} {kind.value} gives another result than gloo")


def _links(settings: dict[str, Any], clock: Clock) -> Iterator[dict[str, Any]]:
    """Messages from rank 0 to a rank of its host and to one of the next: alone, and one each way at once."""
    rank, slots = dist.get_rank(), settings["slots"]
    group = dist.new_group(timeout=_TIMEOUT)
    peers = {"memory": 1} if slots > 1 else {}
    if settings["hosts"] > 1:
        peers["network"] = slots
    for link, peer in peers.items():
        other = {0: peer, peer: 0}.get(rank)
        cases = [(size_bytes, both) for size_bytes in settings["link_sizes"] for both in (False, True)]
        ways = [
            Way(
                prepare=lambda size=size_bytes: torch.zeros(size, dtype=torch.uint8),  # type: ignore[misc]
                action=_exchange(group, other, both=both),
            )
            for size_bytes, both in cases
        ]
        for (size_bytes, both), (seconds, _) in zip(cases, clock.time(ways), strict=True):
            yield {"link": link, "size_bytes": size_bytes, "both_ways": both, "seconds": seconds}


def _exchange(group: dist.ProcessGroup, other: int | None, *, both: bool) -> Callable[[torch.Tensor], object]:
    def action(data: torch.Tensor) -> None:
        if other is None:
            return
        works = []
        if both or dist.get_rank() == 0:
            works.append(dist.isend(data, other, group))
        if both or dist.get_rank() != 0:
            works.append(dist.irecv(torch.empty_like(data), other, group))
        for work in works:
            if work is not None:
                work.wait()

    return action


if __name__ == "__main__":
    main()
