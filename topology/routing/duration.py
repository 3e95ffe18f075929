"""Seconds that a route takes for a size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from topology.collectives import Collective
from topology.routing.cost import Cost
from topology.routing.latency import NVLS_LAUNCH_SECONDS, ramp
from topology.routing.menu import Entry
from topology.routing.software import Runner, Software
from topology.routing.tried import LIBRARY, ratio_of

_LEAST_SECONDS: Final = 1e-12
_FINE_BYTES: Final = 512 * 2**10  # of a message that every link measured here keeps full
_AS_GOOD: Final = 1.01
# glibc gives smaller memory out again with its pages (the most that its dynamic M_MMAP_THRESHOLD grows to).
_NEW_MEMORY_BYTES: Final = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Predicted seconds, with the pieces or the protocol that they hold for."""

    seconds: float
    pieces: int = 1
    protocol: str = ""


def duration(entry: Entry, nbytes: float) -> Duration:
    """Predicted time of a route for `nbytes` of M (as `collectives` defines it), by the model and by what was tried."""
    found = modelled(entry, nbytes)
    tried = entry.software.tried
    if not tried or entry.runner is Runner.paper:
        return found
    ratio = ratio_of(tried, entry.collective, way_of(entry), nbytes)
    return replace(found, seconds=found.seconds * ratio)


def way_of(entry: Entry) -> str:
    """The name under which a route is tried: of what the library does nobody sees the algorithm."""
    return LIBRARY if entry.runner is Runner.builtin else entry.algorithm


def modelled(entry: Entry, nbytes: float) -> Duration:
    """The model's time alone."""
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
    if entry.runner is Runner.builtin:
        return Duration(seconds=_whole(entry, nbytes))
    return _in_pieces(entry, nbytes)


def _whole(entry: Entry, nbytes: float) -> float:
    software = entry.software
    return software.launch_seconds + entry.cost.steps * software.step_seconds + whole_moving(entry, nbytes)


def whole_moving(entry: Entry, nbytes: float) -> float:
    """Seconds in which the library moves and adds up bytes, one message for each send.

    Rings go step by step; large messages of two ranks to each other hinder one another there.
    """
    cost, software = entry.cost, entry.software
    if entry.collective is Collective.all_to_all:
        return _all_at_once(cost, software, nbytes)
    share = software.exchange_share(cost.exchanges) if nbytes / max(1, cost.steps) > software.piece_bytes else 1.0
    copied = software.result_copy_bytes_per_second if entry.collective is Collective.all_gather else None
    copying = nbytes / copied if copied and nbytes >= _NEW_MEMORY_BYTES else 0.0
    return _after_burst(cost, software, nbytes * cost.stepwise / share) + _adding(cost, software, nbytes) + copying


def _all_at_once(cost: Cost, software: Software, nbytes: float) -> float:
    """Seconds of the messages of an all-to-all, which the library starts together.

    gloo sends a message when the other rank has said that it is ready, and that word waits behind what the other sends
    itself on the same connection (gloo/transport/tcp/pair.cc). So of two ranks that send each other the later one sends
    first, and the other after it. A link that several pairs share stays busy with the messages of others, which end one
    after another as connections get unequal shares, until the last pair: it runs dry for one message.
    """
    moving = nbytes * cost.overlapped
    gap = moving / cost.exchanges_at_once * software.turn_share if cost.exchanges_at_once else 0.0
    # A shaped network's bucket fills again in the gap.
    return _after_burst(cost, software, moving) + _after_burst(cost, software, gap)


def _in_pieces(entry: Entry, nbytes: float) -> Duration:
    """Steps overlapped on k pieces: (steps + k - 1) messages follow each other; k is chosen for the least time."""
    cost, software = entry.cost, entry.software
    launch, step = software.launch_of(entry.runner), software.step_of(entry.runner)
    work = cost.messages * software.executor_message_seconds
    fill = nbytes * max(0.0, cost.stepwise - cost.overlapped)
    least = _least_pieces(entry, nbytes)
    best = {math.sqrt(fill / max(each, _LEAST_SECONDS)) for each in (step, work, step + work)}
    fine = nbytes / max(1, cost.steps) / _FINE_BYTES
    options = {1, math.ceil(least), math.ceil(fine), *map(math.floor, best), *map(math.ceil, best)}
    times = []
    for pieces in (min(software.most_pieces, max(1, option)) for option in options):
        waiting = (cost.steps + pieces - 1) * step
        moving = pieces_moving(entry, nbytes, pieces) / software.executor_share
        times.append((launch + waiting + max(moving, pieces * work), pieces))
    fastest = min(times)[0]
    # The optimum is flat, and pieces that are too large hurt more than predicted: both ways of a link must stay busy.
    pieces, seconds = max((pieces, seconds) for seconds, pieces in times if seconds <= fastest * _AS_GOOD)
    return Duration(seconds=seconds, pieces=pieces)


def pieces_moving(entry: Entry, nbytes: float, pieces: int) -> float:
    """Seconds in which a schedule moves and adds up bytes when each chunk is cut into so many pieces."""
    cost, software = entry.cost, entry.software
    moving = nbytes * (cost.stepwise + (pieces - 1) * cost.overlapped) / pieces
    if pieces < _least_pieces(entry, nbytes):
        moving /= software.exchange_share(cost.exchanges)
    # The last piece of the last sum is added when all the rest is done.
    return _after_burst(cost, software, moving) + _adding(cost, software, nbytes / pieces)


def _least_pieces(entry: Entry, nbytes: float) -> float:
    """Pieces that keep both directions of a link busy; 1 where large messages do so too."""
    cost, software = entry.cost, entry.software
    if software.exchange_share(cost.exchanges) >= 1:
        return 1.0
    return nbytes / software.piece_bytes / max(1, cost.steps)


def _after_burst(cost: Cost, software: Software, moving_seconds: float) -> float:
    """What is left when a shaped network has let its bucket pass at once."""
    return max(0.0, moving_seconds - software.burst_seconds) if cost.over_network else moving_seconds


def _adding(cost: Cost, software: Software, nbytes: float) -> float:
    rate = software.sum_bytes_per_second
    return 0.0 if rate is None else nbytes * cost.summed / rate
