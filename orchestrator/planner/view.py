"""What a picture of a plan shows: memory of each kind of rank by phase and term, and a micro-step in time."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.estimate.time import estimate_time, timeline_of
from orchestrator.estimate.timeline import Segment
from orchestrator.estimate.values import StepTime, Term
from orchestrator.planner.evaluate import Job, Point, fits_of, setting_of
from orchestrator.planner.fits import usable_bytes
from orchestrator.planner.rank_choice import choose_rank
from orchestrator.planner.solve import Asked, solve

__all__ = ["Bar", "Segment", "View", "view_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Ranks that are alike.

    Attributes:
        name: of their device.
        count: how many they are.
        rows, micro: of each, per optimizer step and per forward pass.
        memory_bytes: of a device (of the host's share, on a CPU).
        usable_bytes: what a plan may fill of it.
        phases: name, addends and sum of each phase's peak.
    """

    name: str
    count: int
    rows: int
    micro: int
    memory_bytes: int
    usable_bytes: int
    phases: tuple[tuple[str, tuple[Term, ...], int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The chosen strategy.

    Attributes:
        bars: kinds of ranks, in rank order.
        segments: the last micro-step of the slowest of them.
        time: of a step there.
        accumulation: micro-steps of a step.
    """

    bars: tuple[Bar, ...]
    segments: tuple[Segment, ...]
    time: StepTime
    accumulation: int


def view_of(asked: Asked) -> View | None:
    """Search again, and look at the best point in detail; None where nothing fits."""
    solution = solve(asked) if asked.config.adapter.rank is not None else choose_rank(asked).solution
    point = solution.found.best
    if point is None:
        return None
    settings = [setting_of(solution.job, point, at) for at in range(len(point.micro))]
    times = [estimate_time(setting) for setting in settings]
    slowest = max(range(len(times)), key=lambda at: times[at].step_seconds)
    return View(
        bars=_bars(solution.job, point),
        segments=timeline_of(settings[slowest]),
        time=times[slowest],
        accumulation=point.accumulation,
    )


def _bars(job: Job, point: Point) -> tuple[Bar, ...]:
    bars = []
    for at, (ranks, fit) in enumerate(zip(point.place.classes, fits_of(job, point), strict=True)):
        memory, is_gpu = fit.memory, ranks.machine.is_gpu
        phases = []
        for name, phase in (("load", memory.load), ("train", memory.train), ("save", memory.save)):
            terms = phase.terms if is_gpu else phase.host_terms
            rest = phase.device_bytes - sum(term.bytes for term in terms)
            why = "context, communicators and what the allocator holds unused"
            extra = (Term(name="runtime and slack", bytes=rest, why=why),) if rest > 0 else ()
            phases.append((name, (*sorted(terms, key=lambda term: -term.bytes), *extra), phase.device_bytes))
        bars.append(
            Bar(
                name=ranks.device_name,
                count=ranks.count,
                rows=ranks.rows,
                micro=point.micro[at],
                memory_bytes=ranks.machine.memory_bytes if is_gpu else ranks.host_bytes,
                usable_bytes=usable_bytes(ranks),
                phases=tuple(phases),
            )
        )
    return tuple(bars)
