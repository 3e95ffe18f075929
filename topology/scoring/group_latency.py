"""How long the first byte of a copy between devices of a group is on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topology.graph import Graph
from topology.paths import paths_from
from topology.scoring.copy_rules import CopyRules, CopyWay, way_of
from topology.scoring.latencies import STAGING, wire_seconds

_FEW_DEVICES: Final = 16  # up to which the latency of every pair is looked at


def latencies(graph: Graph, rules: CopyRules) -> tuple[float, float]:
    """Longest and mean latency of a copy: of large groups only of those of the first rank."""
    ranks = range(graph.size if graph.size <= _FEW_DEVICES else 1)
    found = [_latency(graph, path, rules) for rank in ranks for path in paths_from(graph, rank, relay=True) if path]
    return max(found), sum(found) / len(found)


def _latency(graph: Graph, path: Sequence[int], rules: CopyRules) -> float:
    staged = way_of(graph, path, rules)[0] in (CopyWay.host_memory, CopyWay.staged_network)
    return wire_seconds(graph.edges[at] for at in path) + (STAGING.seconds if staged else 0.0)
