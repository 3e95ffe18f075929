"""Counters of a device that should stand still (memory errors, NVLink errors), and devices that are gone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from orchestrator.monitor.detectors.latch import QUIET, Latch
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind, Response, Severity
from orchestrator.monitor.readings import DeviceReading

__all__ = ["NVLINK_READINGS", "State", "update"]

# Links repeat what arrived damaged, so a few errors cost nothing; a link that makes them all the time is breaking.
_NVLINK_ERRORS: Final = 10
NVLINK_READINGS: Final = 3
_QUIET_READINGS: Final = 60
_BACK_READINGS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Of one device.

    Attributes:
        ecc, nvlink: the counters as they were last; None before they were read.
        nvlink_grown: errors since the counter last stood still for long.
        nvlink_rises: readings in which it grew since then.
        links, lost: whether they were told.
    """

    ecc: int | None = None
    nvlink: int | None = None
    nvlink_grown: int = 0
    nvlink_rises: int = 0
    links: Latch = QUIET
    lost: Latch = QUIET


def update(state: State, reading: DeviceReading, _facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge one device. What the counters held before the first reading is no fault of this run."""
    found: tuple[Finding, ...] = ()
    for judge in (_lost, _ecc, _nvlink):
        state, more = judge(state, reading)
        found += more
    return state, found


def _lost(state: State, reading: DeviceReading) -> tuple[State, tuple[Finding, ...]]:
    latch = state.lost.turn(bad=reading.lost, clear_after=_BACK_READINGS)
    after = replace(state, lost=latch)
    if not latch.says(state.lost):
        return after, ()
    evidence = f"{reading.device}: the driver no longer reaches it"
    advice = (
        "Go on without it; a person must look for `Xid 79` in dmesg, drain and reboot the host, and reseat the card if "
        "it comes again."
    )
    found = _finding(Kind.device_lost, Severity.error, reading, evidence, advice)
    return after, (replace(found, response=Response.drop_device, quarantine=True),)


def _ecc(state: State, reading: DeviceReading) -> tuple[State, tuple[Finding, ...]]:
    if reading.ecc_uncorrected is None:
        return state, ()
    grown = 0 if state.ecc is None else reading.ecc_uncorrected - state.ecc
    after = replace(state, ecc=reading.ecc_uncorrected)
    if grown <= 0:  # below zero: the driver was loaded anew
        return after, ()
    evidence = f"{reading.device}: {grown} uncorrected memory errors since the last reading"
    advice = (
        "Values may be wrong since then: go back to the newest checkpoint before it. When the run has ended, a person "
        "should reset the GPU, so that bad rows are remapped, and see `nvidia-smi -q -d ECC,ROW_REMAPPER`."
    )
    numbers = (("errors", float(grown)),)
    found = _finding(Kind.ecc_uncorrected, Severity.error, reading, evidence, advice, numbers)
    return after, (replace(found, response=Response.restart),)


def _nvlink(state: State, reading: DeviceReading) -> tuple[State, tuple[Finding, ...]]:
    if reading.nvlink_errors is None:
        return state, ()
    grown = 0 if state.nvlink is None else max(0, reading.nvlink_errors - state.nvlink)
    errors, rises = state.nvlink_grown + grown, state.nvlink_rises + (grown > 0)
    bad = errors >= _NVLINK_ERRORS and rises >= NVLINK_READINGS
    latch = state.links.turn(bad=bad and grown > 0, good=grown == 0, clear_after=_QUIET_READINGS)
    if latch.good >= _QUIET_READINGS:
        errors, rises = 0, 0
    after = replace(state, nvlink=reading.nvlink_errors, nvlink_grown=errors, nvlink_rises=rises, links=latch)
    if not latch.says(state.links):
        return after, ()
    evidence = f"{reading.device}: {errors} NVLink errors in {rises} readings, and growing"
    advice = (
        "Watch for `Xid 74`; a person should look at `nvidia-smi nvlink -e`, at the bridge or the baseboard, and reset "
        "or reboot when the run has ended."
    )
    numbers = (("errors", float(errors)), ("readings", float(rises)))
    return after, (_finding(Kind.nvlink_errors, Severity.warning, reading, evidence, advice, numbers),)


def _finding(
    kind: Kind,
    severity: Severity,
    reading: DeviceReading,
    evidence: str,
    advice: str,
    numbers: tuple[tuple[str, float], ...] = (),
) -> Finding:
    return Finding(
        kind=kind,
        severity=severity,
        time=reading.time,
        host=reading.host,
        device=reading.device,
        evidence=evidence,
        numbers=numbers,
        advice=advice,
    )
