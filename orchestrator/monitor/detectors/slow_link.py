"""A link that carries less than the plan counts on: measured alone, or seen in what all ranks wait for gradients.

The rank that comes last to a sum waits for the transfer alone, so the shortest wait of a step is that of the link; the
longer ones are waits for that rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.monitor.detectors.latch import QUIET, Latch
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import LinkReading, RankReading
from orchestrator.monitor.robust import median
from topology.units import format_rate

__all__ = ["IN_A_ROW", "MEASURED_IN_A_ROW", "LinkState", "State", "update", "update_link"]

IN_A_ROW: Final = 5
MEASURED_IN_A_ROW: Final = 3
_HALF: Final = 0.5
_WELL: Final = 0.7
# Predictions of what is hidden behind the passes can be far off, so the run's own first steps count as well.
_OVER_PLAN: Final = 3.0
_OVER_BEFORE: Final = 2.0
# Shares of the step: less is not worth a change.
_OF_STEP_OVER_PLAN: Final = 0.3
_OF_STEP_OVER_BEFORE: Final = 0.15
_FIRST: Final = 8
_ADVICE: Final = (
    "Measure the links (`trainmaster bench`) and plan with what they give; look at cables, at errors of the ports and "
    "at other traffic."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """Of one link that is measured alone."""

    latch: Latch = QUIET


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Of the waits for gradients.

    Attributes:
        first: shortest waits of the first steps, in seconds, which later ones are compared with.
        latch: whether it was told.
        step, taken: the newest step, and how many were seen.
    """

    first: tuple[float, ...] = ()
    latch: Latch = QUIET
    step: int = -1
    taken: int = 0


def update_link(state: LinkState, reading: LinkReading, facts: Facts) -> tuple[LinkState, tuple[Finding, ...]]:
    """Judge a measured rate against the plan's; a link that the plan does not know cannot be judged."""
    planned = dict(facts.link_bytes_per_second).get(reading.link)
    if not planned:
        return state, ()
    share = reading.bytes_per_second / planned
    latch = state.latch.turn(
        bad=share < _HALF, good=share >= _WELL, raise_after=MEASURED_IN_A_ROW, clear_after=MEASURED_IN_A_ROW
    )
    if not latch.says(state.latch):
        return LinkState(latch=latch), ()
    found = Finding(
        kind=Kind.slow_link,
        severity=Severity.warning,
        time=reading.time,
        step=reading.step,
        evidence=(
            f"link {reading.link} carries {format_rate(reading.bytes_per_second)}, {share:.0%} of the "
            f"{format_rate(planned)} that the plan counts on, {MEASURED_IN_A_ROW} times in a row"
        ),
        numbers=(("bytes_per_second", reading.bytes_per_second), ("planned_bytes_per_second", planned)),
        advice=_ADVICE,
    )
    return LinkState(latch=latch), (found,)


def update(state: State, group: tuple[RankReading, ...], facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge a step of all ranks."""
    waits = [one.communication_seconds for one in group if one.communication_seconds is not None]
    if len(group) < 2 or len(waits) < len(group):  # noqa: PLR2004 - one alone sends nothing
        return state, ()
    if group[0].step <= state.step:
        state = State()
    state = replace(state, step=group[0].step, taken=state.taken + 1)
    if state.taken <= facts.warmup_steps:
        return state, ()
    wait, step_seconds = min(waits), median(one.step_seconds for one in group)
    limit, expected, whose = _limit(state, facts, step_seconds)
    latch = state.latch.turn(bad=wait > limit, good=wait < _WELL * limit, raise_after=IN_A_ROW, clear_after=IN_A_ROW)
    first = (*state.first, wait) if len(state.first) < _FIRST else state.first
    after = replace(state, latch=latch, first=first)
    if not latch.says(state.latch):
        return after, ()
    found = Finding(
        kind=Kind.slow_link,
        severity=Severity.warning,
        time=group[0].time,
        step=group[0].step,
        evidence=(
            f"even the last rank waits {wait:.3f} s of a step of {step_seconds:.3f} s for gradients, {IN_A_ROW} steps "
            f"in a row; {expected:.3f} s {whose}"
        ),
        numbers=(("communication_seconds", wait), ("expected_seconds", expected), ("step_seconds", step_seconds)),
        advice=_ADVICE,
    )
    return after, (found,)


def _limit(state: State, facts: Facts, step_seconds: float) -> tuple[float, float, str]:
    """Return the longest wait that is well, what is expected, and who says so; the stricter of plan and first steps."""
    limits = [(math.inf, 0.0, "")]
    if facts.communication_seconds is not None:
        planned = facts.communication_seconds
        limits.append((max(_OVER_PLAN * planned, _OF_STEP_OVER_PLAN * step_seconds), planned, "are planned"))
    if len(state.first) == _FIRST:
        usual = median(state.first)
        least = _OF_STEP_OVER_BEFORE * step_seconds
        limits.append((max(_OVER_BEFORE * usual, least), usual, "were usual in the first steps"))
    return min(limits)
