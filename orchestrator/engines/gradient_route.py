"""Chooses who sums the gradients of a ddp plan, and builds the schedule that was chosen; the same on every rank.

torch's own all-reduce stays unless links and collectives of this very machine were measured and a schedule of ours is
faster by more than predictions err.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.calibration_file import Calibration
from orchestrator.config import Engine
from orchestrator.config import GradientRoute as Wanted
from orchestrator.errors import Problem, UserError
from orchestrator.estimate.calibration import DDP_BUCKET_BYTES
from orchestrator.estimate.setting import DTYPE_BYTES
from orchestrator.planner.compression import Kind
from orchestrator.planner.gradient_route import GradientRoute, LinkRate
from orchestrator.planner.plan import Plan
from orchestrator.planner.strategy import Strategy
from orchestrator.planner.wires import measured_links
from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Graph, graph_of
from topology.model import Device, Topology
from topology.routing.software import Runner, Software
from topology.units import GIB, MIB, format_bytes, format_seconds

if TYPE_CHECKING:
    from topology.routing.choose import Offer
    from topology.schedule import Schedule

SoftwareOf = Callable[[Graph, Calibration | None], Software]

_KEY: Final = "engine.gradient_route"
WORTH: Final = 1.15  # calibrated predictions are within 15% of the medians
_LINKS, _COLLECTIVES = "links", "collectives"  # sections of a calibration
_HOST_COPY: Final = "host_copy"


def with_gradient_route(
    plan: Plan, topology: Topology, calibration: Calibration | None, software_of: SoftwareOf
) -> Plan:
    """Add to the chosen strategy who sums its gradients.

    Args:
        plan: without a route.
        topology: that it was made for.
        calibration: of that machine, or of one like it.
        software_of: the communication library of a group, with what a calibration tells of it.

    Raises:
        UserError: the executor was asked for, and has no schedule for these devices.
    """
    route = _route(plan, topology, calibration, software_of)
    if route is None:
        return plan
    chosen = replace(plan.chosen, strategy=replace(plan.chosen.strategy, gradient_route=route))
    return replace(plan, chosen=chosen, ranked=(chosen, *plan.ranked[1:]))


def _route(
    plan: Plan, topology: Topology, calibration: Calibration | None, software_of: SoftwareOf
) -> GradientRoute | None:
    strategy, wanted = plan.chosen.strategy, plan.run_config.engine.gradient_route
    if strategy.world_size == 1:
        why = f"Gradients: one rank has nobody to sum with, so {_KEY}={wanted.value} changes nothing."
        return None if wanted is not Wanted.executor else _library(why)
    if strategy.engine is Engine.zero3:
        return _library(f"Gradients: DeepSpeed sums them itself ({_KEY} is for engine=ddp).")
    if strategy.compression is not None and strategy.compression.kind is Kind.topk:
        by = "sparse and dense ones by the library"
        if wanted is Wanted.executor:
            by = "sparse ones by the topology's routes where faster, dense ones of the first steps by the library"
        return _library(f"Gradients: {by} ({_KEY}={wanted.value}).")
    if wanted is Wanted.builtin:
        return _library("Gradients: summed by torch's own all-reduce, as asked.")
    if wanted is Wanted.auto:
        reason = why_unmeasured(plan, calibration)
        if reason:
            return _library(f"Gradients: summed by torch's own all-reduce, since {reason}.")
    return _weighed(plan, topology, calibration, software_of)


def _library(why: str) -> GradientRoute:
    return GradientRoute(runner=Runner.builtin, why=why)


def why_unmeasured(plan: Plan, calibration: Calibration | None) -> str:
    """Why nothing can be weighed against torch's own all-reduce without being asked to; empty where it can."""
    sections = {section.name for section in calibration.sections} if calibration else set()
    if calibration is None or not {_LINKS, _COLLECTIVES} <= sections:
        return "links and collectives of this machine were not measured (`trainmaster bench`)"
    if calibration.fingerprint != plan.topology_fingerprint:
        return "links and collectives were measured on another machine"
    ids = plan.chosen.strategy.device_ids
    if len(set(ids)) < len(ids):
        return "ranks share a CPU slot, which no bench measures"
    return ""


def _weighed(plan: Plan, topology: Topology, calibration: Calibration | None, software_of: SoftwareOf) -> GradientRoute:
    """The best schedule of ours, or torch's own all-reduce where that is as good and the user leaves it open."""
    strategy, forced = plan.chosen.strategy, plan.run_config.engine.gradient_route is Wanted.executor
    nbytes = plan.workload.trainable_params * DTYPE_BYTES[strategy.adapter_dtype]
    buckets = max(1, -(-nbytes // DDP_BUCKET_BYTES))
    bare = GradientRoute(
        runner=Runner.builtin,
        why="",
        nbytes=nbytes,
        buckets=buckets,
        links=measured_rates(topology, calibration),
        host_copy_bytes_per_second=host_copy_rate(calibration),
    )
    try:
        graph = graph_for(bare, topology, strategy.device_ids)
        software = software_of(graph, calibration)
        ours, library = best_offers(graph, nbytes // buckets, software)
    except TopologyError as error:
        return _without(bare, "; ".join(error.problems), forced=forced)
    if ours is None:
        return _without(bare, f"no schedule of ours fits {strategy.world_size} ranks", forced=forced)
    theirs = None if library is None else library.seconds * buckets
    if not forced and (theirs is None or ours.seconds * buckets * WORTH >= theirs):
        return _kept(bare, ours, library, software)
    return _taken(bare, ours, theirs, software)


def best_offers(
    graph: Graph, nbytes: int, software: Software, collective: Collective = Collective.all_reduce
) -> tuple[Offer | None, Offer | None]:
    """The fastest schedule that the executor can run without copies drifting apart, and the library's fastest."""
    # Loads scipy, which plans do without that leave the choice to the library.
    from topology.routing.choose import choose

    found = choose(graph, collective, max(1, nbytes), software=software)
    offers = sorted((found.chosen, *found.alternatives), key=lambda offer: offer.seconds)
    ours = (offer for offer in offers if offer.runner is Runner.executor and _can_run(offer.entry.schedule, graph))
    return next(ours, None), next((offer for offer in offers if offer.runner is Runner.builtin), None)


def _can_run(schedule: Schedule | None, graph: Graph) -> bool:
    from orchestrator.collectives.program import sums_alike

    return schedule is not None and schedule.size == graph.size and sums_alike(schedule)


def _without(bare: GradientRoute, found: str, *, forced: bool) -> GradientRoute:
    if forced:
        remedy = f"Use {_KEY}=library, or describe the machine with its links"
        raise UserError(Problem(where=f"{_KEY}=executor", found=found, remedy=remedy))
    return replace(bare, why=f"Gradients: summed by torch's own all-reduce, since {found}.", links=())


def _kept(bare: GradientRoute, ours: Offer, library: Offer | None, software: Software) -> GradientRoute:
    reckoned = None if library is None else library.seconds * bare.buckets
    own = format_seconds(ours.seconds * bare.buckets)
    against = "" if reckoned is None else f" against {format_seconds(reckoned)}"
    return replace(
        bare,
        why=f"Gradients: {_size(bare.nbytes)} a step are summed by torch's own all-reduce; {ours.algorithm} by the "
        f"executor would take {own}{against} ({source_words(software)}).",
        algorithm="" if library is None else library.algorithm,
        seconds=reckoned,
        builtin_seconds=reckoned,
        links=(),
    )


def _taken(bare: GradientRoute, ours: Offer, theirs: float | None, software: Software) -> GradientRoute:
    from orchestrator.collectives.program import fingerprint

    schedule = ours.entry.schedule
    assert schedule is not None  # noqa: S101 - `_offers` returns no other
    largest = max(float(chunk.share) for chunk in schedule.chunks)
    seconds = ours.seconds * bare.buckets
    cut = "whole" if ours.pieces == 1 else f"in {ours.pieces} pieces"
    against = "" if theirs is None else f", by torch's own all-reduce {format_seconds(theirs)}"
    return replace(
        bare,
        runner=Runner.executor,
        why=f"Gradients: {_size(bare.nbytes)} a step are summed by the executor ({ours.algorithm}, chunks {cut}) in "
        f"{format_seconds(seconds)}{against} ({source_words(software)}).",
        algorithm=ours.algorithm,
        pieces=ours.pieces,
        piece_bytes=max(1, round(bare.nbytes / bare.buckets * largest / ours.pieces)),
        seconds=seconds,
        builtin_seconds=theirs,
        fingerprint=fingerprint(schedule).hex(),
    )


def _size(nbytes: int) -> str:
    return format_bytes(nbytes) if nbytes >= GIB else f"{nbytes / MIB:.1f} MiB"


def source_words(software: Software) -> str:
    """Say where the predictions of a library come from."""
    return software.source if software.source.startswith("measured") else "by tables"


def measured_rates(topology: Topology, calibration: Calibration | None) -> tuple[LinkRate, ...]:
    """Measured rates of links that this machine has."""
    known = {frozenset((link.a, link.b)) for link in topology.links}
    rates = [(min(ends), max(ends), rate) for ends, rate in measured_links(calibration).items() if ends in known]
    return tuple(LinkRate(a=a, b=b, bytes_per_second=rate) for a, b, rate in sorted(rates))


def host_copy_rate(calibration: Calibration | None) -> float | None:
    """Bytes per second that a CPU rank was measured to move through its host's memory."""
    found = calibration.find(_LINKS, _HOST_COPY) if calibration else None
    return None if found is None else found.value


def graph_for(route: GradientRoute, topology: Topology, device_ids: Sequence[str]) -> Graph:
    """The capacity graph of the ranks' devices; ranks that share a CPU slot each get one like it.

    Raises:
        TopologyError: an unknown device, or devices that nothing joins.
    """
    ids, slots = _own_slots(topology, device_ids)
    hosts = tuple(
        replace(host, devices=(*host.devices, *(slot for slot in slots if slot.host == host.name)))
        for host in topology.hosts
    )
    return graph_of(
        replace(topology, hosts=hosts) if slots else topology,
        ids,
        measured={frozenset((rate.a, rate.b)): rate.bytes_per_second for rate in route.links},
        host_copy_bytes_per_second=route.host_copy_bytes_per_second,
    )


def _own_slots(topology: Topology, device_ids: Sequence[str]) -> tuple[list[str], list[Device]]:
    """An id for each rank, and the devices that must be added for those of ranks that share one."""
    known = {device.id: device for device in topology.devices}
    times: dict[str, int] = {}
    ids: list[str] = []
    added: list[Device] = []
    for name in device_ids:
        times[name] = times.get(name, 0) + 1
        ids.append(name if times[name] == 1 else f"{name}#{times[name]}")
        if times[name] > 1 and name in known:
            added.append(replace(known[name], id=ids[-1]))
    return ids, added


def schedule_of(strategy: Strategy, topology: Topology) -> Schedule:
    """Build the schedule of a strategy's route once more.

    Raises:
        UserError: this machine or this version of the libraries gives another one than the plan has.
    """
    from orchestrator.collectives.program import fingerprint

    route = strategy.gradient_route
    if route is None or route.runner is not Runner.executor:
        raise ValueError("the strategy's gradients are summed by the library")
    try:
        found = next(build_schedules(route, topology, strategy.device_ids), None)
    except TopologyError as error:
        problems = "; ".join(error.problems)
        raise UserError(Problem(where="topology.json", found=problems, remedy="Plan again on this machine")) from error
    if found is None or fingerprint(found).hex() != route.fingerprint:
        what = "no schedule like" if found is None else f"another {route.algorithm} schedule than"
        remedy = f"Plan again with this version of the software, or use {_KEY}=library"
        text = f"this rank builds {what} the plan's {route.algorithm}"
        raise UserError(Problem(where=_KEY, found=text, remedy=remedy))
    return found


def build_schedules(
    route: GradientRoute,
    topology: Topology,
    device_ids: Sequence[str],
    collective: Collective = Collective.all_reduce,
) -> Iterator[Schedule]:
    """Yield the schedules of a route's algorithm for these devices, those that need no solver first."""
    from topology.routing.menu import menu

    graph = graph_for(route, topology, device_ids)
    for search in (False, True):
        for entry in menu(graph, collective, search=search):
            is_meant = entry.algorithm == route.algorithm and entry.runner is Runner.executor
            if is_meant and entry.schedule is not None:
                yield entry.schedule
