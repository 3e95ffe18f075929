"""The machine of a run with the way its gradients (or its layers) take, as a piece of a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.engines.gradient_route import graph_for
from orchestrator.planner.gradient_route import GradientRoute
from orchestrator.planner.plan import Plan
from orchestrator.report.page.html import Markup
from topology.collectives import Collective
from topology.errors import TopologyError
from topology.render.svg import svg
from topology.routing.software import Runner

if TYPE_CHECKING:
    from topology.model import Topology
    from topology.routing.choose import Route

_MOST_DEVICES: Final = 16  # of which the routes are searched for while somebody waits
_PROLOGUE: Final = re.compile(r"^\s*<\?xml[^>]*\?>\s*")


def picture_of(topology: Topology, plan: Plan | None) -> tuple[Markup, str]:
    """Draw the machine, with the chosen route where there is one; returns the SVG and what it shows."""
    found = None if plan is None else _route_of(topology, plan)
    if found is None:
        return _inline(svg(topology)), _without_route(plan)
    from topology.render.svg_route import route_svg

    route, planned = found
    runner = "our executor of schedules" if planned.runner is Runner.executor else "the communication library"
    return _inline(route_svg(topology, route)), f"{planned.why} The picture shows {route.chosen.algorithm} by {runner}."


def _inline(text: str) -> Markup:
    """The file without what stands before the root: every name in it was escaped when it was drawn."""
    return Markup(_PROLOGUE.sub("", text))


def _without_route(plan: Plan | None) -> str:
    if plan is not None and plan.chosen.strategy.world_size == 1:
        return "One rank has nobody to exchange with, so no link is used for gradients."
    return "The devices and links that were found; no route is drawn."


def _route_of(topology: Topology, plan: Plan) -> tuple[Route, GradientRoute] | None:
    """The route that the plan holds, made again; None where there is none, or the machine is not the plan's."""
    strategy = plan.chosen.strategy
    ids = strategy.device_ids
    streamed = strategy.streamed
    gathers = None if streamed is None else streamed.gather_route
    planned = gathers or strategy.gradient_route
    if planned is None or not _can_draw(topology, ids):
        return None
    from topology.routing.choose import choose

    collective = Collective.all_gather if gathers else Collective.all_reduce
    nbytes = max(1, planned.nbytes or plan.workload.trainable_params * 4)
    try:
        route = choose(graph_for(planned, topology, ids), collective, nbytes)
    except TopologyError:
        return None
    return _with_choice(route, planned.algorithm), planned


def _can_draw(topology: Topology, ids: Sequence[str]) -> bool:
    known = {device.id for device in topology.devices}
    return 1 < len(set(ids)) == len(ids) <= _MOST_DEVICES and known.issuperset(ids)


def _with_choice(route: Route, algorithm: str) -> Route:
    """The same with the offer that the plan took."""
    offers = (route.chosen, *route.alternatives)
    taken = next((offer for offer in offers if offer.algorithm == algorithm), route.chosen)
    others = tuple(offer for offer in offers if offer is not taken)
    return replace(route, chosen=taken, alternatives=others)
