"""Losses and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.monitor.detectors.loss import DEAD_IN_A_ROW, SPIKES_IN_A_ROW, State, update, update_group
from orchestrator.monitor.facts import Facts


def run(made: Any, steps: int, facts: Facts | None = None, **values: Any) -> list[Any]:
    """Feed one rank; each value is a function of the step."""
    state, found = State(), []
    for step in range(1, steps + 1):
        reading = made.rank(step, **{name: value(step) for name, value in values.items()})
        state, first = update(state, reading, facts or Facts())
        state, more = update_group(state, (reading,), facts or Facts())
        found += [*first, *more]
    return found


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_found_at_once_and_told_once(made: Any, bad: float) -> None:
    found = run(made, 30, loss=lambda step: bad if step >= 10 else 2.0)
    assert [(one.kind.value, one.step, one.rank) for one in found] == [("loss_not_finite", 10, 0)]
    assert found[0].severity.value == "error"


def test_the_rank_that_had_it_first_is_named(made: Any) -> None:
    readings = [made.rank(5, 0), made.rank(5, 1, loss=math.nan), made.rank(6, 0, loss=math.nan)]
    assert [one.rank for one in made.feed(State(), update, readings)] == [1]


def test_gradients_that_are_no_numbers(made: Any) -> None:
    found = run(made, 30, grad_norm=lambda step: math.nan if step == 10 else 1.0)
    assert made.kinds(found) == ["gradient_not_finite"]


def test_a_loss_scaler_skips_some_steps(made: Any) -> None:
    facts = Facts(has_loss_scaler=True)
    assert not run(made, 200, facts, grad_norm=lambda step: math.inf if step < 12 or step % 50 == 0 else 1.0)
    assert len(run(made, 200, facts, grad_norm=lambda step: math.inf if step > 100 else 1.0)) == 1


def test_a_spike_is_found_after_so_many_steps(made: Any) -> None:
    chance = made.chance(1)
    for steps, count in ((30 + SPIKES_IN_A_ROW - 2, 0), (30 + SPIKES_IN_A_ROW - 1, 1), (50, 1)):
        found = run(made, steps, loss=lambda step: chance.gauss(2, 0.1) + 5 * (step >= 30))
        assert made.kinds(found) == ["loss_spike"] * count


def test_a_new_level_and_single_spikes_are_no_news(made: Any) -> None:
    chance = made.chance(1)
    assert len(run(made, 300, loss=lambda step: chance.gauss(2, 0.05) + 2 * (step >= 100))) == 1
    assert not run(made, 300, loss=lambda step: chance.gauss(2, 0.05) + 9 * (step % 20 == 0))


@pytest.mark.parametrize("norm", [0.0, 1e-42])
def test_dead_adapters(made: Any, norm: float) -> None:
    found = run(made, 40, grad_norm=lambda step: norm)
    assert [(one.kind.value, one.step) for one in found] == [("dead_adapters", 3 + DEAD_IN_A_ROW)]


def test_small_gradients_and_first_zeros_are_alive(made: Any) -> None:
    assert not run(made, 40, grad_norm=lambda step: 1e-12)
    assert not run(made, 40, grad_norm=lambda step: 0.0 if step < 7 else 1.0)
    assert not run(made, 40, grad_norm=lambda step: None, loss=lambda step: None)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), level=st.floats(0.05, 12), noise=st.floats(0, 0.3), fall=st.floats(0, 0.9))
def test_healthy_losses_never_alarm(made: Any, seed: int, level: float, noise: float, fall: float) -> None:
    """Falling, noisy, skewed as losses of small batches are, lower after each epoch."""
    chance = made.chance(seed)

    def loss(step: int) -> float:
        trend = 1 - fall * (1 - math.exp(-step / 40)) - 0.05 * (step // 100)
        return float(level * max(0.02, trend) * math.exp(chance.gauss(0, noise)))

    assert not run(made, 200, loss=loss, grad_norm=lambda step: math.exp(chance.gauss(0, 1)))
