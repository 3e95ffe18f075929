"""A change of what was asked for, that a plan is made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.errors import UserError
from orchestrator.planner.plan import Choice
from orchestrator.planner.solve import Asked, cannot_fit, solve

# What one step away from the user's wish weighs, as a share of the time per token.
STEP_WEIGHT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of what was asked for.

    Attributes:
        text: what to change, as the user would type it where it is a setting.
        steps: how far it is from what was asked for.
        tries: from the mildest on; the first one that fits counts, with what is to be put into `text`.
    """

    text: str
    steps: int
    tries: tuple[tuple[str, Callable[[], Asked]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """A change that fits: what it is called, what it costs, and the best strategy with it.

    `limit_bytes` is the memory that its tightest rank then has: of its card, or of the host where ranks compute on CPUs
    (`is_gpu` false).
    """

    text: str
    weight: float
    choice: Choice
    limit_bytes: int
    is_gpu: bool


def first_that_fits(change: Change) -> WayOut | None:
    """Plan for each try of a change, from the mildest on; None where none fits."""
    for value, build in change.tries:
        try:
            asked = build()
            if cannot_fit(asked):
                continue
            found = solve(asked).found
        except UserError:
            continue  # no such modules, or not for this machine: not a way out
        if found.fit is not None:
            choice = found.ranked[0]
            ranks = found.fit.ranks
            return WayOut(
                text=change.text.format(value),
                weight=(1 + STEP_WEIGHT * change.steps) / choice.estimate.tokens_per_second,
                choice=choice,
                limit_bytes=ranks.machine.memory_bytes if ranks.machine.is_gpu else ranks.host_bytes,
                is_gpu=ranks.machine.is_gpu,
            )
    return None


def with_config(asked: Asked, **changes: object) -> Asked:
    """Replace fields of the configuration."""
    return replace(asked, config=replace(asked.config, **changes))  # type: ignore[arg-type]


def single(text: str, steps: int, build: Callable[[], Asked]) -> Change:
    """Return a change that is one try."""
    return Change(text=text, steps=steps, tries=(("", build),))
