"""Clocks held down by heat or power."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.monitor.detectors.throttle import LEAST_SECONDS, State, update

NAMES = ("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake")


def counted(made: Any, name: str, seconds: int, held: Callable[[int], float], interval: float = 1.0) -> list[Any]:
    """Readings in which the time of one kind grows by `held` seconds in each interval."""
    total, found = 0.0, []
    for at in range(seconds):
        total += held(at)
        times = tuple((each, int(total * 1e9) if each == name else 7) for each in NAMES)
        found.append(made.device(at * interval, throttle_ns=times))
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sw_thermal", "thermal_throttle"),
        ("hw_thermal", "thermal_throttle"),
        ("hw_power_brake", "power_brake"),
    ],
)
def test_lasting_throttling_is_found_within_ten_readings(made: Any, name: str, kind: str) -> None:
    for seconds, count in ((40 + int(LEAST_SECONDS) - 1, 0), (50, 1), (300, 1)):
        found = made.feed(State(), update, counted(made, name, seconds, lambda at: float(at >= 40)))
        assert made.kinds(found) == [kind] * count


def test_half_of_the_time_counts_too(made: Any) -> None:
    found = made.feed(State(), update, counted(made, "sw_thermal", 60, lambda at: 0.5))
    assert made.kinds(found) == ["thermal_throttle"]
    assert found[0].severity.value == "warning"


def test_it_is_told_again_after_it_was_over(made: Any) -> None:
    found = made.feed(State(), update, counted(made, "hw_thermal", 300, lambda at: float(at < 20 or at >= 200)))
    assert len(found) == 2


def test_the_power_limit_is_a_note(made: Any) -> None:
    found = made.feed(State(), update, counted(made, "sw_power_cap", 100, lambda at: 1.0))
    assert [(one.kind.value, one.severity.value) for one in found] == [("power_cap", "note")]


@pytest.mark.parametrize("mask", [0x20, 0x40, 0x80, 0x8])
def test_reasons_of_the_moment_count_where_times_are_missing(made: Any, mask: int) -> None:
    readings = [made.device(at, throttle_ns=(), throttle_reasons=mask if at >= 10 else 0) for at in range(25)]
    found = made.feed(State(), update, readings)
    assert len(found) == 1
    assert found[0].kind.value == {0x80: "power_brake", 0x8: "hardware_slowdown"}.get(mask, "thermal_throttle")


def test_reasons_of_the_moment_do_not_count_where_times_are_told(made: Any) -> None:
    readings = [made.device(at, throttle_reasons=0xE8) for at in range(60)]
    assert not made.feed(State(), update, readings)


@pytest.mark.parametrize("mask", [0x1, 0x2, 0x10, 0x100, 0x113])
def test_other_reasons_are_no_fault(made: Any, mask: int) -> None:
    readings = [made.device(at, throttle_ns=(), throttle_reasons=mask) for at in range(60)]
    assert not made.feed(State(), update, readings)


def test_what_was_counted_before_is_of_others(made: Any) -> None:
    readings = [made.device(at, throttle_ns=(("sw_thermal", 10**15),)) for at in range(60)]
    assert not made.feed(State(), update, readings)


def test_readings_a_minute_apart(made: Any) -> None:
    found = made.feed(State(), update, counted(made, "sw_thermal", 5, lambda at: 40.0, interval=60.0))
    assert made.kinds(found) == ["thermal_throttle"]


def test_a_clock_that_is_set_and_a_driver_that_is_loaded_anew(made: Any) -> None:
    """Times that jump in either direction, and counters that begin again at zero."""
    readings = []
    for at in range(120):
        jump = 0 if at < 40 else 3600 if at < 80 else -7200
        readings.append(made.device(at + jump, throttle_ns=(("hw_thermal", 10**12 if at < 60 else 0),)))
    assert not made.feed(State(), update, readings)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    interval=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0, 10.0]),
    is_counted=st.booleans(),
)
def test_one_second_throttles_never_alarm(made: Any, seed: int, interval: float, is_counted: bool) -> None:
    """A second of it at random moments, at least 15 s apart, seen by any sampler."""
    chance = made.chance(seed)
    starts, at = [], 0.0
    while at < 120:
        at += 15 + chance.random() * 30
        starts.append(at)

    def held(until: float) -> float:
        return sum(min(max(until - start, 0.0), 1.0) for start in starts)

    readings = []
    for number in range(int(120 / interval)):
        now = number * interval
        mask = 0x20 if any(start <= now <= start + 1 for start in starts) else 0
        times = (("sw_thermal", int(held(now) * 1e9)),) if is_counted else ()
        readings.append(made.device(now, throttle_ns=times, throttle_reasons=mask))
    assert not made.feed(State(), update, readings)
