"""A plan with all that is known: inputs, calibration, and the routes that were measured to pay."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.calibration_store import choose_calibration
from orchestrator.config import RunConfig
from orchestrator.engines.gather_route import with_gather_route
from orchestrator.engines.gradient_route import with_gradient_route
from orchestrator.inputs import Inputs
from orchestrator.measure.use import measured_software
from orchestrator.named_hosts import ranks_of_hosts
from orchestrator.planner.build import make_plan
from orchestrator.planner.plan import Plan
from orchestrator.trackers.asked import check_trackers

__all__ = ["plan_of"]


def plan_of(config: RunConfig, inputs: Inputs, run_id: str, environ: Mapping[str, str]) -> Plan:
    """Plan a run; of the environment only where calibrations are stored counts.

    Raises:
        UserError: what was asked for is not there, or a calibration that is named cannot be read.
        NothingFits: no strategy fits.
    """
    check_trackers(config.monitor.report_to)
    if config.monitor.tensorboard or config.monitor.replay:
        from orchestrator.monitor.asked import check_monitor  # of no use to most plans

        check_monitor(config.monitor)
    topology = inputs.topology
    known = choose_calibration(config.calibration, topology, environ)
    counts = ranks_of_hosts(config, topology)
    plan = make_plan(config, topology, inputs.model, inputs.data, run_id, known, counts)
    plan = with_gradient_route(plan, topology, known.calibration, measured_software)
    return with_gather_route(plan, topology, known.calibration, measured_software)
