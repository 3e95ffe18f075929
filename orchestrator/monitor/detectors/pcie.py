"""A PCIe link that runs slower than device and slot can: suspected from readings under load, told after a timed copy.

An idle GPU lets its link fall back to Gen1 and brings it up again within a moment, thousands of times an hour, so
readings without load say nothing. Reports can be wrong as well: only a measured rate makes a fault of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import CopyReading, DeviceReading
from topology.link_rates import pcie_rate
from topology.units import format_rate

__all__ = ["SAMPLES", "State", "update", "update_copy"]

SAMPLES: Final = 5  # under load, all of them slow
_COMING_UP: Final = 2  # readings under load before one counts: the link needs a moment
_BUSY: Final = 0.5
_TRAFFIC: Final = 0.1  # of what the link carries as it runs
# Packet headers leave 80-90% of a link to the data; half a link cannot reach this share of the whole.
_ENOUGH: Final = 0.6
_THIRD: Final = 1 / 3  # below it, no tuning elsewhere makes up for the link


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known of the link of one device.

    Attributes:
        loaded: readings under load in a row.
        samples: generation and width of the newest of them that count.
        able: generation and width that device and slot could run at; None before they are known.
        suspect: as which the link was suspected; None while it is not.
        cleared: as which a copy found it to be fast all the same.
        is_confirmed: a copy showed it to be slow.
        replays: of the driver's counter: when the suspicion arose, and now.
    """

    loaded: int = 0
    samples: tuple[tuple[int, int], ...] = ()
    able: tuple[int, int] | None = None
    suspect: tuple[int, int] | None = None
    cleared: tuple[int, int] | None = None
    is_confirmed: bool = False
    replays: tuple[int, int] | None = None


def update(state: State, reading: DeviceReading, _facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge a reading of one device; a suspicion asks for a timed copy."""
    seen = _link(reading.pcie_generation, reading.pcie_width)
    able = _link(reading.max_pcie_generation, reading.max_pcie_width)
    if seen is None or able is None or not _is_loaded(reading, seen):
        return (replace(state, loaded=0) if state.loaded else state), ()
    state = replace(state, loaded=state.loaded + 1)
    if state.loaded <= _COMING_UP:
        return state, ()
    samples = (*state.samples, seen)[-SAMPLES:]
    best = max(samples, key=_rate)
    state = replace(state, samples=samples, able=able, replays=_replays(state, reading))
    if len(samples) < SAMPLES:
        return state, ()
    if _rate(best) >= _rate(able):
        # A fault that a copy showed is over only when the link was seen whole all the time.
        is_over = all(_rate(one) >= _rate(able) for one in samples)
        whole = State(loaded=state.loaded, samples=samples, able=able)
        return (whole if is_over or not state.is_confirmed else state), ()
    if best in {state.suspect, state.cleared} or state.is_confirmed:
        return state, ()
    state = replace(state, suspect=best, cleared=None, replays=_begin(reading))
    return state, (_suspicion(reading, best, able),)


def update_copy(state: State, copy: CopyReading, _facts: Facts) -> tuple[State, tuple[Finding, ...]]:
    """Judge a timed copy. Without a suspicion it says nothing: copies share the link with the training."""
    if state.suspect is None or state.able is None:
        return state, ()
    if copy.bytes_per_second >= _ENOUGH * _rate(state.able):
        return replace(state, suspect=None, cleared=state.suspect, is_confirmed=False), ()
    if state.is_confirmed:
        return state, ()
    return replace(state, is_confirmed=True), (_fault(state, copy, state.suspect, state.able),)


def _link(generation: int | None, width: int | None) -> tuple[int, int] | None:
    link = generation or 0, width or 0
    return link if _rate(link) > 0 else None


@cache
def _rate(link: tuple[int, int]) -> float:
    rate = pcie_rate(*link)
    return 0.0 if rate is None else rate.bytes_per_second


def _is_loaded(reading: DeviceReading, seen: tuple[int, int]) -> bool:
    busy = max(reading.utilisation or 0.0, reading.sm_utilisation or 0.0)
    traffic = (reading.pcie_tx_bytes_per_second or 0.0) + (reading.pcie_rx_bytes_per_second or 0.0)
    return busy >= _BUSY or traffic >= _TRAFFIC * _rate(seen)


def _begin(reading: DeviceReading) -> tuple[int, int] | None:
    return None if reading.pcie_replays is None else (reading.pcie_replays, reading.pcie_replays)


def _replays(state: State, reading: DeviceReading) -> tuple[int, int] | None:
    if state.replays is None or reading.pcie_replays is None:
        return state.replays
    return state.replays[0], max(state.replays[0], reading.pcie_replays)


def _text(link: tuple[int, int]) -> str:
    return f"Gen{link[0]} x{link[1]}"


def _suspicion(reading: DeviceReading, seen: tuple[int, int], able: tuple[int, int]) -> Finding:
    return Finding(
        kind=Kind.pcie_downgrade_suspected,
        severity=Severity.note,
        time=reading.time,
        host=reading.host,
        device=reading.device,
        evidence=(
            f"{reading.device}: its PCIe link runs at {_text(seen)} instead of {_text(able)} in {SAMPLES} readings "
            "under load"
        ),
        numbers=(
            ("generation", seen[0]),
            ("width", seen[1]),
            ("possible_bytes_per_second", _rate(able)),
            ("reported_bytes_per_second", _rate(seen)),
        ),
        advice="Time a copy from the host to this device: the report alone may be wrong.",
    )


def _fault(state: State, copy: CopyReading, seen: tuple[int, int], able: tuple[int, int]) -> Finding:
    share = copy.bytes_per_second / _rate(able)
    grown = copy.pcie_replays if copy.pcie_replays is not None else _grown(state)
    replays = "" if grown is None else f", {grown} replays meanwhile"
    return Finding(
        kind=Kind.pcie_downgrade,
        severity=Severity.error if share <= _THIRD else Severity.warning,
        time=copy.time,
        host=copy.host,
        device=copy.device,
        evidence=(
            f"{copy.device}: copies reach {format_rate(copy.bytes_per_second)}, {share:.0%} of the "
            f"{format_rate(_rate(able))} of {_text(able)}; the link reports {_text(seen)}{replays}"
        ),
        numbers=(
            ("bytes_per_second", copy.bytes_per_second),
            ("possible_bytes_per_second", _rate(able)),
            ("pcie_replays", float(grown or 0)),
        ),
        advice=(
            "Plan with the measured rate, or leave the device out; when the run has ended, reseat the card and its "
            "riser, and look for AER messages in dmesg (`lspci -vv` shows LnkSta against LnkCap)."
        ),
    )


def _grown(state: State) -> int | None:
    return None if state.replays is None else state.replays[1] - state.replays[0]
