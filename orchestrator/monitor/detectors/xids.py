"""XIDs and recovery actions of a device: one finding per fault, and another one where more of it comes to light."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind, Response, Severity
from orchestrator.monitor.readings import DeviceReading, Xid
from orchestrator.monitor.xid import XidVerdict, judge_xids, policy

__all__ = ["State", "update"]

_KEPT: Final = 64
_ORDER: Final = tuple(Response)
_SEVERITIES: Final = MappingProxyType({Response.ignore: Severity.note, Response.restart: Severity.warning})


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Of one device.

    Attributes:
        history: the newest XIDs, of earlier runs too where the caller has them.
        told: the gravest answer since the last pause.
        last: when the newest XID came.
        recovery: the recovery action that was told.
    """

    history: tuple[Xid, ...] = ()
    told: Response | None = None
    last: float | None = None
    recovery: int = 0


def update(state: State, reading: DeviceReading, _facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge the XIDs that came with a reading, and a recovery action that the driver asks for."""
    action = reading.recovery_action
    is_asked = bool(action) and action != state.recovery
    recovery = state.recovery if action is None else action
    if not reading.xids and not is_asked:
        return State(history=state.history, told=state.told, last=state.last, recovery=recovery), ()
    # All of them are this device's; a log names it by its address, the driver by its UUID.
    fresh = tuple(Xid(time=one.time, number=one.number, words=one.words) for one in reading.xids)
    verdict = judge_xids(fresh, state.history, action)
    begin = fresh[0].time if fresh else reading.time
    is_same = state.last is not None and begin - state.last <= policy().burst_seconds
    graver = not is_same or state.told is None or _ORDER.index(verdict.action) > _ORDER.index(state.told)
    after = State(
        history=(*state.history, *fresh)[-_KEPT:],
        told=verdict.action if graver else state.told,
        last=fresh[-1].time if fresh else state.last,
        recovery=recovery,
    )
    return after, (_finding(reading, verdict, fresh),) if graver or is_asked else ()


def _finding(reading: DeviceReading, verdict: XidVerdict, fresh: tuple[Xid, ...]) -> Finding:
    numbers = [("xid", float(fresh[0].number))] if fresh else []
    if reading.recovery_action is not None:
        numbers.append(("recovery_action", float(reading.recovery_action)))
    return Finding(
        kind=Kind.xid,
        severity=_SEVERITIES.get(verdict.action, Severity.error),
        time=reading.time,
        host=reading.host,
        device=reading.device,
        evidence=f"{reading.device}: {verdict.why}",
        numbers=tuple(numbers),
        advice=f"A person must: {verdict.person_must}." if verdict.person_must else "Nothing that a person must do.",
        response=verdict.action,
        quarantine=verdict.quarantine,
    )
