"""Which devices form the group, and how two of them reach each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.route.ask import Asked
from topology.errors import TopologyError
from topology.graph import graph_of
from topology.model import Topology
from topology.routing.groups import RankedGroup, Ranking, rank_groups
from topology.routing.placement import placement
from topology.scoring.copy_rules import copy_rules
from topology.scoring.path_score import PathScore, path_score
from topology.units import MIB, format_rate, format_seconds

_SHOWN_GROUPS = 6
_NAMES = 24  # characters that the list of a group may take
_PAIR_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The devices in rank order, and the ranking that they were chosen by (None: the user named them, or all)."""

    devices: tuple[str, ...]
    ranking: Ranking | None


def group_of(topology: Topology, question: Asked) -> Group:
    """The devices asked about: as named, or the best so many in the order that a launcher would use.

    Raises:
        TopologyError: devices that nothing joins.
    """
    if question.devices:
        return Group(devices=question.devices, ranking=None)
    if not question.count:
        return Group(devices=(), ranking=None)
    ranking = rank_groups(topology, question.count)
    return Group(devices=placement(topology, ranking.groups[0].devices).order, ranking=ranking)


def pair_of(topology: Topology, devices: tuple[str, ...], pair: tuple[str, ...]) -> PathScore:
    """Score the path of a pair among the devices of the group; by wires of their own where the group's do not join it.

    Raises:
        TopologyError: nothing joins the two.
    """
    rules = copy_rules(topology)
    group = graph_of(topology, devices)
    try:
        ranks = [group.device_ids.index(name) for name in pair]
        return path_score(group, ranks[0], ranks[1], _PAIR_BYTES, rules=rules)
    except (TopologyError, ValueError):
        return path_score(graph_of(topology, pair), 0, 1, _PAIR_BYTES, rules=rules)


def group_text(topology: Topology, group: Group) -> str:
    """The candidates as a table, best first."""
    ranking = group.ranking
    if ranking is None:
        return ""
    places = {device.id: str(at) for at, device in enumerate(topology.gpus or topology.devices)}
    lines = [f"groups of {len(group.devices)} devices, best first"]
    lines.append(f"  {'devices':<24} {'all-gather':>12} {'all-to-all':>12} {'alike':>6}  limited by")
    for found in ranking.groups[:_SHOWN_GROUPS]:
        names = ",".join(sorted((places[name] for name in found.devices), key=int))
        shown = names if len(names) <= _NAMES else f"{len(found.devices)} devices"
        gather, exchange = found.all_gather_bytes_per_second, found.all_to_all_bytes_per_second
        rates = f"{format_rate(gather):>12} {format_rate(exchange):>12}"
        lines.append(f"  {shown:<24} {rates} {found.alike:>6}  {found.words}")
    left = len(ranking.groups) - _SHOWN_GROUPS
    if left > 0:
        last = ranking.groups[-1]
        lines.append(f"  and {left} kinds more, down to {format_rate(last.all_gather_bytes_per_second)}")
    if not ranking.is_best_proved:
        lines.append("  too many kinds of groups to score all: the first is the best of those tried")
    return "\n".join(lines) + "\n\n"


def group_json(group: Group) -> list[dict[str, Any]]:
    """The candidates, best first."""
    return [] if group.ranking is None else [_one_json(found) for found in group.ranking.groups]


def _one_json(found: RankedGroup) -> dict[str, Any]:
    return {
        "devices": list(found.devices),
        "alike": found.alike,
        "all_gather_bus_bytes_per_second": found.all_gather_bytes_per_second,
        "all_to_all_bus_bytes_per_second": found.all_to_all_bytes_per_second,
        "latency_seconds": found.latency_seconds,
        "numa_nodes": found.numa_nodes,
        "text": found.words,
    }


def pair_text(score: PathScore) -> str:
    """A path in words."""
    alone, busy = format_rate(score.bytes_per_second), format_rate(score.busy_bytes_per_second)
    first = format_seconds(score.latency_seconds)
    return (
        f"path of a copy of 64 MiB: {score.words}\n  level {score.level}, {score.way.value}; "
        f"{first} before the first byte, {alone} alone, {busy} while every device sends; "
        f"{format_seconds(score.seconds)} in all\n\n"
    )


def pair_json(score: PathScore, pair: tuple[str, ...]) -> dict[str, Any]:
    """A path as a document."""
    return {
        "a": pair[0],
        "b": pair[1],
        "level": score.level,
        "way": score.way.value,
        "bytes": score.nbytes,
        "seconds": score.seconds,
        "latency_seconds": score.latency_seconds,
        "bytes_per_second": score.bytes_per_second,
        "busy_bytes_per_second": score.busy_bytes_per_second,
        "text": score.words,
    }
