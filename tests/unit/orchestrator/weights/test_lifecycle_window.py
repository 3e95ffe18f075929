"""What may be fetched in a compute window, and how the window of layers is adapted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UserError
from orchestrator.weights.bandwidth import CHUNK_BYTES, chunks_per_second, common_window_bytes, window_bytes
from orchestrator.weights.window import Report, Window, WindowRules, adapt

RULES = WindowRules(least=1, most=5, layer_bytes=100, reserve_bytes=50)
WAITS = Report(step_seconds=10.0, exposed_seconds=2.0, free_bytes=1000)
CALM = Report(step_seconds=10.0, exposed_seconds=0.1, free_bytes=1000)


@given(st.floats(0, 1), st.floats(1, 1e13, allow_nan=False), st.floats(0, 10), st.integers(1, 10**8))
def test_whole_chunks_within_the_headroom_and_one_at_least(
    headroom: float, rate: float, seconds: float, chunk: int
) -> None:
    found = window_bytes(headroom, rate, seconds, chunk)
    assert found % chunk == 0
    assert found == chunk or found <= headroom * rate * seconds
    assert found + chunk > headroom * rate * seconds * (1 - 1e-12)


def test_an_h100_while_a_layer_of_an_8b_model_computes() -> None:
    # 3.35 TB/s, a fifth of it left over, 2 ms: 1.34 GB, 79 chunks of 16 MiB.
    assert window_bytes(0.2, 3.35e12, 2e-3) == 79 * CHUNK_BYTES
    assert chunks_per_second(0.2, 3.35e12) == pytest.approx(39_935.11, rel=1e-5)
    assert common_window_bytes([3 * CHUNK_BYTES, CHUNK_BYTES]) == CHUNK_BYTES


def test_all_wrong_numbers_of_a_budget_are_told_at_once() -> None:
    with pytest.raises(UserError) as told:
        window_bytes(1.5, 0.0, -1.0, 0)
    assert len(told.value.problems) == 4


def feed(window: Window, *steps: list[Report]) -> list[int]:
    sizes = []
    for reports in steps:
        window = adapt(RULES, window, reports)
        sizes.append(window.layers)
    return sizes


def test_one_slow_rank_widens_the_window_after_some_patience() -> None:
    assert feed(Window(layers=2), *[[CALM, WAITS]] * 3) == [2, 2, 3]
    assert feed(Window(layers=2), *[[CALM, CALM]] * 9) == [2] * 9
    # A calm step between makes the count start again.
    assert feed(Window(layers=2), [WAITS], [WAITS], [CALM], [WAITS], [WAITS], [WAITS]) == [2, 2, 2, 2, 2, 3]


def test_a_wider_window_that_brings_nothing_is_taken_back_for_good() -> None:
    sizes = feed(Window(layers=2), *[[WAITS]] * 30)
    assert sizes[:6] == [2, 2, 3, 3, 3, 2]
    assert set(sizes[6:]) == {2}


def test_a_wider_window_that_helps_stays_and_may_grow_further() -> None:
    half = replace(WAITS, exposed_seconds=1.0)
    sizes = feed(Window(layers=2), *[[WAITS]] * 3, *[[half]] * 6, *[[CALM]] * 9)
    assert sizes[2:] == [3, 3, 3, 3, 3, 4, 4, 4, *[4] * 8][: len(sizes) - 2]


def test_a_rank_short_of_memory_narrows_the_window_at_once_and_keeps_it_there() -> None:
    full = replace(WAITS, free_bytes=49)
    assert feed(Window(layers=4), [WAITS, full], *[[WAITS]] * 9) == [3] * 10
    assert feed(Window(layers=1), *[[full]] * 3) == [1, 1, 1]
    # Room for one more layer is needed beside the reserve.
    assert feed(Window(layers=2), *[[replace(WAITS, free_bytes=149)]] * 9) == [2] * 9


REPORTS = st.builds(
    Report, step_seconds=st.floats(0, 10), exposed_seconds=st.floats(0, 10), free_bytes=st.integers(0, 400)
)


@given(st.lists(st.lists(REPORTS, min_size=1, max_size=3), max_size=40), st.integers(1, 5))
def test_the_window_stays_in_its_range_and_settles(steps: list[list[Report]], layers: int) -> None:
    window, ceilings = Window(layers=layers), []
    changes = 0
    for reports in steps:
        before = window
        window = adapt(RULES, window, reports)
        assert RULES.least <= window.layers <= RULES.most
        assert abs(window.layers - before.layers) <= 1
        changes += window.layers != before.layers
        ceilings.append(window.ceiling or RULES.most)
        if min(report.free_bytes for report in reports) < RULES.reserve_bytes:
            assert window.layers < before.layers or before.layers == RULES.least
    assert ceilings == sorted(ceilings, reverse=True)
    # Each size is left upwards only until it proves to be the ceiling.
    assert changes <= 2 * (RULES.most - RULES.least) + (layers - 1)


def test_rules_of_a_window_that_make_no_sense() -> None:
    with pytest.raises(UserError) as told:
        WindowRules(least=2, most=1, layer_bytes=-1, reserve_bytes=0, patience=0, grow_share=2)
    assert len(told.value.problems) == 4
