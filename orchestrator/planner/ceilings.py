"""How much less the next plan may need after one that ran out of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orchestrator.estimate.values import Memory
from orchestrator.planner.evaluate import fits_of
from orchestrator.planner.events import OutOfMemory
from orchestrator.planner.plan import Plan
from orchestrator.planner.points import strategy_of
from orchestrator.planner.setbacks import DEVICE, Ceiling
from orchestrator.planner.solve import Asked, solve
from orchestrator.planner.strategy import Strategy

FACTORS: Final = (0.9, 0.95, 0.98)
_LEAST_FACTOR: Final = 0.1
_RUNTIME: Final = "runtime"  # the host term that no plan can change


def factors_for(event: OutOfMemory) -> tuple[float, ...]:
    """Shares of the predicted memory to plan with, the first first.

    What the rank says counts where it asks for more than a tenth less: it needed `used + asked` where there were
    `used + free`, and predictions scale alike.
    """
    first = FACTORS[0]
    if event.asked_bytes > 0 and event.used_bytes > 0:
        share = (event.used_bytes + event.free_bytes) / (event.used_bytes + event.asked_bytes)
        first = min(first, max(_LEAST_FACTOR, round(share, 3)))
    return (first, *(factor for factor in FACTORS if factor > first))


def predicted(plan: Plan, asked: Asked, event: OutOfMemory) -> dict[str, tuple[int, int]]:
    """What was predicted for the memory that ran out, and how much of that no plan changes, by name of device.

    Of the device of the rank that ran out, or of each where nobody knows which. A plan tells the memory of its tightest
    rank alone: with several kinds of device it is searched for again, to know that of the others.
    """
    strategy, is_gpu = plan.chosen.strategy, plan.device_kind == "gpu"
    found: dict[str, tuple[int, int]] = {}
    names = {device.id: device.name for device in asked.topology.devices}
    own = [names.get(one, plan.device_name) for one in strategy.device_ids]
    if len(set(own)) == 1:
        _larger(found, own[0], plan.chosen.estimate.memory, event, is_gpu=is_gpu)
        return found
    solution = solve(asked)
    best = solution.found.best
    is_same = best is not None and _bare(strategy_of(solution.job, best)) == _bare(strategy)
    fits = fits_of(solution.job, best) if best is not None and is_same else ()
    at = best.place.class_of_ranks if best is not None else ()
    for rank, name in enumerate(own):
        if event.rank in {None, rank}:
            memory = fits[at[rank]].memory if fits else plan.chosen.estimate.memory
            _larger(found, name, memory, event, is_gpu=is_gpu)
    return found


def _bare(strategy: Strategy) -> Strategy:
    """Without what is added to the chosen strategy alone."""
    streamed = strategy.streamed
    if streamed is not None:
        streamed = replace(streamed, told=(), gather_route=None)
    return replace(strategy, gradient_route=None, compression=None, streamed=streamed)


def _larger(found: dict[str, tuple[int, int]], name: str, memory: Memory, event: OutOfMemory, *, is_gpu: bool) -> None:
    phase = getattr(memory, event.phase)
    if is_gpu and event.where == DEVICE:
        own = (phase.device_bytes, phase.device_bytes - phase.reserved_bytes)
    else:
        own = (phase.host_bytes, sum(term.bytes for term in phase.host_terms if term.name == _RUNTIME))
    found[name] = max(found.get(name, own), own)


def ceilings_after(needed: dict[str, tuple[int, int]], event: OutOfMemory) -> dict[float, tuple[Ceiling, ...]]:
    """The ceilings for each of the factors."""
    return {
        factor: tuple(
            Ceiling(
                phase=event.phase,
                where=event.where,
                device_name=name,
                # Below what it was in any case, or the same plan would come back.
                nbytes=min(nbytes - 1, fixed + int(factor * max(0, nbytes - fixed))),
            )
            for name, (nbytes, fixed) in needed.items()
        )
        for factor in factors_for(event)
    }


def lowered(old: Sequence[Ceiling], new: Sequence[Ceiling]) -> tuple[Ceiling, ...]:
    """Both; of two for the same, the lower one."""
    found: dict[tuple[str, str, str], Ceiling] = {}
    for one in (*old, *new):
        key = (one.phase, one.where, one.device_name)
        found[key] = min(found.get(key, one), one, key=lambda x: x.nbytes)
    return tuple(found.values())
