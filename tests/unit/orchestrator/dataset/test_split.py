"""The eval split."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dataset.errors import DataError
from orchestrator.dataset.split import split_rows

PATH = Path("rows.jsonl")


@given(st.integers(2, 200), st.floats(0.001, 0.999), st.integers(-5, 5))
def test_a_split_is_a_partition(num_rows: int, fraction: float, seed: int) -> None:
    try:
        split = split_rows(num_rows, path=PATH, seed=seed, fraction=fraction)
    except DataError:
        assert round(fraction * num_rows) == num_rows
        return
    assert sorted(split.train + split.eval) == list(range(num_rows))
    assert split.train
    assert len(split.eval) == max(1, round(fraction * num_rows))
    assert split == split_rows(num_rows, path=PATH, seed=seed, fraction=fraction)


def test_seeds_differ_and_new_rows_move_few_old_ones() -> None:
    splits = [split_rows(1000, path=PATH, seed=seed, count=100).eval for seed in range(2)]
    assert splits[0] != splits[1]
    longer = split_rows(1100, path=PATH, seed=0, count=110).eval
    assert len(set(longer) & set(splits[0])) > 90


@pytest.mark.parametrize(
    ("num_rows", "fraction", "count"),
    [(1, 0.5, None), (9, 0.0, None), (9, 1.0, None), (9, None, 9), (9, None, 0), (9, None, None), (9, 0.5, 1)],
)
def test_an_empty_side_is_an_error(num_rows: int, fraction: float | None, count: int | None) -> None:
    with pytest.raises(DataError):
        split_rows(num_rows, path=PATH, seed=0, fraction=fraction, count=count)
