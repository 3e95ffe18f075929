"""The order of a mixture: by counts, in turns, from the seed alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.train.sampler import MASKED, GlobalSampler, mixed_rows

PARTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 90)), min_size=1, max_size=4)


@given(PARTS, st.integers(0, 3), st.integers(1, 5))
@settings(max_examples=60)
def test_rows_of_a_source_are_seen_equally_often(parts: list[tuple[int, int]], seed: int, epochs: int) -> None:
    counts = Counter(row for epoch in range(epochs) for row in mixed_rows(parts, seed, epoch).tolist())
    start = 0
    for rows, seen in parts:
        own = [counts[row] for row in range(start, start + rows)]
        assert sum(own) == seen * epochs
        assert max(own) - min(own) <= 1
        start += rows
    assert sum(counts.values()) == epochs * sum(seen for _, seen in parts)


@given(PARTS, st.integers(1, 7))
@settings(max_examples=40)
def test_an_epoch_holds_the_rows_of_its_turn(parts: list[tuple[int, int]], global_batch: int) -> None:
    num_rows = sum(rows for rows, _ in parts)
    sampler = GlobalSampler(num_rows=num_rows, global_batch=global_batch, seed=5, epochs=2, parts=parts)
    for epoch in range(2):
        steps = range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch)
        found = [row for step in steps for row in sampler.step_rows(step) if row != MASKED]
        wanted = mixed_rows(parts, 5, epoch).tolist()
        if any(rows != seen for rows, seen in parts):
            assert sorted(found) == sorted(wanted)
        else:
            assert sorted(found) == list(range(num_rows))


def test_resumed_in_the_middle_the_order_is_the_same() -> None:
    parts = [(20, 50), (30, 11)]
    whole = GlobalSampler(num_rows=50, global_batch=4, seed=1, epochs=3, parts=parts)
    later = GlobalSampler(num_rows=50, global_batch=4, seed=1, epochs=3, parts=parts)
    order = [whole.step_rows(step) for step in range(whole.num_steps)]
    assert [later.step_rows(step) for step in range(29, whole.num_steps)] == order[29:]
    other = GlobalSampler(num_rows=50, global_batch=4, seed=2, epochs=3, parts=parts)
    assert [other.step_rows(step) for step in range(whole.num_steps)] != order


def test_seen_once_each_the_order_is_that_of_one_file() -> None:
    one = GlobalSampler(num_rows=50, global_batch=4, seed=1)
    two = GlobalSampler(num_rows=50, global_batch=4, seed=1, parts=[(20, 20), (30, 30)])
    assert [one.step_rows(step) for step in range(one.num_steps)] == [
        two.step_rows(step) for step in range(two.num_steps)
    ]


def test_lengths_are_grouped_in_a_mixture_too() -> None:
    lengths = [1] * 20 + [100] * 30
    sampler = GlobalSampler(num_rows=50, global_batch=5, seed=1, lengths=lengths, parts=[(20, 40), (30, 30)])
    batches = [{lengths[row] for row in sampler.step_rows(step)} for step in range(sampler.num_steps)]
    assert sum(len(batch) > 1 for batch in batches) <= 1


def test_parts_must_be_all_rows() -> None:
    with pytest.raises(ValueError, match="parts"):
        GlobalSampler(num_rows=9, global_batch=2, seed=0, parts=[(3, 3), (5, 9)])
