"""Ranks of adapters that change while they train."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config_options import ResizeWhen


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeConfig:
    """When ranks change, and how far. Nothing changes by default.

    Attributes:
        at: ranks of all adapters by the step after which they get them, as texts and numbers.
        when: what else changes ranks.
        every: steps that `when` looks at.
        gain: share by which the mean loss must fall over `every` steps, or it stands still.
        energy: share of an adapter's squared singular values that `when` leaves it.
        min_rank: that `when` and memory leave at least.
        max_rank: that `when` gives at most; None for twice the largest rank of the time.
        warmup: steps in which the learning rate climbs again after a change.
        under_pressure: memory that runs out may halve the ranks, where nothing else fits.
    """

    at: tuple[tuple[str, float], ...] = ()
    when: ResizeWhen = ResizeWhen.none
    every: int = 50
    gain: float = 0.01
    energy: float = 0.99
    min_rank: int = 4
    max_rank: int | None = None
    warmup: int = 5
    under_pressure: bool = False

    @property
    def steps(self) -> dict[int, int]:
        """Ranks by step, from valid values."""
        return {int(step): int(rank) for step, rank in self.at}

    @property
    def in_training(self) -> bool:
        """Whether ranks may change while a process trains."""
        return bool(self.at) or self.when is not ResizeWhen.none

    @property
    def largest(self) -> int:
        """Largest rank that steps ask for; 0 where none does. `when` never adds parameters."""
        return max(self.steps.values(), default=0)
