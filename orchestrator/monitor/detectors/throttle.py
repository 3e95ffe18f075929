"""Clocks that heat or power hold down, by the time that they were held down.

Drivers count that time in nanoseconds. Only where they do not tell it, the reasons of the moment are taken to hold
from one reading to the next. A second of it is nothing: cards do that at every change of load.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from orchestrator.monitor.detectors.latch import Latch
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import DeviceReading

__all__ = ["LEAST_SECONDS", "Span", "State", "update"]

_WINDOW_SECONDS: Final = 30.0
LEAST_SECONDS: Final = 5.0
_SHARE: Final = 0.25
_CLEAR_SHARE: Final = 0.05
_CAP_SHARE: Final = 0.5
_KEPT: Final = 64
_CLOSEST_SECONDS: Final = 0.5
_LONGEST_GAP_SECONDS: Final = 5.0  # between two readings, the reason of the moment may have come and gone
_NS: Final = 1e-9
# Bits of nvmlClocksEventReasons, by the names of their accumulated times.
_CAUSES: Final = MappingProxyType(
    {"sw_power_cap": 0x4, "sw_thermal": 0x20, "hw_thermal": 0x40, "hw_power_brake": 0x80, "hw_slowdown": 0x8}
)
# The last one has no time of its own: it comes with those of heat or power brake, where they are counted.
_HARDWARE: Final = frozenset({"hw_thermal", "hw_power_brake"})
_PARTS: Final = MappingProxyType(
    {
        Kind.thermal_throttle: ("sw_thermal", "hw_thermal"),
        Kind.power_brake: ("hw_power_brake",),
        Kind.hardware_slowdown: ("hw_slowdown",),
        Kind.power_cap: ("sw_power_cap",),
    }
)
_ADVICE: Final = MappingProxyType(
    {
        Kind.thermal_throttle: (
            "Look at the room, fans, dust and the neighbour's exhaust (`nvidia-smi -q -d TEMPERATURE,PERFORMANCE`); "
            "until then give this device less work or leave it out."
        ),
        Kind.power_brake: (
            "Look at the power supplies and cables of the card and at the board's power cap "
            "(`nvidia-smi -q -d POWER,PERFORMANCE`)."
        ),
        Kind.hardware_slowdown: (
            "The driver does not tell whether it is heat or power: `nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE`."
        ),
        Kind.power_cap: "No fault: `nvidia-smi -q -d POWER` shows the limit that somebody may raise.",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From one reading to the next: wall clock at both, and the seconds that each cause held the clocks down."""

    begin: float
    end: float
    held: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The newest reading of a device, the time before it, and what was told."""

    last: DeviceReading | None = None
    spans: tuple[Span, ...] = ()
    latches: tuple[tuple[Kind, Latch], ...] = tuple((kind, Latch()) for kind in _PARTS)


def update(state: State, reading: DeviceReading, _facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge one device. Of readings that come faster than twice a second some are passed over."""
    if reading.throttle_reasons is None and not reading.throttle_ns:
        return state, ()
    passed = None if state.last is None else reading.time - state.last.time
    if passed is not None and 0 <= passed < _CLOSEST_SECONDS:
        return state, ()
    if state.last is None or passed is None or passed < 0:
        return State(last=reading, latches=state.latches), ()
    # The newest span counts however long it is.
    kept = [span for span in state.spans if reading.time - span.begin <= _WINDOW_SECONDS]
    spans = (*kept, _span(state.last, reading))[-_KEPT:]
    seconds = spans[-1].end - spans[0].begin
    total = {part: sum(dict(span.held).get(part, 0.0) for span in spans) for part in _CAUSES}
    found, latches = [], []
    for kind, latch in state.latches:
        held = max(total[part] for part in _PARTS[kind])
        share = held / seconds
        least = _CAP_SHARE if kind is Kind.power_cap else _SHARE
        turned = latch.turn(
            bad=held >= LEAST_SECONDS and share >= least, good=seconds >= LEAST_SECONDS and share < _CLEAR_SHARE
        )
        latches.append((kind, turned))
        if turned.says(latch):
            found.append(_finding(kind, reading, held, seconds))
    return State(last=reading, spans=spans, latches=tuple(latches)), tuple(found)


def _span(before: DeviceReading, after: DeviceReading) -> Span:
    times = dict(before.throttle_ns), dict(after.throttle_ns)
    seconds = after.time - before.time
    held = []
    for part in _CAUSES:
        if part in times[0] and part in times[1]:
            # Below zero after a driver was loaded anew; above the time between after a clock was set back.
            held.append((part, min(max(0.0, (times[1][part] - times[0][part]) * _NS), seconds)))
        elif part != "hw_slowdown" or not all(_HARDWARE & set(one) for one in times):
            bit = _CAUSES[part]
            if (before.throttle_reasons or 0) & (after.throttle_reasons or 0) & bit:
                held.append((part, min(seconds, _LONGEST_GAP_SECONDS)))
    return Span(begin=before.time, end=after.time, held=tuple((part, value) for part, value in held if value > 0))


def _finding(kind: Kind, reading: DeviceReading, held: float, seconds: float) -> Finding:
    numbers = [("held_seconds", held), ("window_seconds", seconds)]
    words = [f"its clocks were held down by {_name(kind)} for {held:.1f} of {seconds:.1f} s"]
    if reading.temperature_celsius is not None:
        numbers.append(("temperature_celsius", float(reading.temperature_celsius)))
        words.append(f"{reading.temperature_celsius} degrees Celsius")
    if reading.sm_clock_mhz is not None and reading.max_sm_clock_mhz:
        numbers += [
            ("sm_clock_mhz", float(reading.sm_clock_mhz)),
            ("max_sm_clock_mhz", float(reading.max_sm_clock_mhz)),
        ]
        words.append(f"{reading.sm_clock_mhz} of {reading.max_sm_clock_mhz} MHz")
    return Finding(
        kind=kind,
        severity=Severity.note if kind is Kind.power_cap else Severity.warning,
        time=reading.time,
        host=reading.host,
        device=reading.device,
        evidence=f"{reading.device}: {', '.join(words)}",
        numbers=tuple(numbers),
        advice=_ADVICE[kind],
    )


def _name(kind: Kind) -> str:
    return {
        Kind.thermal_throttle: "heat",
        Kind.power_brake: "the power brake",
        Kind.hardware_slowdown: "the hardware",
        Kind.power_cap: "the power limit",
    }[kind]
