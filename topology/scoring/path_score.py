"""A copy between two devices: which way it takes, what limits it, how long it lasts, and who shares its wires."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from topology.errors import TopologyError
from topology.graph import Graph
from topology.paths import paths_from, width
from topology.scoring.copy_rules import CopyRules, CopyWay, level_of, way_of
from topology.scoring.latencies import STAGING, wire_seconds
from topology.units import format_rate, format_seconds

_MOST_DEVICES: Final = 64  # above, only devices of the two hosts are looked at for contention
_STAGED: Final = frozenset({CopyWay.host_memory, CopyWay.staged_network})
_NO_RULES: Final = CopyRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """An edge that other devices use too: as many copies cross it at once, when every device sends one."""

    edge: int
    copies: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PathScore:
    """A copy of `nbytes` bytes from rank `source` to rank `target`.

    Attributes:
        source: rank.
        target: rank.
        nbytes: size of the copy.
        path: edge indices.
        level: NV, PIX, PXB, PHB, NODE, SYS or NET.
        way: by which means.
        bottleneck: edges of the path that are as narrow as its narrowest; none where nothing limits it.
        bytes_per_second: of the narrowest edge, at line rate; infinite where nothing limits it.
        latency_seconds: before the first byte arrives.
        seconds: latency and transfer, alone on the machine.
        sharing: the edge that is narrowest when every device sends one copy; None: no edge is shared.
        words: all that for people.
    """

    source: int
    target: int
    nbytes: int
    path: tuple[int, ...]
    level: str
    way: CopyWay
    bottleneck: tuple[int, ...]
    bytes_per_second: float
    latency_seconds: float
    seconds: float
    sharing: Sharing | None
    words: str

    @property
    def busy_bytes_per_second(self) -> float:
        """What is left of the rate when every device sends one copy."""
        return self.bytes_per_second if self.sharing is None else self.sharing.bytes_per_second


def path_score(graph: Graph, source: int, target: int, nbytes: int, *, rules: CopyRules = _NO_RULES) -> PathScore:
    """Score the widest path between two devices.

    Args:
        graph: where.
        source: sending rank.
        target: receiving rank.
        nbytes: size of the copy.
        rules: what the machine allows (`copy_rules`).

    Raises:
        TopologyError: no such ranks, one rank twice, or no path that passes no other device.
    """
    _check(graph, source, target, nbytes)
    path = paths_from(graph, source)[target]
    if path is None:
        raise TopologyError(
            asked=f"a copy from {graph.device_ids[source]} to {graph.device_ids[target]}",
            found="no path that passes no other device",
            remedy="relay it through a device that both reach",
        )
    units = width(graph, path)
    rate = math.inf if units is None else float(units * 10**6)
    way, why = way_of(graph, path, rules)
    latency = wire_seconds(graph.edges[at] for at in path) + (STAGING.seconds if way in _STAGED else 0.0)
    narrow = tuple(at for at in path if units is not None and graph.edges[at].units == units)
    sharing = _sharing(graph, source, target, path)
    seconds = latency + nbytes / rate
    return PathScore(
        source=source,
        target=target,
        nbytes=nbytes,
        path=path,
        level=level_of(graph, path),
        way=way,
        bottleneck=narrow,
        bytes_per_second=rate,
        latency_seconds=latency,
        seconds=seconds,
        sharing=sharing,
        words=_words(graph, way, why, narrow, sharing, rate, seconds),
    )


def _check(graph: Graph, source: int, target: int, nbytes: int) -> None:
    problems = [f"no rank {rank}" for rank in (source, target) if not 0 <= rank < graph.size]
    if source == target:
        problems.append(f"rank {source} at both ends")
    if nbytes < 0:
        problems.append(f"{nbytes} bytes")
    if problems:
        remedy = f"name two of the ranks 0 to {graph.size - 1}, and a size that is not negative"
        raise TopologyError(asked="the score of a path", problems=tuple(problems), remedy=remedy)


def _words(
    graph: Graph, way: CopyWay, why: str, narrow: tuple[int, ...], sharing: Sharing | None, rate: float, seconds: float
) -> str:
    limit = "nothing limits it" if not narrow else f"limited by {edge_name(graph, narrow[0])}"
    text = f"{way.value} ({why}); {format_rate(rate) if narrow else 'no limit'}, {limit}; {format_seconds(seconds)}"
    if sharing is None:
        return text
    left = format_rate(sharing.bytes_per_second)
    return f"{text}; {sharing.copies} copies at once share {edge_name(graph, sharing.edge)}: {left} each"


def edge_name(graph: Graph, at: int) -> str:
    """An edge in words: its two ends and the kind of wire."""
    edge = graph.edges[at]
    return f"{graph.nodes[edge.tail].id} -> {graph.nodes[edge.head].id} ({edge.link.value})"


def _sharing(graph: Graph, source: int, target: int, path: tuple[int, ...]) -> Sharing | None:
    homes = (graph.hosts[source], graph.hosts[target])
    users = _users(graph, homes if graph.size > _MOST_DEVICES else ())
    busy = [
        Sharing(edge=at, copies=users[at], bytes_per_second=units * 1e6 / users[at])
        for at in path
        if (units := graph.edges[at].units) is not None and users.get(at, 1) > 1
    ]
    found = min(busy, key=lambda item: item.bytes_per_second, default=None)
    units = width(graph, path)
    if found is None or (units is not None and found.bytes_per_second >= units * 1e6):
        return None
    return found


@lru_cache(maxsize=64)
def _users(graph: Graph, homes: tuple[str, ...]) -> Mapping[int, int]:
    """How many copies cross each edge at once when every device sends one and receives one, at most.

    That is the smaller of the numbers of senders and of receivers whose widest paths use the edge.
    """
    ranks = [rank for rank in range(graph.size) if not homes or graph.hosts[rank] in homes]
    ends: dict[int, tuple[set[int], set[int]]] = {}
    for sender in ranks:
        ways = paths_from(graph, sender)
        for receiver in ranks:
            for at in ways[receiver] or ():
                senders, receivers = ends.setdefault(at, (set(), set()))
                senders.add(sender)
                receivers.add(receiver)
    return {at: min(len(senders), len(receivers)) for at, (senders, receivers) in ends.items()}
