"""A plan after something has happened to a run: what the planner needs is read here, the plan itself is made purely."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from orchestrator.calibration_store import choose_calibration
from orchestrator.config import RunConfig
from orchestrator.engines.gather_route import with_gather_route
from orchestrator.engines.gradient_route import with_gradient_route
from orchestrator.inputs import Inputs
from orchestrator.launch_inputs import named_hosts
from orchestrator.measure.use import measured_software
from orchestrator.named_hosts import ranks_of_hosts
from orchestrator.planner.events import Back, Event, Lost, OutOfMemory, SlowNetwork, SlowRanks, phase_of_estimate
from orchestrator.planner.plan import Plan
from orchestrator.planner.replan import Ground, Replanned, replan
from orchestrator.planner.setbacks import DEVICE, HOST, Setbacks, device_of, slots_of
from orchestrator.recovery.event import Ended, Kind

__all__ = ["event_of", "replanned", "resumed"]


def event_of(ended: Ended, plan: Plan) -> Event:
    """Say what the planner must know of how an attempt ended.

    Raises:
        ValueError: no plan is the answer to it.
    """
    if ended.kind is Kind.out_of_memory:
        is_gpu = plan.device_kind == "gpu"
        # CPU ranks have the host's memory alone.
        where = DEVICE if is_gpu and ended.where != HOST else HOST
        return OutOfMemory(
            where=where,
            phase=phase_of_estimate(ended.phase),
            rank=ended.rank,
            used_bytes=ended.peak_bytes,
            asked_bytes=ended.asked_bytes,
            free_bytes=ended.free_bytes,
        )
    if ended.kind is Kind.device_lost:
        return Lost(devices=ended.devices) if ended.devices else Lost(ranks=(ended.rank or 0,))
    if ended.kind is Kind.host_lost:
        return Lost(hosts=ended.hosts)
    if ended.kind is Kind.host_back:
        return Back(hosts=ended.hosts)
    if ended.kind is Kind.slow_rank:
        return SlowRanks(speeds=ended.speeds)
    if ended.kind is Kind.slow_link:
        return SlowNetwork(share=ended.link_share)
    raise ValueError(f"no plan is the answer to {ended.kind.value}")


def replanned(config: RunConfig, plan: Plan, inputs: Inputs, ended: Ended, environ: Mapping[str, str]) -> Replanned:
    """Return the next plan.

    Args:
        config: that was asked for.
        plan: that ran.
        inputs: of the first plan; its machine is the whole one.
        ended: how the attempt ended.
        environ: where calibrations are stored.

    Raises:
        UserError: no other plan is left, with all that was tried.
    """
    return _replanned(config, plan, inputs, event_of(ended, plan), environ)


def resumed(
    config: RunConfig, plan: Plan, inputs: Inputs, saved: Plan, quarantine: Collection[str], environ: Mapping[str, str]
) -> Replanned | None:
    """Return the plan of a run that goes on, with what it has met before; None where that changes nothing.

    Hosts and devices that were lost are tried again, but for those on the list.

    Args:
        config: that was asked for now.
        plan: made for it, without a past.
        inputs: of it.
        saved: plan that the run had last.
        quarantine: ids of devices that stay out.
        environ: where calibrations are stored.

    Raises:
        UserError: no plan is left.
    """
    slots = slots_of(plan.chosen.strategy.device_ids)
    lost = tuple(slot for slot in slots if device_of(slot) in quarantine or slot in quarantine)
    before = saved.setbacks or Setbacks()
    setbacks = replace(before, config=plan.config, slots=slots, lost_hosts=(), lost_slots=lost)
    if setbacks == Setbacks(config=plan.config, slots=slots):
        return None
    return _replanned(config, replace(plan, setbacks=setbacks), inputs, Back(), environ)


def _replanned(config: RunConfig, plan: Plan, inputs: Inputs, event: Event, environ: Mapping[str, str]) -> Replanned:
    known = choose_calibration(config.calibration, inputs.topology, environ)
    ground = Ground(
        topology=inputs.topology,
        model=inputs.model,
        data=inputs.data,
        known=known,
        counts=ranks_of_hosts(config, inputs.topology),
        named=tuple(host.name for host in named_hosts(config.launch)),
    )
    found = replan(plan, ground, event)
    routed = with_gradient_route(found.plan, found.topology, known.calibration, measured_software)
    return replace(found, plan=with_gather_route(routed, found.topology, known.calibration, measured_software))
