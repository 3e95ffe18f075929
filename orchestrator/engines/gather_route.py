"""Chooses who brings streamed layers together, and builds the schedule that was chosen; the same on every rank.

As with gradients: the library's broadcasts stay unless links and collectives of this very machine were measured and an
all-gather of ours is faster by more than predictions err.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from orchestrator.calibration_file import Calibration
from orchestrator.config import GradientRoute as Wanted
from orchestrator.engines.gradient_route import (
    WORTH,
    SoftwareOf,
    best_offers,
    build_schedules,
    graph_for,
    host_copy_rate,
    measured_rates,
    source_words,
    why_unmeasured,
)
from orchestrator.errors import Problem, UserError
from orchestrator.planner.gradient_route import GradientRoute
from orchestrator.planner.plan import Plan
from orchestrator.planner.strategy import Strategy
from topology.collectives import Collective
from topology.errors import TopologyError
from topology.model import Topology
from topology.routing.software import Runner
from topology.schedule import Schedule
from topology.units import MIB, format_seconds

_KEY: Final = "engine.gather_route"


def with_gather_route(plan: Plan, topology: Topology, calibration: Calibration | None, software_of: SoftwareOf) -> Plan:
    """Add to the chosen strategy who brings its layers together, if they stream over several ranks.

    Args:
        plan: without such a route.
        topology: that it was made for.
        calibration: of that machine, or of one like it.
        software_of: the communication library of a group, with what a calibration tells of it.

    Raises:
        UserError: the executor was asked for, and has no schedule for these devices.
    """
    strategy, wanted = plan.chosen.strategy, plan.run_config.engine.gather_route
    streamed = strategy.streamed
    if streamed is None or streamed.island_size == 1:
        return plan
    reason = "as asked" if wanted is Wanted.builtin else ""
    if wanted is Wanted.auto and (unmeasured := why_unmeasured(plan, calibration)):
        reason = f"since {unmeasured}"
    if reason:
        why = f"Layers: brought together by broadcasts of the library, {reason}."
        route = GradientRoute(runner=Runner.builtin, why=why)
    else:
        route = _weighed(plan, topology, calibration, software_of)
    changed = replace(strategy, streamed=replace(streamed, gather_route=route))
    chosen = replace(plan.chosen, strategy=changed)
    return replace(plan, chosen=chosen, ranked=(chosen, *plan.ranked[1:]))


def _weighed(plan: Plan, topology: Topology, calibration: Calibration | None, software_of: SoftwareOf) -> GradientRoute:
    """The best schedule of ours for a layer, or the library where that is as good and the user leaves it open."""
    strategy = plan.chosen.strategy
    forced = plan.run_config.engine.gather_route is Wanted.executor
    nbytes = _layer_bytes(strategy, plan.workload.layers)
    bare = GradientRoute(
        runner=Runner.builtin,
        why="",
        nbytes=nbytes,
        buckets=1,
        links=measured_rates(topology, calibration),
        host_copy_bytes_per_second=host_copy_rate(calibration),
    )
    try:
        graphs = [graph_for(bare, topology, ids) for ids in _islands(strategy)]
        software = software_of(graphs[0], calibration)
        ours, library = best_offers(graphs[0], nbytes, software, Collective.all_gather)
    except TopologyError as error:
        return _without("; ".join(error.problems), forced=forced)
    schedule = None if ours is None else ours.entry.schedule
    if ours is None or schedule is None:
        return _without(f"no schedule of ours fits {graphs[0].size} ranks", forced=forced)
    theirs = None if library is None else library.seconds
    against = "" if theirs is None else f", by the library's broadcasts {format_seconds(theirs)}"
    took = f"{ours.algorithm} takes {format_seconds(ours.seconds)} for {nbytes / MIB:.1f} MiB{against}"
    if not forced and (theirs is None or ours.seconds * WORTH >= theirs):
        why = f"Layers: brought together by broadcasts of the library; {took} ({source_words(software)})."
        return GradientRoute(runner=Runner.builtin, why=why, nbytes=nbytes, seconds=theirs, builtin_seconds=theirs)
    from orchestrator.collectives.program import fingerprint

    largest = max(float(chunk.share) for chunk in schedule.chunks)
    route = replace(
        bare,
        runner=Runner.executor,
        why=f"Layers: brought together by the executor; {took} ({source_words(software)}).",
        algorithm=ours.algorithm,
        pieces=ours.pieces,
        piece_bytes=max(1, round(nbytes * largest / ours.pieces)),
        seconds=ours.seconds,
        builtin_seconds=theirs,
        fingerprint=fingerprint(schedule).hex(),
    )
    same = {_fingerprint_of(route, topology, ids) for ids in _islands(strategy)}
    return route if same == {route.fingerprint} else _without("the islands are not alike", forced=forced)


def _without(found: str, *, forced: bool) -> GradientRoute:
    if forced:
        remedy = f"Use {_KEY}=library, or describe the machine with its links"
        raise UserError(Problem(where=f"{_KEY}=executor", found=found, remedy=remedy))
    why = f"Layers: brought together by broadcasts of the library, since {found}."
    return GradientRoute(runner=Runner.builtin, why=why)


def _islands(strategy: Strategy) -> list[tuple[str, ...]]:
    streamed = strategy.streamed
    size = strategy.world_size if streamed is None else streamed.island_size
    return [strategy.device_ids[first : first + size] for first in range(0, strategy.world_size, size)]


def _layer_bytes(strategy: Strategy, layers: int) -> int:
    streamed = strategy.streamed
    if streamed is None:
        return 1
    island = streamed.shares[: streamed.island_size]
    return max(1, sum(share.device + share.host + share.nvme for share in island) // max(1, layers))


def _fingerprint_of(route: GradientRoute, topology: Topology, device_ids: tuple[str, ...]) -> str:
    from orchestrator.collectives.program import fingerprint

    found = next(build_schedules(route, topology, device_ids, Collective.all_gather), None)
    return "" if found is None else fingerprint(found).hex()


def gather_schedule_of(strategy: Strategy, topology: Topology, rank: int) -> Schedule:
    """Build the schedule of a strategy's gathers once more, for the island of a rank.

    Raises:
        UserError: this machine or this version of the libraries gives another one than the plan has.
    """
    from orchestrator.collectives.program import fingerprint

    streamed = strategy.streamed
    route = None if streamed is None else streamed.gather_route
    if streamed is None or route is None or route.runner is not Runner.executor:
        raise ValueError("the strategy's layers are brought together by the library")
    ids = _islands(strategy)[rank // streamed.island_size]
    try:
        found = next(build_schedules(route, topology, ids, Collective.all_gather), None)
    except TopologyError as error:
        problems = "; ".join(error.problems)
        raise UserError(Problem(where="topology.json", found=problems, remedy="Plan again on this machine")) from error
    if found is None or fingerprint(found).hex() != route.fingerprint:
        what = "no schedule like" if found is None else f"another {route.algorithm} schedule than"
        remedy = f"Plan again with this version of the software, or use {_KEY}=library"
        text = f"this rank builds {what} the plan's {route.algorithm}"
        raise UserError(Problem(where=_KEY, found=text, remedy=remedy))
    return found
