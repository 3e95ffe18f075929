"""A lever as a value, and what of all levers is set for ranks: apart from how they are found, which needs routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from launch.spec import RESERVED_NAMES


class Kind(Enum):
    """How a lever is pulled."""

    variable = "variable"
    placement = "placement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One thing that a launch can decide.

    Attributes:
        name: of the variable, or of what is placed.
        value: what it should be; empty where nothing is to be set.
        applies: whether the launch does it, the user's own setting aside.
        evidence: why, or why not.
        source: where the evidence is from.
        overridden_by: the user's setting that stands in its place; empty for none.
        kind: a variable of the ranks, or something that is placed.
        by_device: the value of each device, where it has one of its own.
    """

    name: str
    value: str
    applies: bool
    evidence: str
    source: str
    overridden_by: str = ""
    kind: Kind = Kind.variable
    by_device: tuple[tuple[str, str], ...] = ()

    @property
    def is_pulled(self) -> bool:
        """Whether the launch sets it in the end."""
        return self.applies and not self.overridden_by


def variables(found: Sequence[Lever]) -> tuple[tuple[str, str], ...]:
    """What to set for every rank. The choice of devices is left out: it has fields of its own in a launch."""
    return tuple(
        (lever.name, lever.value)
        for lever in found
        if lever.kind is Kind.variable and lever.is_pulled and lever.name not in RESERVED_NAMES
    )
