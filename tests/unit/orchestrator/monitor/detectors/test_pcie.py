"""PCIe links: suspected under load, told after a copy."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.monitor.detectors.pcie import SAMPLES, State, update, update_copy
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.readings import CopyReading


def copy(rate: float, second: float = 100.0) -> CopyReading:
    return CopyReading(time=1e9 + second, device="gpu0", host=0, bytes_per_second=rate)


def mixed(begin: State, readings: list[Any]) -> list[Any]:
    state, found = begin, []
    for reading in readings:
        judge: Any = update_copy if isinstance(reading, CopyReading) else update
        state, more = judge(state, reading, Facts())
        found += more
    return found


def slow(made: Any, count: int, begin: int = 0, **values: Any) -> list[Any]:
    return [made.device(begin + at, **{"pcie_generation": 2, **values}) for at in range(count)]


def test_a_slow_link_under_load_is_suspected_once(made: Any) -> None:
    assert not mixed(State(), slow(made, SAMPLES + 1))
    assert len(mixed(State(), slow(made, SAMPLES + 2))) == 1
    found = mixed(State(), slow(made, 100))
    assert made.kinds(found) == ["pcie_downgrade_suspected"]
    assert "Gen2 x16 instead of Gen4 x16" in found[0].evidence
    assert found[0].severity.value == "note"


def test_a_timed_copy_makes_it_a_fault(made: Any) -> None:
    found = mixed(State(), [*slow(made, 9), copy(6.4e9), copy(6.4e9), *slow(made, 50, 200)])
    assert made.kinds(found) == ["pcie_downgrade_suspected", "pcie_downgrade"]
    assert found[1].severity.value == "error"
    assert "6.4 GB/s" in found[1].evidence
    assert dict(found[1].numbers)["bytes_per_second"] == 6.4e9


def test_half_the_lanes_are_a_warning(made: Any) -> None:
    found = mixed(State(), [*slow(made, 9, pcie_generation=4, pcie_width=8), copy(13e9)])
    assert found[1].severity.value == "warning"


def test_replays_are_told(made: Any) -> None:
    readings = [made.device(at, pcie_generation=2, pcie_replays=10 * at) for at in range(20)]
    found = mixed(State(), [*readings, copy(6e9)])
    assert "130 replays" in found[1].evidence


def test_a_fast_copy_shows_the_report_to_be_wrong(made: Any) -> None:
    found = mixed(State(), [*slow(made, 9), copy(26e9), *slow(made, 50, 200)])
    assert made.kinds(found) == ["pcie_downgrade_suspected"]


def test_another_downgrade_is_suspected_anew(made: Any) -> None:
    readings = [*slow(made, 9), copy(26e9), *slow(made, 50, 200, pcie_generation=1)]
    assert made.kinds(mixed(State(), readings)) == ["pcie_downgrade_suspected"] * 2


def test_it_is_over_when_the_link_is_whole_again(made: Any) -> None:
    whole = [made.device(300 + at) for at in range(9)]
    found = mixed(State(), [*slow(made, 9), copy(6e9), *whole, *slow(made, 9, 400), copy(6e9, 500)])
    assert made.kinds(found) == ["pcie_downgrade_suspected", "pcie_downgrade"] * 2


def test_a_copy_alone_says_nothing(made: Any) -> None:
    assert not mixed(State(), [copy(1e6)])
    assert not mixed(State(), [made.device(1), copy(1e6)])


def test_traffic_is_load_as_well(made: Any) -> None:
    readings = slow(made, 9, utilisation=0.1, pcie_rx_bytes_per_second=4e9)
    assert made.kinds(mixed(State(), readings)) == ["pcie_downgrade_suspected"]


def test_what_is_not_read_is_not_judged(made: Any) -> None:
    for name in ("pcie_generation", "pcie_width", "max_pcie_generation", "max_pcie_width", "utilisation"):
        assert not mixed(State(), slow(made, 50, **{name: None}))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_idle_links_that_flap_never_alarm(made: Any, seed: int) -> None:
    """Idle at Gen1 most of the time, at full speed under load but for a reading or two while it comes up."""
    chance = made.chance(seed)
    readings, is_loaded, since = [], False, 0
    for at in range(400):
        if chance.random() < 0.1:
            is_loaded, since = not is_loaded, at
        comes_up = at - since < 2
        generation = chance.choice([1, 2, 4]) if not is_loaded or comes_up else 4
        readings.append(made.device(at, utilisation=0.95 if is_loaded else 0.05, pcie_generation=generation))
    assert not mixed(State(), readings)
