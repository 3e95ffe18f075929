"""What may happen to a run that another plan is the answer to."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.planner.setbacks import DEVICE, HOST, PHASES, SlowLink


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A rank has run out of memory.

    Attributes:
        where: `device` or `host`.
        phase: of the estimate: `load`, `train` or `save`.
        rank: that ran out; None where nobody knows.
        used_bytes: of this memory by the rank when it ran out; 0 where it is not known, as the next two.
        asked_bytes: that it asked for.
        free_bytes: that were left.
    """

    where: str
    phase: str
    rank: int | None = None
    used_bytes: int = 0
    asked_bytes: int = 0
    free_bytes: int = 0

    def __post_init__(self) -> None:
        """Reject phases and places that no estimate has."""
        if self.phase not in PHASES or self.where not in {DEVICE, HOST}:
            raise ValueError(f"out of {self.where!r} memory in a phase {self.phase!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Devices (by id), ranks of the plan or whole hosts that take no part any more."""

    devices: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """Devices or hosts that are there again."""

    devices: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRanks:
    """How fast each rank computes, as a share of what was planned for it; only their ratios count."""

    speeds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNetwork:
    """Between hosts everything takes longer than was planned, and nobody knows which port is to blame.

    Attributes:
        share: of the planned rate that is carried, above 0 and below 1.
    """

    share: float

    def __post_init__(self) -> None:
        """Reject what is no slower."""
        if not 0 < self.share < 1:
            raise ValueError(f"a network that carries {self.share} of what was planned is not slow")


Event = OutOfMemory | Lost | Back | SlowRanks | SlowLink | SlowNetwork

_PHASES = {
    "starting": "load",
    "loading": "load",
    "rehearsing": "train",
    "evaluating": "train",
    "training": "train",
    "saving": "save",
    "finishing": "save",
}


def phase_of_estimate(doing: str) -> str:
    """The phase of the estimate that covers what a rank was doing; an evaluation runs no larger batch than a step."""
    return _PHASES.get(doing, "train")
