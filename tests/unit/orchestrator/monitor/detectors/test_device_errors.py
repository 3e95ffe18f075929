"""Counters of devices, lost devices, and hosts without memory."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.monitor.detectors import host_memory
from orchestrator.monitor.detectors.device_errors import NVLINK_READINGS, State, update
from orchestrator.monitor.readings import HostReading

GIB = 2**30


def test_an_uncorrected_error_is_found_at_once(made: Any) -> None:
    readings = [made.device(at, ecc_uncorrected=7 + (at >= 5) + (at >= 9)) for at in range(20)]
    found = made.feed(State(), update, readings)
    assert [(one.kind.value, one.time - 1e9) for one in found] == [("ecc_uncorrected", 5), ("ecc_uncorrected", 9)]
    assert found[0].response.value == "restart"


def test_counters_from_before_and_drivers_loaded_anew_are_no_errors(made: Any) -> None:
    readings = [
        made.device(at, ecc_uncorrected=7 if at < 5 else 0, nvlink_errors=900 if at < 5 else 0) for at in range(20)
    ]
    assert not made.feed(State(), update, readings)


def test_growing_nvlink_errors_are_found_after_so_many_readings(made: Any) -> None:
    readings = [made.device(at, nvlink_errors=100 + 5 * max(0, at - 9)) for at in range(100)]
    (found,) = made.feed(State(), update, readings)
    assert found.time - 1e9 == 9 + NVLINK_READINGS


def test_a_few_nvlink_errors_are_no_fault(made: Any) -> None:
    assert not made.feed(State(), update, [made.device(at, nvlink_errors=at // 300) for at in range(2000)])
    assert not made.feed(State(), update, [made.device(at, nvlink_errors=500 * (at > 9)) for at in range(100)])


def test_a_lost_device_is_told_once(made: Any) -> None:
    found = made.feed(State(), update, [made.device(at, lost=at >= 3) for at in range(20)])
    assert [(one.kind.value, one.response.value, one.quarantine) for one in found] == [
        ("device_lost", "drop_device", True)
    ]


def test_what_is_not_read_is_not_judged(made: Any) -> None:
    readings = [made.device(at, ecc_uncorrected=None, nvlink_errors=None) for at in range(9)]
    assert not made.feed(State(), update, readings)


def host(at: int, left: float | None, total: float = 64 * GIB) -> HostReading:
    used = None if left is None else int(total - left)
    return HostReading(
        time=1e9 + at, host=0, memory_used_bytes=used, memory_available_bytes=None if left is None else int(left)
    )


def low(made: Any, readings: list[HostReading]) -> list[Any]:
    return list(made.feed(host_memory.State(), host_memory.update, readings))


def test_memory_that_is_nearly_gone(made: Any) -> None:
    assert not low(made, [host(at, GIB) for at in range(host_memory.IN_A_ROW - 1)])
    (found,) = low(made, [host(at, GIB) for at in range(50)])
    assert "1.0 GiB of 64.0 GiB" in found.evidence
    assert not low(made, [host(at, GIB if at % 3 else 30 * GIB) for at in range(50)])
    assert not low(made, [host(at, None) for at in range(50)])


def test_large_and_small_hosts(made: Any) -> None:
    assert not low(made, [host(at, 20 * GIB, 2048 * GIB) for at in range(9)])
    assert low(made, [host(at, 0.1 * GIB, 2 * GIB) for at in range(9)])
    assert not low(made, [host(at, 0.5 * GIB, 2 * GIB) for at in range(9)])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(5, 60), min_size=1, max_size=60))
def test_hosts_with_memory_never_alarm(made: Any, lefts: list[float]) -> None:
    assert not low(made, [host(at, left * GIB) for at, left in enumerate(lefts)])
