"""The answer as a document and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.route.ask import Asked
from topology.graph import Graph
from topology.routing.choose import Offer, Route, routes
from topology.routing.cuts import Bound
from topology.routing.diagnosis import cut_to_json, describe
from topology.routing.software import Runner, Software
from topology.units import format_rate, format_seconds

_RUNNERS = {
    Runner.builtin: "torch's own collective",
    Runner.executor: "orchestrator.collectives",
    Runner.paper: "proved on paper: no code path",
}
_ALTERNATIVES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Routes by collective, in the order asked."""

    graph: Graph
    routes: tuple[tuple[Route, ...], ...]


def answer(graph: Graph, question: Asked, software: Software | None = None) -> Answer:
    """Choose a route for every collective and size asked about, with the fixed times of `software` (None: priors)."""
    found = tuple(routes(graph, collective, question.sizes, software=software) for collective in question.collectives)
    return Answer(graph=graph, routes=found)


def to_json(found: Answer) -> dict[str, Any]:
    """The first collective's route for the largest size at top level; all of them in `routes`."""
    first = found.routes[0][-1]
    everything = [_route_json(route) for by_size in found.routes for route in by_size]
    return {**_route_json(first), "routes": everything}


def _route_json(route: Route) -> dict[str, Any]:
    return {
        "collective": route.collective.value,
        "bytes": route.nbytes,
        "ranks": list(route.graph.device_ids),
        "chosen": _offer_json(route.chosen),
        "bound": {
            "seconds": route.bound_seconds,
            "bus_bytes_per_second": bound_rate(route),
            "cut": [] if route.bound.cut is None else [cut_to_json(route.graph, route.bound.cut)],
        },
        "alternatives": [_offer_json(offer) for offer in route.alternatives],
    }


def _offer_json(offer: Offer) -> dict[str, Any]:
    return {
        "algorithm": offer.algorithm,
        "phases": list(offer.phases),
        "seconds": offer.seconds,
        "bus_bytes_per_second": offer.bus_bytes_per_second,
        "of_bound": offer.of_bound,
        "runner": offer.runner.value,
        "pieces": offer.pieces,
        "protocol": offer.protocol,
        "bottleneck": offer.bottleneck,
    }


def bound_rate(route: Route) -> float:
    """Bus bytes per second of the bound."""
    return route.bound.bus_bytes_per_second


def to_text(found: Answer) -> str:
    """One table by size for each collective, with the diagnosis below."""
    return "\n".join(_section(by_size) for by_size in found.routes)


def _section(by_size: Sequence[Route]) -> str:
    last = by_size[-1]
    lines = [
        f"{last.collective.value} over {last.graph.size} devices",
        f"  {'size':>9}  {'algorithm':<16} {'time':>10}  {'bus rate':>12}  {'of bound':>8}  by",
    ]
    for route in by_size:
        offer = route.chosen
        share = route.bound_seconds / offer.seconds
        details = f", {offer.pieces} pieces" if offer.pieces > 1 else f", {offer.protocol}" if offer.protocol else ""
        lines.append(
            f"  {size_text(route.nbytes):>9}  {offer.algorithm:<16} {format_seconds(offer.seconds):>10}  "
            f"{format_rate(offer.bus_bytes_per_second):>12}  {share:>8.1%}  {_RUNNERS[offer.runner]}{details}"
        )
    return "\n".join([*lines, *_why(last), ""])


def _why(route: Route) -> list[str]:
    offer = route.chosen
    lines = [
        f"  bound: {format_rate(bound_rate(route))} of bus rate; {_cut_text(route)}",
        f"  {offer.algorithm} uses {offer.of_bound:.1%} of what the wires allow; {' -> '.join(offer.phases)}",
        f"  reckoned with: {offer.bottleneck}",
    ]
    if offer.of_bound > 1:
        lines.append("  (the switch sums and copies itself: a bound that counts sends does not hold for it)")
    others = [
        f"{other.algorithm} {format_seconds(other.seconds)}"
        + ("" if other.runner is not Runner.paper else " (on paper)")
        for other in route.alternatives[:_ALTERNATIVES]
    ]
    return [*lines, *([f"  others at {size_text(route.nbytes)}: {', '.join(others)}"] if others else [])]


def size_text(nbytes: int) -> str:
    """A size in the largest binary unit that it is a whole number of, or nearly."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            number = nbytes / unit
            return f"{number:.0f} {name}" if number == int(number) else f"{number:.1f} {name}"
    return f"{nbytes} B"


def _cut_text(route: Route) -> str:
    cut = route.bound.cut
    return "no wire has a known limit" if cut is None else describe(route.graph, cut)


def bound_of(found: Answer) -> Bound:
    """The bound of the first collective."""
    return found.routes[0][0].bound
