"""What copies between ranks reach: latency, rates of links alone and together, and of ranks that send each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Final

import torch

from orchestrator.measure.attribute import LinkRate, Seen, attributed
from orchestrator.measure.flows import Kind, Speed, Timed, Trial, exchanges_of, speed_of, trials_of
from orchestrator.measure.serve import Entry
from orchestrator.measure.team import Team
from orchestrator.measure.use import BURST, HOST_COPY, MANY_WAYS, ONE_WAY, PIECE
from topology.graph import Graph
from topology.model import Topology

_RUNS: Final = 3
_EXCHANGE_RUNS: Final = 5  # which of two messages starts first is chance
_SMALL_BYTES: Final = 1 << 10
_TRY_BYTES: Final = 1 << 20
_AIM_SECONDS: Final = 0.4
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 64 << 20
_MOST_ON_GPU: Final = 256 << 20
_EXCHANGED_BYTES: Final = 4 << 20  # of each of many: as the parts of an all-to-all
_PIECES: Final = (4 << 20, 2 << 20, 1 << 20, 512 << 10)
_FULL: Final = 0.9
_MOST_SHARE: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What was measured: the one-way speeds, and the numbers for the file."""

    speeds: tuple[Speed, ...]
    entries: tuple[Entry, ...]


def measure_links(team: Team, hosts: Sequence[Sequence[int]], topology: Topology, graph: Graph) -> Links:
    """Time copies one way and both ways; all ranks call this and get the same.

    Args:
        team: that measures.
        hosts: ranks of each host.
        topology: of the hosts.
        graph: of the ranks' devices, in their order.

    Raises:
        ArithmeticError: the machine was too busy to tell a rate.
    """
    speeds = tuple(_speeds(team, hosts))
    seen = [Seen(flows=speed.test.flows, bytes_per_second=speed.bytes_per_second) for speed in speeds]
    entries = [_link_entry(rate, speeds) for rate in attributed(topology, graph, seen)]
    entries += _inside(speeds)
    entries += _between(speeds)
    entries += _exchanges(team, hosts, speeds)
    if team.is_cuda:
        entries += _host_to_device(team)
    return Links(speeds=speeds, entries=tuple(entries))


def _speeds(team: Team, hosts: Sequence[Sequence[int]]) -> Iterator[Speed]:
    """All one-way tests; what a pair alone tells of a burst is known of those after it, whose copies share it."""
    burst = 0.0
    for test in trials_of(hosts):
        shared_by = max(len(set(host) & {source for source, _ in test.flows}) for host in hosts)
        within = test.kind in {Kind.inside, Kind.all_inside}
        known = None if test.kind is Kind.pair else 0.0 if within else burst / shared_by
        speed = _speed(team, test, known)
        burst = speed.burst_bytes if test.kind is Kind.pair else burst
        yield speed


def _speed(team: Team, test: Trial, burst_bytes: float | None) -> Speed:
    tried = median(team.copies(test, _TRY_BYTES, _RUNS).seconds)
    most = _MOST_ON_GPU if team.is_cuda else _MOST_BYTES
    longer = _power_of_two(_TRY_BYTES * _AIM_SECONDS / tried, most)
    return speed_of([team.copies(test, size, _RUNS) for size in (_SMALL_BYTES, longer // 4, longer)], burst_bytes)


def _power_of_two(size_bytes: float, most: int) -> int:
    """The size or a little less, within what is worth sending."""
    return 1 << int(min(most, max(_LEAST_BYTES, size_bytes))).bit_length() - 1


def _entry(name: str, value: float, unit: str, speed: Speed, how: str) -> Entry:
    return Entry(name=name, value=value, unit=unit, repeats=speed.runs, spread=speed.spread, how=how)


def _link_entry(rate: LinkRate, speeds: Sequence[Speed]) -> Entry:
    copies = f"{rate.copies} {'copies at once' if rate.copies > 1 else 'copy'} through it"
    shared = f"; shared: one alone reaches {rate.alone_bytes_per_second / 1e6:.1f} MB/s" if rate.is_shared else ""
    spread = max(speed.spread for speed in speeds)
    name, how = "|".join(rate.ends), copies + shared
    return Entry(name=name, value=rate.bytes_per_second, unit="bytes/s", repeats=_RUNS, spread=spread, how=how)


def _inside(speeds: Sequence[Speed]) -> Iterator[Entry]:
    by_kind = {speed.test.kind: speed for speed in speeds}
    alone = by_kind.get(Kind.inside)
    if alone is None:
        return
    together = by_kind.get(Kind.all_inside, alone)
    at_once = len(together.test.flows)
    how = f"{at_once} pair{'s' if at_once > 1 else ''} of ranks at once"
    yield _entry(HOST_COPY, together.bytes_per_second, "bytes/s", together, how)
    yield _entry("host_copy_alone", alone.bytes_per_second, "bytes/s", alone, Kind.inside.value)
    yield _entry("inside_alpha", alone.alpha_seconds, "s", alone, f"{_SMALL_BYTES} bytes, {Kind.inside.value}")


def _between(speeds: Sequence[Speed]) -> Iterator[Entry]:
    pair = next((speed for speed in speeds if speed.test.kind is Kind.pair), None)
    if pair is None:
        return
    yield _entry("network_alpha", pair.alpha_seconds, "s", pair, f"{_SMALL_BYTES} bytes, {Kind.pair.value}")
    if pair.burst_bytes:
        how = f"the first {pair.burst_bytes / 1024:.0f} KiB pass at once after a pause"
        yield _entry(BURST, pair.burst_bytes / pair.bytes_per_second, "s", pair, how)


def _exchanges(team: Team, hosts: Sequence[Sequence[int]], speeds: Sequence[Speed]) -> Iterator[Entry]:
    """Shares of the one-way rate that ranks reach who send each other, and the pieces that reach all of it."""
    several = len(hosts) > 1
    one_way = next(speed for speed in speeds if speed.test.kind is (Kind.pair if several else Kind.inside))
    out = [speed for speed in speeds if speed.test.kind is Kind.out] or [one_way]
    slowest = min(out, key=lambda speed: speed.bytes_per_second * len(speed.test.flows))
    for test in exchanges_of(hosts):
        if test.kind is Kind.exchange:
            size = _power_of_two(one_way.bytes_per_second * _AIM_SECONDS, _MOST_BYTES)
            found = team.copies(test, size, _EXCHANGE_RUNS)
            # Whether one of the two waits for the other is chance: what both take on average tells how often.
            yield _share(ONE_WAY, found, _seconds(one_way, size), mean(found.seconds))
            yield _pieces(team, test, size, one_way)
        elif several:
            found = team.copies(test, _EXCHANGED_BYTES, _EXCHANGE_RUNS)
            first = set(hosts[0])
            leaving = sum(source in first and target not in first for source, target in test.flows)
            copies = len(slowest.test.flows)
            one_way_seconds = _seconds(slowest, _EXCHANGED_BYTES * leaving / copies)
            yield _share(MANY_WAYS, found, one_way_seconds, median(found.seconds))


def _seconds(speed: Speed, size_bytes: float) -> float:
    return max(0.0, size_bytes - speed.burst_bytes) / speed.bytes_per_second


def _share(name: str, found: Timed, one_way_seconds: float, taken: float) -> Entry:
    spread = (max(found.seconds) - min(found.seconds)) / 2 / taken
    how = f"{found.test.kind.value}, {found.size_bytes >> 20} MiB each, of the one-way rate"
    share = min(_MOST_SHARE, one_way_seconds / taken)
    return Entry(name=name, value=share, unit="share", repeats=len(found.seconds), spread=spread, how=how)


def _pieces(team: Team, test: Trial, size: int, one_way: Speed) -> Entry:
    """The largest pieces that keep both directions busy; the smallest tried, if none does."""
    for piece in _PIECES:
        found = team.copies(test, size, _RUNS, pieces=max(1, size // piece))
        reached = _seconds(one_way, size) / median(found.seconds)
        if reached >= _FULL:
            break
    how = f"{test.kind.value} in such pieces: {min(reached, _MOST_SHARE):.0%} of the one-way rate"
    return Entry(name=PIECE, value=float(piece), unit="bytes a piece", repeats=len(found.seconds), spread=0.0, how=how)


def _host_to_device(team: Team) -> Iterator[Entry]:
    """Copies from pinned memory to one device, and to all at once: they may share an uplink."""
    host = torch.empty(_MOST_ON_GPU, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_MOST_ON_GPU, dtype=torch.uint8, device=team.device)

    def copy() -> None:
        device.copy_(host, non_blocking=True)

    for name, ranks in (("host_to_device_alone", 1), ("host_to_device_together", team.size)):
        taken = team.seconds(lambda: None, copy if team.rank < ranks else lambda: None, _RUNS)
        middle = median(taken)
        spread = (max(taken) - min(taken)) / 2 / middle
        how = f"{ranks} device{'s at once, each' if ranks > 1 else ''}"
        value = _MOST_ON_GPU / middle
        yield Entry(name=name, value=value, unit="bytes/s", repeats=len(taken), spread=spread, how=how)
