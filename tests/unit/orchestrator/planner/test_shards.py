"""Uneven shards of the frozen base: optimal, never worse than equal ones, and honest when there is no room."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.planner.assign import assign_shards
from orchestrator.planner.shards import Cut, Gather, ShardRank, Shortage, equal_cut, explain_cut, gather_seconds
from topology.units import GB, GIB

RANKS = st.builds(
    lambda device, host, out, into, copies, window, shares: ShardRank(
        name="r",
        device_bytes=device,
        host_bytes=host,
        out_bytes_per_second=float(out),
        in_bytes_per_second=float(into),
        host_bytes_per_second=float(copies),
        window_bytes=window,
        shares_path=shares,
    ),
    *(st.integers(0, 4), st.integers(0, 3), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4)),
    st.integers(4, 12),
    st.booleans(),
)


def _by_trial(ranks: list[ShardRank], total: int) -> float | None:
    """The least seconds over every cut in whole bytes."""
    rooms = [
        [
            (d, h)
            for d in range(rank.device_bytes + 1)
            for h in range(max(0, min(rank.host_bytes, rank.window_bytes - total)) + 1)
        ]
        for rank in ranks
    ]
    cuts = [cut for cut in product(*rooms) if sum(d + h for d, h in cut) == total]
    if not cuts or any(rank.window_bytes < total for rank in ranks):
        return None
    return min(
        gather_seconds(ranks, [d for d, _ in cut], [h for _, h in cut], gather) for cut in cuts for gather in Gather
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(RANKS, min_size=2, max_size=3), st.integers(1, 6))
def test_no_cut_is_faster(ranks: list[ShardRank], total: int) -> None:
    best, cut = _by_trial(ranks, total), assign_shards(ranks, total, granule_bytes=1)
    if best is None:
        assert isinstance(cut, Shortage)
        assert cut.missing_bytes > 0
        return
    assert isinstance(cut, Cut)
    assert cut.seconds == pytest.approx(best)
    assert sum(cut.shards) == total
    for rank, device, host in zip(ranks, cut.device, cut.host, strict=True):
        assert 0 <= device <= rank.device_bytes
        assert 0 <= host <= rank.host_bytes
        assert host == 0 or total + host <= rank.window_bytes


@settings(max_examples=25, deadline=None)
@given(st.lists(RANKS, min_size=2, max_size=20), st.integers(1, 30), st.sampled_from([1, 4]))
def test_never_worse_than_equal_shards(ranks: list[ShardRank], total: int, granule: int) -> None:
    """Nor by the rounding to whole granules."""
    equal = equal_cut(ranks, total)
    cut = assign_shards(ranks, total, granule_bytes=granule)
    if equal is None or isinstance(cut, Shortage):
        assert granule > 1 or equal is None or any(rank.window_bytes < total for rank in ranks)
        return
    assert cut.seconds <= equal.seconds


def _card(name: str, device_gib: int, host_gib: int, copies: float) -> ShardRank:
    return ShardRank(
        name=name,
        device_bytes=device_gib * GIB,
        host_bytes=host_gib * GIB,
        out_bytes_per_second=25 * GB,
        in_bytes_per_second=25 * GB,
        host_bytes_per_second=copies,
        window_bytes=2000 * GIB,
    )


def test_24_and_80_gb_beat_equal_shards_by_the_predicted_amount() -> None:
    """32 GiB over 8 and 60 GiB of room, with 3.2 GB/s to host memory and 25 GB/s between the two.

    Equal: 8 of 16 GiB lie on the host, 8 GiB / 3.2 GB/s = 2.68 s. Best: h on the host, 24 - h on the large card, so
    that h / 3.2 = (24 - h) / 25: h = 2.72 GiB and 0.914 s, 2.9 times as fast.
    """
    ranks = [_card("24 GB", 8, 64, 3.2 * GB), _card("80 GB", 60, 64, 3.2 * GB)]
    cut, equal = assign_shards(ranks, 32 * GIB), equal_cut(ranks, 32 * GIB)
    assert isinstance(cut, Cut)
    assert equal is not None
    assert equal.seconds == pytest.approx(8 * GIB / (3.2 * GB))
    assert cut.seconds == pytest.approx(24 * GIB / (28.2 * GB), rel=0.01)
    assert equal.seconds / cut.seconds == pytest.approx(2.94, rel=0.02)
    text = explain_cut(ranks, cut)
    assert "(full)" in text
    assert "Equal shards would take 2.68 s, 2.9" in text


def test_equal_cards_take_equal_shards_and_nothing_from_the_host() -> None:
    ranks = [_card(f"card {at}", 20, 64, 12 * GB) for at in range(4)]
    cut = assign_shards(ranks, 32 * GIB)
    assert isinstance(cut, Cut)
    assert cut.shards == (8 * GIB,) * 4
    assert sum(cut.host) == 0


def test_shortage_tells_the_bytes() -> None:
    cut = assign_shards([_card("a", 4, 2, GB), _card("b", 8, 2, GB)], 20 * GIB)
    assert isinstance(cut, Shortage)
    assert cut.missing_bytes == 4 * GIB
    assert "4.0 GiB missing" in cut.reason
    slow = ShardRank(
        name="slow",
        device_bytes=40 * GIB,
        host_bytes=0,
        out_bytes_per_second=GB,
        in_bytes_per_second=GB,
        host_bytes_per_second=GB,
        window_bytes=12 * GIB,
    )
    narrow = assign_shards([slow, slow], 20 * GIB)
    assert isinstance(narrow, Shortage)
    assert narrow.missing_bytes == 8 * GIB
    assert "larger micro-batch" in narrow.reason


def test_many_ranks_are_cut_quickly() -> None:
    ranks = [_card(f"card {at}", 1 + at % 3, 64, 12 * GB) for at in range(64)]
    cut = assign_shards(ranks, 100 * GIB)
    assert isinstance(cut, Cut)
    assert sum(cut.shards) == 100 * GIB
