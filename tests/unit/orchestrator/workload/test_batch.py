"""Expected lengths of micro-batches."""

from __future__ import annotations

import itertools
import random

import pytest

from orchestrator.workload.batch import BatchShape, DataStats, batch_shape, rows_per_epoch


def _stats(mean: float = 100.0, most: int = 180) -> DataStats:
    return DataStats(rows=50, eval_rows=0, mean_tokens=mean, max_tokens=most, total_tokens=5000, source="counted")


def test_expected_length_agrees_with_sampling() -> None:
    shape = batch_shape(_stats(), seq_len=512, packing=False, pads_to_seq_len=True, static=False)
    draw = random.Random(0)
    samples = [max(draw.uniform(20, 180) for _ in range(4)) for _ in range(20_000)]
    assert shape.expected_tokens(4) == pytest.approx(sum(samples) / len(samples), rel=0.01)
    assert shape.expected_tokens(1) == 100.0


def test_packed_and_static_rows_are_full() -> None:
    packed = batch_shape(_stats(), seq_len=64, packing=True, pads_to_seq_len=False, static=False)
    static = batch_shape(_stats(), seq_len=512, packing=False, pads_to_seq_len=True, static=True)
    assert (packed.expected_tokens(3), packed.real_tokens_per_row, packed.padded) == (64.0, 64.0, False)
    assert (static.expected_tokens(3), static.real_tokens_per_row, static.padded) == (512.0, 100.0, True)
    assert rows_per_epoch(_stats(), seq_len=64, packing=True) == 79
    assert rows_per_epoch(_stats(), seq_len=64, packing=False) == 50


def test_memory_allows_for_more_than_the_estimated_longest_row() -> None:
    for static in (False, True):
        shape = batch_shape(_stats(), seq_len=2048, packing=False, pads_to_seq_len=False, static=static)
        assert (shape.longest_tokens, shape.likely_longest_tokens) == (200, 180)
        cut = batch_shape(_stats(), seq_len=128, packing=False, pads_to_seq_len=False, static=static)
        assert (cut.longest_tokens, cut.likely_longest_tokens) == (128, 128)
    assert shape.expected_tokens(7) == 180.0


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="mean_tokens"):
        _stats(mean=200.0)


def test_expected_longest_of_known_lengths() -> None:
    """The closed form against drawing micro-batches from the lengths themselves."""
    lengths = (20, 30, 30, 35, 40, 45, 60, 120)
    shape = BatchShape(real_tokens_per_row=47.5, longest_tokens=120, fixed=False, padded=True, quantiles=lengths)
    for rows in (1, 2, 4):
        drawn = [max(draw) for draw in itertools.product(lengths, repeat=rows)]
        assert shape.expected_tokens(rows) == pytest.approx(sum(drawn) / len(drawn))


def test_tokens_of_cut_rows_are_counted_as_cut() -> None:
    """A quarter of very long rows raises the mean above the cut; the rows that are cut are still not all full."""
    lengths = (500, 600, 700, 9000)
    stats = DataStats(
        rows=4, eval_rows=0, mean_tokens=2700, max_tokens=9000, total_tokens=10_800, source="counted", quantiles=lengths
    )
    shape = batch_shape(stats, seq_len=2048, packing=False, pads_to_seq_len=True, static=False)
    assert shape.real_tokens_per_row == sum(min(2048, tokens) for tokens in lengths) / 4
    whole = batch_shape(stats, seq_len=16_384, packing=False, pads_to_seq_len=True, static=False)
    assert whole.real_tokens_per_row == 2700
