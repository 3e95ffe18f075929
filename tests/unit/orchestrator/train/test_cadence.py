"""The interval between checkpoints against a numerical minimum, and its bounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from orchestrator.train.cadence import (
    DEVICE_MTBF_HOURS,
    Bounds,
    SaveCost,
    bounds,
    expected_waste,
    interval_steps,
    optimum_seconds,
)

costs = st.floats(1e-3, 1e3)
mtbfs = st.floats(60.0, 1e8)
steps = st.floats(1e-2, 600.0)


def simulated_waste(interval: float, cost: float, mtbf: float) -> float:
    """The same from first principles: fail at rate 1/mtbf, begin the segment anew, until one is saved."""
    segment = interval + cost
    saved = math.exp(-segment / mtbf)
    # Of an attempt: it lasts min(failure, segment); attempts until one succeeds are geometric.
    attempt = mtbf * (1 - saved)
    return attempt / saved / interval - 1


@given(st.floats(1.0, 1e4), st.floats(1e-2, 1e2), st.floats(1e3, 1e6))
def test_waste_is_that_of_repeated_segments(interval: float, cost: float, mtbf: float) -> None:
    assert expected_waste(interval, cost, mtbf) == pytest.approx(simulated_waste(interval, cost, mtbf), rel=1e-6)


@given(costs, mtbfs)
def test_optimum_is_that_of_a_search(cost: float, mtbf: float) -> None:
    found = minimize_scalar(
        lambda log: math.log1p(expected_waste(math.exp(log), cost, mtbf)) if math.exp(log) < 50 * mtbf else 1e9,
        bounds=(math.log(1e-6 * math.sqrt(cost * mtbf)), math.log(20 * mtbf)),
        method="bounded",
        options={"xatol": 1e-9, "maxiter": 500},
    )
    least = expected_waste(math.exp(found.x), cost, mtbf)
    ours = expected_waste(optimum_seconds(cost, mtbf), cost, mtbf)
    assert ours <= least * 1.003 + 1e-12
    assert optimum_seconds(cost, mtbf) > 0


def test_young_for_rare_failures() -> None:
    assert optimum_seconds(1.0, 1e8) == pytest.approx(math.sqrt(2e8), rel=1e-3)


@given(costs, costs, mtbfs, st.floats(1.0, 1e5), steps)
def test_interval_keeps_its_bounds(blocking: float, writing: float, mtbf: float, lost: float, step: float) -> None:
    cost = SaveCost(blocking_seconds=blocking, writing_seconds=writing)
    allowed = Bounds(mtbf_seconds=mtbf, max_lost_seconds=lost)
    found = interval_steps(cost, step, allowed)
    assert found >= 1
    assert found * step >= 2 * writing - 1e-6 * writing
    busy = math.ceil(2 * writing / step)
    assert found <= max(busy, 1) or found * step <= max(lost - writing, step) * (1 + 1e-9)
    rarer = interval_steps(cost, step, Bounds(mtbf_seconds=2 * mtbf, max_lost_seconds=lost))
    assert rarer >= found or blocking >= mtbf


@pytest.mark.parametrize(("blocking", "writing", "step", "steps_between"), [(0.1, 1.0, 2.0, 600), (0.0, 0.0, 1.0, 1)])
def test_eight_cards(blocking: float, writing: float, step: float, steps_between: int) -> None:
    allowed = bounds(None, 30, num_devices=8)
    assert allowed.mtbf_seconds == DEVICE_MTBF_HOURS * 3600 / 8
    found = interval_steps(SaveCost(blocking_seconds=blocking, writing_seconds=writing), step, allowed)
    young = max(1, round(math.sqrt(2 * blocking * allowed.mtbf_seconds) / step))
    assert found == pytest.approx(young, abs=1)
    assert found <= steps_between


def test_a_cluster_saves_more_often_than_a_card() -> None:
    cost = SaveCost(blocking_seconds=0.2, writing_seconds=2.0)
    few, many = (interval_steps(cost, 1.0, bounds(None, 1e6, number)) for number in (1, 1024))
    assert many < few / 20
    assert interval_steps(cost, 1.0, bounds(None, 30, 1)) == 30 * 60 - 2


@pytest.mark.parametrize("step", [0.0, math.nan])
def test_a_step_takes_time(step: float) -> None:
    with pytest.raises(ValueError, match="a step takes"):
        interval_steps(SaveCost(blocking_seconds=1, writing_seconds=1), step, bounds(None, 30, 1))


def test_values_are_valid() -> None:
    with pytest.raises(ValueError, match="finite"):
        SaveCost(blocking_seconds=math.nan, writing_seconds=1)
    with pytest.raises(ValueError, match="above 0"):
        bounds(0.0, 30, 1)
