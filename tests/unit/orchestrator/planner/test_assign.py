"""Rows per rank and forward pass."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planner.assign import forced_micro, micro_options, share_rows


@given(st.integers(1, 500), st.lists(st.floats(0.01, 100), min_size=1, max_size=12))
def test_shares_keep_the_global_batch(rows: int, weights: list[float]) -> None:
    rows = max(rows, len(weights))
    shares = share_rows(rows, weights)
    assert sum(shares) == rows
    assert min(shares) >= 1
    by_weight = sorted(zip(weights, shares, strict=True))
    assert all(a[1] <= b[1] + 1 for a, b in pairwise(by_weight))


def test_equal_ranks_differ_by_one_row_at_most() -> None:
    assert share_rows(16, [1.0, 1.0, 1.0]) == (6, 5, 5)
    with pytest.raises(ValueError, match="one row each"):
        share_rows(2, [1.0, 1.0, 1.0])


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_options_cover_the_shares(shares: list[int]) -> None:
    options = micro_options(shares)
    largest = [max(micro) for micro, _ in options]
    assert largest == sorted(set(largest))
    assert (largest[0], largest[-1]) == (1, max(shares))
    for micro, accumulation in options:
        assert all(m * accumulation >= share for m, share in zip(micro, shares, strict=True))
        assert max(micro) * (accumulation - 1) < max(shares)


@given(st.integers(1, 3000))
def test_every_number_of_passes_is_found(most: int) -> None:
    passes = {-(-most // micro) for micro in range(1, most + 1)}
    assert [accumulation for _, accumulation in micro_options((most,))] == sorted(passes, reverse=True)


def test_six_rows() -> None:
    assert [(micro[0], passes) for micro, passes in micro_options((6, 5))] == [(1, 6), (2, 3), (3, 2), (6, 1)]
    assert forced_micro((6, 5), 4) == ((4, 4), 2)
    assert forced_micro((6, 5), 9) == ((6, 5), 1)
