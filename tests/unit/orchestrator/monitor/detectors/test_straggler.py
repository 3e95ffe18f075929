"""Slow ranks among healthy ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.monitor.detectors.straggler import IN_A_ROW, State, relative_speeds, update
from orchestrator.monitor.facts import Facts


def run(made: Any, world: int, steps: int, busy: Any, facts: Facts | None = None, **values: Any) -> Any:
    """Feed steps; `busy(step, rank)` gives what the ranks take."""
    facts = facts or Facts(world_size=world)
    state, found = State(), []
    for step in range(1, steps + 1):
        group = tuple(
            made.rank(step, at, busy_seconds=busy(step, at), **{k: v(step, at) for k, v in values.items()})
            for at in range(world)
        )
        state, more = update(state, group, facts)
        found += more
    return state, found


@pytest.mark.parametrize("world", [2, 3, 8])
def test_a_slow_rank_is_found_after_so_many_steps_and_told_once(made: Any, world: int) -> None:
    begin = 10
    for steps, count in ((begin + IN_A_ROW - 2, 0), (begin + IN_A_ROW - 1, 1), (begin + 50, 1)):
        _, found = run(made, world, steps, lambda step, at: 1.5 if at == 1 and step >= begin else 1.0)
        assert [one.rank for one in found] == [1] * count
        assert all(one.step == begin + IN_A_ROW - 1 and "1.50 times" in one.evidence for one in found)


def test_it_is_told_again_after_it_was_over(made: Any) -> None:
    _, found = run(made, 4, 60, lambda step, at: 2.0 if at == 3 and (10 <= step < 20 or step >= 40) else 1.0)
    assert [one.step for one in found] == [10 + IN_A_ROW - 1, 40 + IN_A_ROW - 1]


def test_two_slow_ranks_of_eight(made: Any) -> None:
    _, found = run(made, 8, 20, lambda step, at: 1.4 if at in {2, 5} else 1.0)
    assert [one.rank for one in found] == [2, 5]


def test_measured_speeds(made: Any) -> None:
    state, _ = run(made, 3, 20, lambda step, at: (1.0, 1.0, 2.0)[at])
    assert relative_speeds(state) == pytest.approx((1.0, 1.0, 0.5))
    assert relative_speeds(State()) == ()


def test_few_slow_steps_and_slow_first_steps_are_nothing(made: Any) -> None:
    _, found = run(made, 4, 60, lambda step, at: 5.0 if at == 1 and (step <= 3 or step % 7 < 3) else 1.0)
    assert not found


def test_more_work_is_no_fault(made: Any) -> None:
    """Shares that differ by rounding: three rows take longer than two."""
    _, found = run(made, 2, 30, lambda step, at: (1.0, 1.5)[at], tokens=lambda step, at: (2000.0, 3000.0)[at])
    assert not found


def test_a_slower_card_with_less_work_is_no_fault(made: Any) -> None:
    facts = Facts(world_size=2, speeds=(3.0, 1.0))
    tokens = {"tokens": lambda step, at: (3000.0, 1000.0)[at]}
    assert not run(made, 2, 30, lambda step, at: 1.0, facts, **tokens)[1]
    found = run(made, 2, 30, lambda step, at: (1.6, 1.0)[at], facts, **tokens)[1]
    assert [one.rank for one in found] == [0]


def test_equal_step_times_say_nothing(made: Any) -> None:
    readings = {"communication_seconds": lambda step, at: None}
    assert not run(made, 2, 30, lambda step, at: None, **readings)[1]


def test_waits_tell_where_busy_times_are_missing(made: Any) -> None:
    waits = {"communication_seconds": lambda step, at: (0.5, 0.1)[at]}
    found = run(made, 2, 30, lambda step, at: None, **waits)[1]
    assert [one.rank for one in found] == [1]


def test_one_rank_alone_is_never_slow(made: Any) -> None:
    assert not run(made, 1, 30, lambda step, at: 1.0 + (step > 10))[1]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), world=st.integers(2, 8), noise=st.floats(0, 0.2), data=st.floats(0, 0.3))
def test_noisy_healthy_runs_never_alarm(made: Any, seed: int, world: int, noise: float, data: float) -> None:
    chance = made.chance(seed)
    tokens = {(s, r): 4000 * max(0.2, chance.gauss(1, data)) for s in range(1, 81) for r in range(world)}

    def busy(step: int, at: int) -> float:
        pause = 3.0 if chance.random() < 0.01 else 1.0  # the kernel, a page fault, a collection of garbage
        return 0.1 + tokens[step, at] / 4000 * float(max(0.3, chance.gauss(1, noise))) * pause

    assert not run(made, world, 80, busy, tokens=lambda step, at: tokens[step, at])[1]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), world=st.integers(2, 8), factor=st.floats(1.6, 5))
def test_a_slow_rank_is_found_in_noise(made: Any, seed: int, world: int, factor: float) -> None:
    chance = made.chance(seed)
    found = run(made, world, 40, lambda s, r: chance.gauss(1, 0.04) * (factor if r == 0 and s >= 20 else 1))[1]
    assert [one.rank for one in found] == [0]
    # Noise may make steps right before the fault slow as well.
    assert 20 < found[0].step <= 20 + 2 * IN_A_ROW
