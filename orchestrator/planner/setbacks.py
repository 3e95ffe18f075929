"""What a run has met so far that its next plan must know of: memory that ran out, parts that are lost or slow.

It grows from plan to plan, and `plan.json` carries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

PHASES: Final = ("load", "train", "save")
DEVICE: Final = "device"
HOST: Final = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Predicted bytes that no rank on such a device may need in a phase: a plan that needed more ran out of memory.

    Attributes:
        phase: `load`, `train` or `save`.
        where: `device` or `host`; CPU ranks have the host's memory alone.
        device_name: of the ranks that it holds for.
        nbytes: the most that may be predicted.
    """

    phase: str
    where: str
    device_name: str
    nbytes: int

    def __post_init__(self) -> None:
        """Reject phases and places that no estimate has."""
        if self.phase not in PHASES or self.where not in {DEVICE, HOST}:
            raise ValueError(f"no memory {self.where!r} in a phase {self.phase!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSlot:
    """How fast a rank's place (see `slots_of`) computes, as a share of what was planned for it."""

    slot: str
    speed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """What a link reaches per direction, by the ids of its ends; with `b` empty, every port of the host `a`."""

    a: str
    b: str
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setbacks:
    """All of it.

    Attributes:
        config: what the user asked for, as `dump_config` writes it; empty where nothing has happened yet.
        slots: of the first plan's ranks, in their order: what the user's lists for ranks belong to.
        ceilings: of predicted memory; of two for the same, the lower one counts.
        lost_slots, lost_hosts: that take no part any more.
        slow: places that compute slower than planned.
        links: that carry less than planned.
        opened: settings of the user that were left to the planner, so that something fits.
        whole_tokens, cut_tokens: at which the rows were cut in the first plan, and are now cut, where that differs;
            0 elsewhere.
        rank: of all adapters at most, as the last resort where memory ran out; 0 for what the user asked for.
    """

    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    slots: tuple[str, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    lost_slots: tuple[str, ...] = ()
    lost_hosts: tuple[str, ...] = ()
    slow: tuple[SlowSlot, ...] = ()
    links: tuple[SlowLink, ...] = ()
    opened: tuple[str, ...] = ()
    whole_tokens: int = 0
    cut_tokens: int = 0
    rank: int = 0

    def speed_of(self, slot: str) -> float:
        """Share of its planned speed; 1 for a place that nobody complained of."""
        return next((one.speed for one in self.slow if one.slot == slot), 1.0)


def slots_of(device_ids: Sequence[str]) -> tuple[str, ...]:
    """A name for the place of each rank: its device, with a number where several ranks share one (CPU slots)."""
    seen: dict[str, int] = {}
    found = []
    for name in device_ids:
        seen[name] = seen.get(name, -1) + 1
        found.append(f"{name}#{seen[name]}" if seen[name] else name)
    return tuple(found)


def device_of(slot: str) -> str:
    """The device of a place."""
    name, _, number = slot.rpartition("#")
    return name if name and number.isdecimal() else slot
