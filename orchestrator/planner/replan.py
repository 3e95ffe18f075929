"""Another plan for a run that has met something: a pure function of the plan, the machine and what has happened.

Each event is a change of the planning problem, which is then planned anew: the same rows in the same steps, the same
adapters, base and arithmetic, so that the checkpoint fits whatever comes out. What has happened before stays in force
(`Plan.setbacks`), so no plan that failed can come back.

Memory that ran out: the prediction was too low by a factor that nobody knows. So the next plan must be predicted to
need less, in the phase that failed and on such devices: a tenth less, or as much less as the rank's own numbers say.
Settings that the user has fixed are left to the planner one by one, then less of a saving is accepted. Only where the
user allows it, adapters go on in a smaller rank after that, and last of all the longest rows are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.calibration_file import Chosen
from orchestrator.config_codec import parse_config
from orchestrator.errors import NothingFits, Problem, UserError
from orchestrator.planner.build import plan_of_solution
from orchestrator.planner.ceilings import ceilings_after, factors_for, lowered, predicted
from orchestrator.planner.events import Back, Event, Lost, OutOfMemory, SlowNetwork, SlowRanks
from orchestrator.planner.machine_left import (
    config_left,
    counts_left,
    known_left,
    links_met,
    machine_left,
    slowed_ports,
)
from orchestrator.planner.opened import openings
from orchestrator.planner.plan import Plan
from orchestrator.planner.plan_changes import changes_between
from orchestrator.planner.setbacks import Ceiling, Setbacks, SlowLink, SlowSlot, slots_of
from orchestrator.planner.smaller_ranks import smaller_ranks
from orchestrator.planner.solve import Asked, Solution, solve
from orchestrator.workload.batch import DataStats
from orchestrator.workload.model import ModelShape
from topology.model import Topology

SHORTEST_ROWS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """Another plan.

    Attributes:
        plan: with what the run has met so far in `setbacks`.
        topology: of what is left of the machine: what the plan was made for.
        changes: what differs from the plan before, in words; empty where the same plan is still the best.
        lossy: whether rows are cut shorter than before.
    """

    plan: Plan
    topology: Topology
    changes: tuple[str, ...]
    lossy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a plan is made from, whatever happens.

    Attributes:
        topology: the whole machine, with what is lost.
        model, data: of the run.
        known: what was measured.
        counts: ranks of each host, where the user tells them.
        named: the user's names of the hosts, in their order.
    """

    topology: Topology
    model: ModelShape
    data: DataStats
    known: Chosen
    counts: tuple[int, ...] = ()
    named: tuple[str, ...] = ()


def replan(plan: Plan, ground: Ground, event: Event) -> Replanned:
    """Plan again.

    Args:
        plan: that ran when it happened.
        ground: what plans are made from.
        event: what happened.

    Raises:
        NothingFits: no other plan is left; with all that was tried.
        UserError: the event is of a rank, device, host or link that there is not.
    """
    before = plan.setbacks or Setbacks(config=plan.config, slots=slots_of(plan.chosen.strategy.device_ids))
    _check(plan, ground.topology, event)
    if isinstance(event, OutOfMemory):
        return _with_less_memory(plan, ground, before, event)
    setbacks = _after(plan, before, event, ground.topology)
    asked = _asked(plan, ground, setbacks)
    solution = solve(asked)
    if solution.found.best is None:
        raise _refusal(f"no plan is left {_words(event)}", [("planned again", solution)])
    return _checked(_replanned(plan, ground, asked, solution))


def _after(plan: Plan, before: Setbacks, event: Event, topology: Topology) -> Setbacks:
    slots = slots_of(plan.chosen.strategy.device_ids)
    if isinstance(event, Lost):
        lost = (*event.devices, *(slots[rank] for rank in event.ranks))
        return replace(
            before, lost_slots=_joined(before.lost_slots, lost), lost_hosts=_joined(before.lost_hosts, event.hosts)
        )
    if isinstance(event, Back):
        return replace(
            before,
            lost_slots=tuple(slot for slot in before.lost_slots if slot not in event.devices),
            lost_hosts=tuple(host for host in before.lost_hosts if host not in event.hosts),
        )
    if isinstance(event, SlowRanks):
        most = max(event.speeds)
        speeds = {slot: before.speed_of(slot) for slot in (*(one.slot for one in before.slow), *slots)}
        speeds |= {slot: speeds[slot] * own / most for slot, own in zip(slots, event.speeds, strict=True)}
        return replace(before, slow=tuple(SlowSlot(slot=slot, speed=own) for slot, own in speeds.items() if own != 1))
    if isinstance(event, SlowLink):
        others = tuple(one for one in before.links if {one.a, one.b} != {event.a, event.b})
        return replace(before, links=(*others, event))
    if isinstance(event, SlowNetwork):
        slower = slowed_ports(machine_left(topology, before), event.share)
        others = tuple(one for one in before.links if one.b)
        return replace(before, links=(*others, *slower))
    raise TypeError(f"no plan is the answer to {event!r}")


def _asked(plan: Plan, ground: Ground, setbacks: Setbacks) -> Asked:
    """The planning problem after setbacks."""
    left = machine_left(ground.topology, setbacks)
    strategy = plan.chosen.strategy
    return Asked(
        config=config_left(setbacks, ground.topology, left, ground.named, strategy.precision),
        topology=left,
        model=ground.model,
        data=ground.data,
        calibration=known_left(ground.known, ground.topology, setbacks).calibration,
        counts=counts_left(ground.counts, setbacks, ground.topology),
        setbacks=setbacks,
    )


def _replanned(plan: Plan, ground: Ground, asked: Asked, solution: Solution) -> Replanned:
    setbacks = asked.setbacks or Setbacks()
    after = plan_of_solution(asked, solution, plan.run_id, known_left(ground.known, ground.topology, setbacks))
    lossy = after.chosen.strategy.seq_len < plan.chosen.strategy.seq_len
    return Replanned(plan=after, topology=asked.topology, changes=changes_between(plan, after), lossy=lossy)


def _checked(found: Replanned) -> Replanned:
    """Refuse to go on with fewer ranks than the user thinks worth it."""
    ranks, least = found.plan.chosen.strategy.world_size, found.plan.run_config.recovery.min_ranks
    if ranks < least:
        told = f"{ranks} rank{'s' if ranks > 1 else ''} would be left, recovery.min_ranks={least} asks for more"
        remedy = "Bring devices or hosts back and go on with resume=true, or lower recovery.min_ranks."
        raise NothingFits(Problem(where="plan", found=told, remedy=remedy))
    return found


def _with_less_memory(plan: Plan, ground: Ground, before: Setbacks, event: OutOfMemory) -> Replanned:
    needed = predicted(plan, _asked(plan, ground, before), event)
    tried: list[tuple[str, Solution]] = []
    for label, setbacks in _attempts(plan, before, event, ceilings_after(needed, event)):
        asked = _asked(plan, ground, setbacks)
        solution = solve(asked)
        if solution.found.best is not None:
            return _replanned(plan, ground, asked, solution)
        tried.append((label, solution))
    raise _refusal(_out_of(plan, event), tried)


def _attempts(
    plan: Plan, before: Setbacks, event: OutOfMemory, ceilings_of: dict[float, tuple[Ceiling, ...]]
) -> Iterator[tuple[str, Setbacks]]:
    """Problems to try, from the one that saves most and changes least to the last resort."""
    config = parse_config(before.config)
    sets = [before.opened, *(opened for opened in openings(config) if len(opened) > len(before.opened))]
    for factor in factors_for(event):
        limited = replace(before, ceilings=lowered(before.ceilings, ceilings_of[factor]))
        for opened in sets:
            label = f"at most {factor:.0%} of the memory{''.join(f', {name}' for name in opened)}"
            yield label, replace(limited, opened=opened)
    for rank in smaller_ranks(plan.run_config.adapter):
        for factor in factors_for(event):
            limited = replace(before, ceilings=lowered(before.ceilings, ceilings_of[factor]), opened=sets[-1])
            yield f"at most {factor:.0%} of the memory, adapter.rank={rank}", replace(limited, rank=rank)
    if not config.recovery.allow_lossy:
        return
    tightest = replace(before, ceilings=lowered(before.ceilings, ceilings_of[factors_for(event)[0]]), opened=sets[-1])
    whole, tokens = plan.rows_tokens, plan.chosen.strategy.seq_len
    tokens = min(tokens, max(SHORTEST_ROWS, plan.workload.max_tokens))
    while (tokens := tokens // 2 // 8 * 8) >= SHORTEST_ROWS:
        yield f"rows cut at {tokens} tokens", replace(tightest, whole_tokens=whole, cut_tokens=tokens)


def _check(plan: Plan, topology: Topology, event: Event) -> None:
    """Refuse what cannot have happened to this plan."""
    size = plan.chosen.strategy.world_size
    problems = []
    if isinstance(event, Lost):
        known = {*(device.id for device in topology.devices), *slots_of(plan.chosen.strategy.device_ids)}
        problems += [f"a device {name}" for name in event.devices if name not in known]
        problems += [f"a rank {rank} of {size}" for rank in event.ranks if not 0 <= rank < size]
        problems += [f"a host {name}" for name in event.hosts if name not in {host.name for host in topology.hosts}]
    if isinstance(event, SlowRanks) and (len(event.speeds) != size or min(event.speeds, default=0) <= 0):
        problems.append(f"speeds {event.speeds} of {size} ranks")
    if isinstance(event, SlowLink) and not (links_met(topology, event) and event.bytes_per_second > 0):
        problems.append(f"a link {event.a} - {event.b} of {event.bytes_per_second} bytes/s")
    if isinstance(event, SlowNetwork) and not slowed_ports(topology, event.share):
        problems.append("a network between hosts whose rate is known")
    if problems:
        remedy = "Plan anew with `trainmaster plan`: the machine is not the one that was planned for."
        raise UserError(*(Problem(where="plan again", found=f"there is not {one}", remedy=remedy) for one in problems))


def _joined(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*old, *new)))


def _words(event: Event) -> str:
    if isinstance(event, Lost):
        ranks = tuple(f"rank {rank}" for rank in event.ranks)
        return f"without {', '.join((*event.hosts, *event.devices, *ranks))}"
    return "with what was measured"


def _out_of(plan: Plan, event: OutOfMemory) -> str:
    who = "a rank" if event.rank is None else f"rank {event.rank}"
    ran = f"ran out of {event.where} memory in phase {event.phase} with {plan.chosen.strategy.label}"
    return f"{who} {ran}, and no plan that needs less is left"


def _refusal(found: str, tried: Sequence[tuple[str, Solution]]) -> NothingFits:
    """All that was tried, each with what is nearest to fitting, and every way of the last and widest try."""
    remedy = "Use a smaller model, data.seq_len or adapter.rank, or more or larger devices; all that was tried follows."
    told = [Problem(where="plan", found=found, remedy=remedy)]
    for label, solution in tried:
        nearest = next(iter(solution.found.refused), None)
        reason = "no way to run" if nearest is None else f"{nearest.strategy} {nearest.reason}"
        told.append(Problem(where=f"tried: {label}", found=reason, remedy="Rejected."))
    last = tried[-1][1].found.refused if tried else ()
    told += [Problem(where=entry.strategy, found=entry.reason, remedy="Rejected.") for entry in last[1:]]
    return NothingFits(*told)
