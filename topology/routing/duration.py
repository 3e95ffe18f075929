"""Seconds that a route takes for a size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from topology.routing.cost import Cost
from topology.routing.latency import NVLS_LAUNCH_SECONDS, ramp
from topology.routing.menu import Entry
from topology.routing.software import Runner, Software

_LEAST_SECONDS: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Predicted seconds, with the pieces or the protocol that they hold for."""

    seconds: float
    pieces: int = 1
    protocol: str = ""


def duration(entry: Entry, nbytes: float) -> Duration:
    """Predicted time of a route for `nbytes` of M (as `collectives` defines it)."""
    if entry.protocols:
        found = min(
            (
                (one.tree_launch if "tree" in entry.algorithm else one.ring_launch)
                + ramp(hops, nbytes * entry.cost.overlapped / one.rate_share),
                one.name,
            )
            for one, hops in entry.protocols
        )
        return Duration(seconds=found[0], protocol=found[1])
    if entry.schedule is None:
        return Duration(seconds=NVLS_LAUNCH_SECONDS + ramp(entry.fill_seconds, nbytes * entry.cost.overlapped))
    if entry.runner is Runner.library:
        return Duration(seconds=_whole(entry.cost, entry.software, nbytes))
    return _in_pieces(entry.cost, entry.software, nbytes)


def _whole(cost: Cost, software: Software, nbytes: float) -> float:
    """Step by step, one message a step: large ones each way hinder each other where the library alternates."""
    moving = nbytes * cost.stepwise
    size = nbytes / max(1, cost.steps)
    share = software.one_way_share if size > software.piece_bytes else 1.0
    return software.launch_seconds + cost.steps * software.step_seconds + moving / share


def _in_pieces(cost: Cost, software: Software, nbytes: float) -> Duration:
    """Steps overlapped on k pieces: (steps + k - 1) messages follow each other; k is chosen for the least time."""
    fill = nbytes * max(0.0, cost.stepwise - cost.overlapped)
    best = math.sqrt(fill / max(software.step_seconds, _LEAST_SECONDS))
    least = nbytes / software.piece_bytes / max(1, cost.steps) if software.one_way_share < 1 else 1.0
    options = {1, math.floor(best), math.ceil(best), math.ceil(least)}
    times = []
    for pieces in (min(software.most_pieces, max(1, option)) for option in options):
        messages = (cost.steps + pieces - 1) * software.step_seconds
        moving = nbytes * (cost.stepwise + (pieces - 1) * cost.overlapped) / pieces
        whole = pieces < least
        times.append((software.launch_seconds + messages + moving / (software.one_way_share if whole else 1.0), pieces))
    seconds, pieces = min(times)
    return Duration(seconds=seconds, pieces=pieces)
