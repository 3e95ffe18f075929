"""The small simplex method finds the optima that scipy's solver finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from topology.routing.packing_program import PackingProgram

Problem = tuple[list[float], list[dict[int, float]], list[float]]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Limits, some of which are equal or zero, and columns that each load some row."""
    rows = draw(st.integers(1, 8))
    limits = draw(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.0, 3.0]), min_size=rows, max_size=rows))
    loads = st.dictionaries(st.integers(0, rows - 1), st.sampled_from([1.0, 1.0, 2.0, 5.0]), min_size=1)
    columns = draw(st.lists(loads, min_size=1, max_size=20))
    worth = st.sampled_from([1.0, 1.0, 1.5, 7.0])
    return limits, columns, draw(st.lists(worth, min_size=len(columns), max_size=len(columns)))


def optimum(limits: list[float], columns: list[dict[int, float]], values: list[float]) -> float:
    matrix = np.zeros((len(limits), len(columns)))
    for at, loads in enumerate(columns):
        for row, load in loads.items():
            matrix[row, at] = load
    return -float(linprog(-np.array(values), A_ub=matrix, b_ub=limits, method="highs").fun)


@given(problem=problems(), cut=st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_the_optimum_is_that_of_a_solver_and_proved_by_prices(problem: Problem, cut: int) -> None:
    limits, columns, values = problem
    program = PackingProgram(limits)
    for at, (loads, value) in enumerate(zip(columns, values, strict=True)):
        if at == cut:
            program.solve()  # and goes on from there
        program.add(loads, value)
    program.solve()
    assert program.total == pytest.approx(optimum(limits, columns, values), rel=1e-9, abs=1e-9)
    for row, limit in enumerate(limits):
        used = sum(loads.get(row, 0.0) * weight for loads, weight in zip(columns, program.weights, strict=True))
        assert used <= limit + 1e-9
        assert used == pytest.approx(limit * program.used[row] if limit else 0.0, abs=1e-9)
    prices = program.prices
    assert sum(price * limit for price, limit in zip(prices, limits, strict=True)) == pytest.approx(
        program.total, rel=1e-9, abs=1e-9
    )
    for loads, value in zip(columns, values, strict=True):
        assert sum(prices[row] * load for row, load in loads.items()) >= value - 1e-9


def test_a_column_that_nothing_limits_is_an_error() -> None:
    program = PackingProgram([1.0])
    program.add({})
    with pytest.raises(ArithmeticError, match="nothing limits"):
        program.solve()
