"""Which steps send all elements: agreed on by all ranks, seldom in long runs, and counted without walking them."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.planner.compress_refresh import count_refreshes, is_refresh
from orchestrator.planner.compression import CHUNK, Codec, CompressionPlan, Kind, Values

FRACTIONS = st.integers(1, 127).map(lambda n: n / 128)  # products of these with small whole numbers are exact


def _walked(fraction: float, end: int) -> list[int]:
    """The rule in plain words: after a refresh, the next one comes when the run has grown by the fraction."""
    found, at = [], Fraction(0)
    while at < end:
        found.append(int(at))
        at += max(1, math.floor(Fraction(fraction) * at))
    return found


@given(FRACTIONS, st.integers(0, 600))
def test_each_step_says_for_itself_what_the_walk_finds(fraction: float, end: int) -> None:
    walked = _walked(fraction, end)
    assert [step for step in range(end) if is_refresh(step, fraction)] == walked


@given(FRACTIONS, st.integers(0, 300), st.integers(0, 600))
def test_they_are_counted(fraction: float, begin: int, end: int) -> None:
    assert count_refreshes(fraction, begin, end) == sum(step >= begin for step in _walked(fraction, end))


def test_a_fraction_of_a_tenth() -> None:
    found = [step for step in range(60) if is_refresh(step, 0.1)]
    assert found == [*range(20), *range(20, 30, 2), *range(30, 39, 3), 39, 42, 46, 50, 55]


def test_they_grow_with_the_logarithm_of_the_steps() -> None:
    tenfold = [count_refreshes(0.1, 100, 10**power) for power in (3, 4, 5, 6)]
    assert tenfold[0] < 40
    assert all(20 < after - before < 26 for before, after in pairwise(tenfold))


@pytest.mark.parametrize("fraction", [0.0])
def test_never(fraction: float) -> None:
    assert not any(is_refresh(step, fraction) for step in range(100))
    assert count_refreshes(fraction, 0, 100) == 0


def test_the_smallest_fractions_cost_no_walk() -> None:
    assert is_refresh(10**6, 1e-9)
    assert count_refreshes(1e-9, 10, 10**6) == 10**6 - 10


def _plan(codec: Codec, fraction: float = 0.1) -> CompressionPlan:
    return CompressionPlan(kind=Kind.topk, why="a test", codec=codec, warmup_steps=8, refresh_fraction=fraction)


def test_a_plan_counts_its_compressed_steps_alone() -> None:
    plan = _plan(Codec(kept=40, values=Values.int8))
    assert plan.refreshes(80) == sum(plan.is_refresh(step) for step in range(8, 80))
    assert plan.refreshes(8) == 0
    # Where everything travels anyway there is nothing to refresh.
    everything = _plan(Codec(kept=CHUNK, values=Values.int8))
    assert not any(everything.is_refresh(step) for step in range(80))
    assert everything.refreshes(80) == 0
    with pytest.raises(ValueError, match="refresh"):
        _plan(Codec(kept=40, values=Values.int8), 1.0)


def test_whole_numbers_travel_in_four_bits_and_others_as_they_are() -> None:
    assert Codec(kept=40, values=Values.int8).whole == Codec(kept=CHUNK, values=Values.int4)
    assert Codec(kept=40, values=Values.int4).whole == Codec(kept=CHUNK, values=Values.int4)
    assert Codec(kept=40, values=Values.bf16).whole == Codec(kept=CHUNK, values=Values.bf16)
    assert Codec(kept=40, values=Values.fp32).whole == Codec(kept=CHUNK, values=Values.fp32)
