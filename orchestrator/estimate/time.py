"""Seconds of one optimizer step: named terms, with a lower and an upper bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.estimate import calibration_time as ct
from orchestrator.estimate.setting import Setting
from orchestrator.estimate.time_cpu import cpu_terms
from orchestrator.estimate.time_flops import flops_per_token
from orchestrator.estimate.time_moves import Moves, moves_of
from orchestrator.estimate.time_practice import Practice, practice_of
from orchestrator.estimate.time_work import Work, codec_term, work_of
from orchestrator.estimate.timeline import (
    Schedule,
    Segment,
    Visit,
    busiest_seconds,
    end_seconds,
    segments_of,
    serial_seconds,
)
from orchestrator.estimate.values import StepTime, TimeTerm

__all__ = ["estimate_time", "flops_per_token", "schedule_of", "timeline_of"]

_EXCHANGED = frozenset({"all_reduce", "gathers", "base_gather"})
_OPTIMISTIC_CPU = 0.9
_PESSIMISTIC_CPU = 2.0


def estimate_time(setting: Setting, practice: Practice | None = None, *, terms: bool = True) -> StepTime:
    """Time of one optimizer step of this rank, in seconds, and the world's real tokens per second.

    The rank's own rows decide; the caller gives the setting of the slowest rank. On a GPU the micro-step is played
    on a timeline: what overlaps counts once, and a term's `seconds` are what it adds to the step.

    Args:
        setting: the rank's work.
        practice: how the stack does it; by default that of `setting.stack`.
        terms: whether they and the bounds are wanted; on a GPU they take as long as the rest. Without, both bounds are
            the step's own seconds.
    """
    practice = practice or practice_of(setting.stack)
    step = _gpu_step(setting, practice, terms=terms) if setting.machine.is_gpu else _cpu_step(setting, practice)
    tokens = setting.rows * setting.batch.real_tokens_per_row * setting.world_size
    return StepTime(
        step_seconds=step.seconds,
        lower_seconds=min(step.lower, step.seconds),
        upper_seconds=max(step.upper, step.seconds),
        tokens_per_second=tokens / step.seconds,
        reduce_seconds=step.reduce_seconds,
        terms=tuple(term for term in step.terms if term.total_seconds > 0),
    )


def schedule_of(setting: Setting, practice: Practice | None = None) -> Schedule:
    """The last micro-step of a step, with reduction and optimizer; on a CPU its pieces follow each other."""
    practice = practice or practice_of(setting.stack)
    if setting.machine.is_gpu:
        return work_of(setting, practice).last
    return _cpu_schedule(setting, moves_of(setting, practice))


def timeline_of(setting: Setting, practice: Practice | None = None) -> tuple[Segment, ...]:
    """The last micro-step in time, for a picture: name, stream, start and end in seconds of every piece."""
    return segments_of(schedule_of(setting, practice))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    seconds: float
    lower: float
    upper: float
    reduce_seconds: float
    terms: tuple[TimeTerm, ...]


def _cpu_step(setting: Setting, practice: Practice) -> _Step:
    exchanged = _exchanged(setting, moves_of(setting, practice))
    found = (*cpu_terms(setting), codec_term(setting), *exchanged)
    terms = tuple(replace(term, total_seconds=term.seconds) for term in found)
    total = sum(term.seconds for term in terms)
    moved = max(term.seconds for term in exchanged)
    busy = sum(term.seconds for term in terms if term.name not in _EXCHANGED)
    return _Step(
        seconds=total,
        lower=max(_OPTIMISTIC_CPU * busy, moved),
        upper=_PESSIMISTIC_CPU * total,
        reduce_seconds=exchanged[0].seconds,
        terms=terms,
    )


def _cpu_schedule(setting: Setting, moves: Moves) -> Schedule:
    """A third forward, two thirds backward, nothing ahead of its use."""
    layers, terms = setting.model.layers, {term.name: term.seconds for term in cpu_terms(setting)}
    optimizer = terms.pop("optimizer")
    busy = sum(terms.values()) / setting.accumulation / layers
    gathers = moves.gather_seconds
    return Schedule(
        layers=layers,
        forward=Visit(compute=busy / 3, gather=gathers if moves.passes else 0.0, window=0),
        backward=Visit(compute=2 * busy / 3, gather=gathers * max(0, moves.passes - 1), window=0),
        # The reductions' threads need the same cores.
        group_layers=layers,
        reduce_seconds=moves.reduce_seconds * moves.groups,
        tail_seconds=optimizer + codec_term(setting).seconds,
    )


def _exchanged(setting: Setting, moves: Moves) -> tuple[TimeTerm, TimeTerm]:
    gathers, streams = moves.passes * setting.accumulation, setting.streamed is not None
    reduce = TimeTerm(
        name="all_reduce",
        seconds=_reduce_seconds(moves),
        why=f"{moves.reduced_bytes / 1e6:.3g} MB of gradients over {setting.world_size} ranks",
    )
    gather = TimeTerm(
        name="base_gather" if streams else "gathers",
        seconds=gathers * setting.model.layers * moves.gather_seconds,
        why=f"{moves.gathered_bytes / 1e9:.3g} GB received {gathers:.4g} times a step{_beside(setting, moves)}",
    )
    return reduce, gather


def _beside(setting: Setting, moves: Moves) -> str:
    if setting.streamed is None or not (setting.streamed.shares_path and moves.copied_bytes):
        return ""
    return f", and {moves.copied_bytes / 1e9:.3g} GB from host memory over the same link"


def _gpu_step(setting: Setting, practice: Practice, *, terms: bool) -> _Step:
    work = work_of(setting, practice)
    more = setting.accumulation - 1
    seconds = _seconds(work, more)
    reduce_seconds = _reduce_seconds(work.moves)
    if not terms:
        return _Step(seconds=seconds, lower=seconds, upper=seconds, reduce_seconds=reduce_seconds, terms=())
    lower = ct.OPTIMISTIC.value * (busiest_seconds(work.last) + more * busiest_seconds(work.inner))
    upper = ct.PESSIMISTIC.value * (serial_seconds(work.last) + more * serial_seconds(work.inner))
    return _Step(
        seconds=seconds,
        lower=lower,
        upper=upper,
        reduce_seconds=reduce_seconds,
        terms=_terms(setting, work, seconds),
    )


def _reduce_seconds(moves: Moves) -> float:
    return moves.reduce_seconds * moves.groups * moves.reduces


def _seconds(work: Work, more: int) -> float:
    """The step: `more` micro-steps without what only the last one does, and the last one."""
    last = end_seconds(work.last)
    if not more:
        return last
    if work.inner.reduce_seconds == work.last.reduce_seconds:
        return last + more * (last - work.last.tail_seconds)
    return last + more * end_seconds(work.inner)


def _terms(setting: Setting, work: Work, seconds: float) -> tuple[TimeTerm, ...]:
    """Compute as it is; the rest by what the step saves without it, one after the other.

    So the terms add up to the step, and what is hidden behind compute counts 0.
    """
    steps = setting.accumulation
    terms = [
        TimeTerm(name=x.name, seconds=x.seconds * steps, total_seconds=x.seconds * steps, why=x.why) for x in work.parts
    ]
    terms += [replace(term, total_seconds=term.seconds) for term in (work.optimizer, work.codec)]
    now = seconds
    for term in _hideable(setting, work):
        left = now
        if term.total_seconds > 0:
            work = _without(work, term.name)
            left = _seconds(work, steps - 1)
        added = max(0.0, now - left)
        hidden = max(0.0, 1 - added / term.total_seconds) if term.total_seconds > 0 else 0.0
        terms.append(replace(term, seconds=added, why=f"{term.why}; {hidden:.0%} of it beside other work"))
        now = left
    return tuple(terms)


def _hideable(setting: Setting, work: Work) -> tuple[TimeTerm, ...]:
    """What other streams do, with all of its work as `total_seconds`."""
    moves, layers, steps = work.moves, setting.model.layers, setting.accumulation
    reduce, gathers = (replace(term, total_seconds=term.seconds) for term in _exchanged(setting, moves))
    copies = moves.copy_seconds * moves.passes + 2 * moves.activation_seconds
    visits = (work.inner.forward, work.inner.backward)
    host = work.inner.start_seconds + layers * sum(visit.host for visit in visits)
    streams = setting.streamed is not None
    where = "host memory or a drive" if streams else "the offload target"
    offload = TimeTerm(
        name="base_copy" if streams else "offload_copies",
        seconds=0.0,
        total_seconds=copies * layers * steps,
        why=f"{moves.copied_bytes / 1e9:.3g} GB from {where} {moves.passes * steps:.4g} times a step",
    )
    overhead = TimeTerm(
        name="overhead", seconds=0.0, total_seconds=host * steps, why="Python and kernel launches, hooks, collation"
    )
    return reduce, gathers, offload, overhead


def _without(work: Work, name: str) -> Work:
    """The same step without one kind of work."""

    def cut(plan: Schedule) -> Schedule:
        match name:
            case "all_reduce":
                return replace(plan, reduce_seconds=0.0)
            case "gathers" | "base_gather":
                return replace(
                    plan, forward=replace(plan.forward, gather=0.0), backward=replace(plan.backward, gather=0.0)
                )
            case "offload_copies" | "base_copy":
                return replace(plan, forward=replace(plan.forward, copy=0.0), backward=replace(plan.backward, copy=0.0))
        plan = replace(plan, forward=replace(plan.forward, host=0.0), backward=replace(plan.backward, host=0.0))
        return replace(plan, start_seconds=0.0)

    return replace(work, last=cut(work.last), inner=cut(work.inner))
