"""Robust statistics against plain references."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import median_abs_deviation, theilslopes

from orchestrator.monitor.robust import robust_z, slope_of, spread_of

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(VALUES)
def test_the_spread_is_the_scaled_mad(values: list[float]) -> None:
    reference = median_abs_deviation(values, scale="normal")
    assert spread_of(values) == pytest.approx(reference, rel=1e-4, abs=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=25))
def test_the_slope_is_theil_and_sens(values: list[float]) -> None:
    points = list(enumerate(values))
    assert slope_of(points) == pytest.approx(theilslopes(values).slope, rel=1e-9, abs=1e-9)


def test_wild_values_do_not_move_them() -> None:
    chance = random.Random(1)
    line = [(float(x), 3.0 * x + chance.gauss(0, 0.1)) for x in range(24)]
    wild = [(x, y + 1e6) if x % 5 == 2 else (x, y) for x, y in line]
    assert slope_of(wild) == pytest.approx(3.0, abs=0.1)
    assert spread_of([y - 3.0 * x for x, y in wild]) < 1.0


def test_points_without_a_slope() -> None:
    assert slope_of([(1.0, 2.0)]) == 0.0
    assert slope_of([(1.0, 2.0), (1.0, 5.0)]) == 0.0


def test_distance_in_spreads() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert robust_z(3.0 + 1.4826, values, 0.0) == pytest.approx(1.0)
    assert robust_z(5.0, values, 4.0) == pytest.approx(0.5)
    assert robust_z(2.0, [1.0, 1.0], 0.0) == float("inf")
    assert robust_z(1.0, [1.0, 1.0], 0.0) == 0.0
