"""A host whose memory is nearly used up: the kernel ends a process soon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.monitor.detectors.latch import QUIET, Latch
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import HostReading
from topology.units import GIB, MIB, format_bytes

__all__ = ["IN_A_ROW", "State", "update"]

IN_A_ROW: Final = 3
_SHARE: Final = 0.03
# Large hosts run on with a small share of their memory, small ones need some for the kernel.
_FEWEST_BYTES: Final = 256 * MIB
_MOST_BYTES: Final = 2 * GIB
_WELL: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Of one host: whether it was told."""

    latch: Latch = QUIET


def update(state: State, reading: HostReading, _facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge one host by what its processes may still take."""
    left = reading.memory_available_bytes
    if left is None:
        return state, ()
    total = left + (reading.memory_used_bytes or 0)
    least = min(max(_SHARE * total, _FEWEST_BYTES), _MOST_BYTES)
    latch = state.latch.turn(bad=left < least, good=left > _WELL * least, raise_after=IN_A_ROW, clear_after=IN_A_ROW)
    after = State(latch=latch)
    if not latch.says(state.latch):
        return after, ()
    found = Finding(
        kind=Kind.host_memory_low,
        severity=Severity.warning,
        time=reading.time,
        host=reading.host,
        evidence=f"host {reading.host} has {format_bytes(left)} of {format_bytes(total)} left for this run",
        numbers=(("available_bytes", float(left)), ("total_bytes", float(total))),
        advice="Save a checkpoint; then fewer ranks or less offload on this host, or a larger memory limit.",
    )
    return after, (found,)
