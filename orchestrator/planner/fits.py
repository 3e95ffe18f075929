"""Whether the memory that ranks need is there: on their devices, on their hosts, and below what has run out before."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.estimate.calibration import DEVICE_FILL
from orchestrator.estimate.values import Memory, PhaseMemory, Term
from orchestrator.planner.setbacks import DEVICE, HOST
from orchestrator.planner.world import RankClass, World
from topology.units import GIB, format_bytes

_SHOWN_TERMS = 3
_NO_CEILING = 2**80


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Why a point does not fit, and how many bytes the tightest rank lacks."""

    reason: str
    missing_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Memory of the tightest ranks; `margin` is the share that stays free of what they may fill (below 0: a misfit)."""

    ranks: RankClass
    memory: Memory
    margin: float
    misfit: Misfit | None


def usable_bytes(ranks: RankClass) -> int:
    """Device memory that a plan may fill; on a CPU the host's, whatever the budget of its tensors."""
    if not ranks.machine.is_gpu:
        return ranks.host_bytes
    usable = int(ranks.machine.memory_bytes * DEVICE_FILL.value)
    return usable if ranks.budget_bytes is None else min(usable, ranks.budget_bytes)


def device_limit_bytes(ranks: RankClass, phase: str) -> int:
    """Device memory that may be predicted for a phase; on CPU ranks that of their process."""
    # A CPU rank has one memory, whichever of the two it ran out of.
    places = {DEVICE} if ranks.machine.is_gpu else {DEVICE, HOST}
    return min(usable_bytes(ranks), *_ceilings(ranks, phase, places))


def host_limit_bytes(ranks: RankClass, phase: str) -> int:
    """Host memory that may be predicted for a phase."""
    places = {HOST} if ranks.machine.is_gpu else {DEVICE, HOST}
    return min(ranks.host_bytes, *_ceilings(ranks, phase, places))


def _ceilings(ranks: RankClass, phase: str, places: set[str]) -> tuple[int, ...]:
    found = tuple(one.nbytes for one in ranks.ceilings if one.phase == phase and one.where in places)
    return found or (_NO_CEILING,)


def phases_of(memory: Memory) -> tuple[tuple[str, str, PhaseMemory], ...]:
    """Name, words and memory of each phase."""
    return (
        ("load", "while loading", memory.load),
        ("train", "while training", memory.train),
        ("save", "while saving", memory.save),
    )


def fit_in(world: World, ranks: RankClass, memory: Memory) -> Fit:
    """Whether what ranks of a class need fits what they have."""
    fill = 0.0
    for name, _, phase in phases_of(memory):
        device, host = max(1, device_limit_bytes(ranks, name)), max(1, host_limit_bytes(ranks, name))
        fill = max(fill, phase.device_bytes / device, phase.host_bytes / host)
        if ranks.budget_bytes is not None and not ranks.machine.is_gpu:
            fill = max(fill, phase.allocated_bytes / ranks.budget_bytes)
    return Fit(ranks=ranks, memory=memory, margin=1 - fill, misfit=_misfit(world, ranks, memory))


def _misfit(world: World, ranks: RankClass, memory: Memory) -> Misfit | None:
    device = _device_misfit(world, ranks, memory)
    return _host_misfit(world, ranks, memory) if device is None else device


def _device_misfit(world: World, ranks: RankClass, memory: Memory) -> Misfit | None:
    if ranks.machine.is_gpu:
        lacks = [(phase.device_bytes - device_limit_bytes(ranks, name), name) for name, _, phase in phases_of(memory)]
        missing, worst = max(lacks, key=lambda lack: lack[0])
        when, phase = next((when, phase) for name, when, phase in phases_of(memory) if name == worst)
        if missing > 0:
            card = f"{ranks.device_name} " if len({device.name for device in world.devices}) > 1 else ""
            usable, limit = f"{DEVICE_FILL.value:.0%} of it usable", device_limit_bytes(ranks, worst)
            if limit < usable_bytes(ranks):
                usable = f"at most {format_bytes(limit)} after what ran out of memory"
            elif ranks.budget_bytes is not None:
                usable = f"{format_bytes(usable_bytes(ranks))} of it may be used by engine.budgets_gib"
            reason = (
                f"needs {format_bytes(phase.device_bytes)} a card {when} ({_largest(phase.terms)}), {card}has "
                f"{format_bytes(ranks.machine.memory_bytes)} ({usable}): {format_bytes(missing)} missing"
            )
            return Misfit(reason=reason, missing_bytes=missing)
    elif ranks.budget_bytes is not None:
        _, when, phase = max(phases_of(memory), key=lambda item: item[2].allocated_bytes)
        missing = phase.allocated_bytes - ranks.budget_bytes
        if missing > 0:
            reason = (
                f"needs {format_bytes(phase.allocated_bytes)} for tensors {when} ({_largest(phase.terms)}), "
                f"engine.budgets_gib allows {format_bytes(ranks.budget_bytes)}: {format_bytes(missing)} missing"
            )
            return Misfit(reason=reason, missing_bytes=missing)
    return None


def _host_misfit(world: World, ranks: RankClass, memory: Memory) -> Misfit | None:
    lacks = [(phase.host_bytes - host_limit_bytes(ranks, name), name) for name, _, phase in phases_of(memory)]
    missing, worst = max(lacks, key=lambda lack: lack[0])
    if missing <= 0:
        return None
    when, phase = next((when, phase) for name, when, phase in phases_of(memory) if name == worst)
    limit = host_limit_bytes(ranks, worst)
    has = f"{format_bytes(ranks.host_bytes)} available for each of {world.ranks_beside(ranks.rank)}"
    if limit < ranks.host_bytes:
        has = f"at most {format_bytes(limit)} after what ran out of memory"
    needs = f"needs {format_bytes(phase.host_bytes)} of host memory a rank {when} ({_largest(phase.host_terms)})"
    reason = f"{needs}, has {has}: {format_bytes(missing)} missing"
    return Misfit(reason=reason, missing_bytes=missing)


def _largest(terms: tuple[Term, ...]) -> str:
    shown = sorted(terms, key=lambda term: -term.bytes)[:_SHOWN_TERMS]
    return ", ".join(f"{term.name} {term.bytes / GIB:.1f}" for term in shown)
