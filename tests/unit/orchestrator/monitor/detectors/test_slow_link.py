"""Links that carry less than planned."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.monitor.detectors.slow_link import IN_A_ROW, MEASURED_IN_A_ROW, LinkState, State, update, update_link
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.readings import LinkReading

PLANNED = Facts(world_size=2, link_bytes_per_second=(("a-b", 10e9),))


def link(at: int, rate: float, name: str = "a-b") -> LinkReading:
    return LinkReading(time=1e9 + at, link=name, bytes_per_second=rate)


def waits(made: Any, steps: int, wait: Any, facts: Facts) -> list[Any]:
    groups = [
        tuple(made.rank(step, at, communication_seconds=wait(step, at)) for at in range(2))
        for step in range(1, steps + 1)
    ]
    return list(made.feed(State(), update, groups, facts))


def test_a_slow_link_is_found_after_so_many_measurements(made: Any) -> None:
    for count, expected in ((MEASURED_IN_A_ROW - 1, 0), (MEASURED_IN_A_ROW, 1), (20, 1)):
        readings = [link(at, 2e9) for at in range(count)]
        found = made.feed(LinkState(), update_link, readings, PLANNED)
        assert len(found) == expected
        assert all("a-b" in one.evidence and "20%" in one.evidence for one in found)


def test_unknown_links_and_single_slow_measurements_are_not_judged(made: Any) -> None:
    assert not made.feed(LinkState(), update_link, [link(at, 1.0, "other") for at in range(9)], PLANNED)
    assert not made.feed(LinkState(), update_link, [link(at, 1e9 if at % 3 else 8e9) for at in range(90)], PLANNED)


def test_waits_against_the_plan_from_the_first_step(made: Any) -> None:
    facts = Facts(world_size=2, communication_seconds=0.05)
    found = waits(made, 3 + IN_A_ROW, lambda step, at: 0.5, facts)
    assert made.kinds(found) == ["slow_link"]
    assert "are planned" in found[0].evidence


def test_waits_against_the_first_steps(made: Any) -> None:
    found = waits(made, 40, lambda step, at: 0.05 if step < 20 else 0.3, Facts(world_size=2))
    assert [one.step for one in found] == [20 + IN_A_ROW - 1]
    assert "first steps" in found[0].evidence


def test_waits_for_a_slow_rank_are_not_the_links(made: Any) -> None:
    facts = Facts(world_size=2, communication_seconds=0.05)
    assert not waits(made, 60, lambda step, at: (0.05, 0.7)[at] if step > 20 else 0.05, facts)


def test_a_plan_that_hides_all_is_not_held_against_short_waits(made: Any) -> None:
    assert not waits(made, 60, lambda step, at: 0.2, Facts(world_size=2, communication_seconds=0.0))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), usual=st.floats(0.001, 0.3), planned=st.floats(0.5, 2) | st.none())
def test_healthy_waits_never_alarm(made: Any, seed: int, usual: float, planned: float | None) -> None:
    chance = made.chance(seed)
    facts = Facts(world_size=2, communication_seconds=None if planned is None else planned * usual)
    assert not waits(made, 100, lambda step, at: usual * max(0.1, chance.gauss(1, 0.3)) * (1 + 9 * (step < 3)), facts)
