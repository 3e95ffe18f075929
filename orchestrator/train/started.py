"""Whether the ranks that a launcher started are ones that the plan allows: how many, and how many on each host.

Rows belong to ranks and are shared out anew for any other number of them. Where the plan cuts them by what each device
can do, or hosts have unequal numbers of ranks, the ranks of each host must be those of the plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.errors import Problem, UserError
from orchestrator.planner.plan import Plan
from orchestrator.planner.ranks import is_even
from orchestrator.planner.strategy import Strategy


def ranks_here() -> int | None:
    """Ranks of this host, where the launcher tells them."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(told) if told.isdecimal() else None


def check_started(plan: Plan, started: int, gather: Callable[[object], list[Any]], say: Callable[[str], None]) -> None:
    """Refuse ranks on other hosts than planned where that matters; say it where another number runs. Collective.

    Args:
        plan: of the run.
        started: ranks that run.
        gather: returns one value of each rank.
        say: where a word to the user goes.

    Raises:
        UserError: the same on all ranks.
    """
    problem = layout_problem(plan, gather(ranks_here()))
    if problem is not None:
        raise UserError(problem)
    if changed := changed_words(plan, started):
        say(f"note: {changed}")


def size_problem(plan: Plan, started: int) -> Problem | None:
    """Say why so many ranks cannot run the plan, and which numbers can; None where they can."""
    strategy = plan.chosen.strategy
    step = 1 if strategy.extras is None else strategy.extras.hpz_partition_size
    rows = strategy.global_batch
    if started == strategy.world_size or (started <= rows and started % step == 0):
        return None
    found = f"{_ranks(started)} started, but a step has {rows} rows (batch.global) and each rank takes at least one"
    if started <= rows:
        found = f"{_ranks(started)} started, but each {step} of them share a copy of the base"
    others = f"any number up to {rows}" if step == 1 else f"a multiple of {step} up to {rows}"
    remedy = f"Start {planned_words(strategy)}, as planned, or {others}: rows are then shared out anew."
    return Problem(where="WORLD_SIZE", found=found, remedy=remedy)


def layout_problem(plan: Plan, beside: Sequence[int | None]) -> Problem | None:
    """Say where ranks run on other hosts than those that their rows and devices were planned for.

    Args:
        plan: of the run.
        beside: for each rank that runs, the ranks of its host, itself included; None where nobody tells.
    """
    strategy = plan.chosen.strategy
    alike = is_even(strategy.ranks_per_host) and is_even(strategy.shares) and is_even(strategy.micro)
    if len(beside) != strategy.world_size or plan.device_kind == "cpu" or alike:
        return None
    planned = [count for count in strategy.ranks_per_host for _ in range(count)]
    wrong = [at for at, (one, other) in enumerate(zip(planned, beside, strict=True)) if other not in {None, one}]
    if not wrong:
        return None
    first = wrong[0]
    found = f"rank {first} is one of {beside[first]} on its host, {planned[first]} were planned there"
    remedy = f"Start {planned_words(strategy)}, in this order: their rows and devices differ."
    return Problem(where="LOCAL_WORLD_SIZE", found=found, remedy=remedy)


def changed_words(plan: Plan, started: int) -> str:
    """Say that another number of ranks runs than was planned; empty where it does not."""
    strategy = plan.chosen.strategy
    if started == strategy.world_size:
        return ""
    text = (
        f"{_ranks(started)} started, the plan is for {planned_words(strategy)}: the rows of a step are shared out anew"
    )
    if started < strategy.world_size and strategy.engine.value != "ddp":
        text += ", and each rank holds more of the base than was planned"
    return text


def planned_words(strategy: Strategy) -> str:
    """Name the ranks of a plan, host by host where there are several: `6 ranks on 2 hosts (4 and 2)`."""
    counts = strategy.ranks_per_host
    if len(counts) == 1:
        return _ranks(strategy.world_size)
    each = f"{counts[0]} on each" if is_even(counts) else " and ".join(map(str, counts))
    return f"{_ranks(strategy.world_size)} on {len(counts)} hosts ({each})"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
