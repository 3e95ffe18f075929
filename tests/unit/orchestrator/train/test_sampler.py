"""The global sampler: coverage, equality across world sizes, resuming."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.train.sampler import MASKED, GlobalSampler, RankBatches, even_shares, num_micro_steps, split


@st.composite
def samplers(draw: st.DrawFn) -> GlobalSampler:
    num_rows = draw(st.integers(1, 70))
    is_grouped = draw(st.booleans())
    lengths = draw(st.lists(st.integers(1, 9), min_size=num_rows, max_size=num_rows)) if is_grouped else None
    return GlobalSampler(
        num_rows=num_rows,
        global_batch=draw(st.integers(1, 24)),
        seed=draw(st.integers(0, 9)),
        epochs=draw(st.sampled_from([0.5, 1.0, 2.0, 2.5])),
        lengths=lengths,
    )


def uneven_shares(draw: st.DrawFn, total: int, world_size: int) -> tuple[int, ...]:
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=world_size - 1, max_size=world_size - 1)))
    return tuple(np.diff([0, *cuts, total]).tolist())


@st.composite
def layouts(draw: st.DrawFn) -> tuple[GlobalSampler, tuple[int, ...], tuple[int, ...]]:
    sampler = draw(samplers())
    world_size = draw(st.integers(1, 8))
    is_even = draw(st.booleans())
    batch = sampler.global_batch
    shares = even_shares(batch, world_size) if is_even else uneven_shares(draw, batch, world_size)
    micro = draw(st.lists(st.integers(1, 6), min_size=world_size, max_size=world_size))
    return sampler, shares, tuple(micro)


@given(samplers())
def test_every_epoch_covers_each_row_once(sampler: GlobalSampler) -> None:
    per_epoch = sampler.steps_per_epoch
    for epoch in range(sampler.num_steps // per_epoch):
        steps = [sampler.step_rows(epoch * per_epoch + i) for i in range(per_epoch)]
        assert all(len(rows) == sampler.global_batch for rows in steps)
        rows = [row for rows in steps for row in rows]
        assert sorted(row for row in rows if row != MASKED) == list(range(sampler.num_rows))
        assert all(MASKED not in rows for rows in steps[:-1])


@given(layouts())
def test_ranks_share_each_step_whatever_the_world_size(
    layout: tuple[GlobalSampler, tuple[int, ...], tuple[int, ...]],
) -> None:
    sampler, shares, micro = layout
    ranks = [RankBatches(sampler=sampler, rank=r, shares=shares, micro=micro) for r in range(len(shares))]
    per_rank = [list(rank.steps()) for rank in ranks]
    for step in range(sampler.num_steps):
        batches = [steps[step] for steps in per_rank]
        assert {len(each) for each in batches} == {num_micro_steps(shares, micro)}
        for each, most, share in zip(batches, micro, shares, strict=True):
            sizes = [len(rows) for rows in each]
            assert 1 <= min(sizes) <= max(sizes) <= most
            assert max(sizes) - min(sizes) <= 1
            assert sum(sizes) == max(share, len(each))
        real = Counter(row for each in batches for rows in each for row in rows if row != MASKED)
        assert real == Counter(row for row in sampler.step_rows(step) if row != MASKED)
    assert {len(list(rank)) for rank in ranks} == {len(rank) for rank in ranks} == {len(ranks[0])}


@given(layouts(), st.data())
def test_resuming_gives_the_tail(
    layout: tuple[GlobalSampler, tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    sampler, shares, micro = layout
    step = data.draw(st.integers(0, sampler.num_steps))
    rank = data.draw(st.integers(0, len(shares) - 1))
    whole = RankBatches(sampler=sampler, rank=rank, shares=shares, micro=micro)
    start = sampler.step_at(sampler.position(step))
    rest = RankBatches(sampler=sampler, rank=rank, shares=shares, micro=micro, start_step=start)
    assert list(rest) == list(whole)[step * whole.micro_steps :]
    assert len(rest) == len(list(rest))


@settings(max_examples=30)
@given(samplers(), st.randoms())
def test_steps_do_not_depend_on_the_order_they_are_asked_in(sampler: GlobalSampler, random: st.DataObject) -> None:
    steps = list(range(sampler.num_steps))
    straight = [sampler.step_rows(step) for step in steps]
    random.shuffle(steps)  # type: ignore[attr-defined]
    assert all(sampler.step_rows(step) == straight[step] for step in steps)


def test_the_order_is_pinned() -> None:
    # A change here would silently change which rows a resumed run sees.
    sampler = GlobalSampler(num_rows=10, global_batch=4, seed=7, epochs=2)
    assert [sampler.step_rows(step) for step in range(4)] == [(6, 3, 4, 9), (0, 2, 8, 7), (5, 1, -1, -1), (1, 3, 2, 7)]
    assert sampler.step_rows(0) != GlobalSampler(num_rows=10, global_batch=4, seed=8).step_rows(0)


def test_length_grouping_makes_batches_alike() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 5000).tolist()

    def spread(sampler: GlobalSampler) -> float:
        steps = (sampler.step_rows(step) for step in range(sampler.num_steps))
        return float(np.mean([np.ptp([lengths[row] for row in rows]) for rows in steps]))

    grouped = GlobalSampler(num_rows=5000, global_batch=10, seed=0, lengths=lengths)
    assert spread(grouped) < spread(GlobalSampler(num_rows=5000, global_batch=10, seed=0)) / 20
    longest = [max(lengths[row] for row in grouped.step_rows(step)) for step in range(50)]
    assert longest != sorted(longest, reverse=True)


def test_ranks_get_rows_of_like_length() -> None:
    rows = tuple(range(32))  # sorted by length, as in a grouped batch
    sums = [sum(row for batch in rank for row in batch) for rank in split(rows, (16, 8, 8), (4, 2, 2))]
    assert sums[0] / 16 == pytest.approx(sums[1] / 8, rel=0.1)
    assert sums[1] == pytest.approx(sums[2], rel=0.1)


@pytest.mark.parametrize(
    ("epochs", "max_steps", "expected"), [(1.0, None, 3), (0.5, None, 2), (0.01, None, 1), (3, 4, 4), (1, 9, 9)]
)
def test_number_of_steps(epochs: float, max_steps: int | None, expected: int) -> None:
    sampler = GlobalSampler(num_rows=10, global_batch=4, seed=0, epochs=epochs, max_steps=max_steps)
    assert sampler.num_steps == expected
    with pytest.raises(IndexError):
        sampler.step_rows(expected)


def test_wrong_sizes_are_refused() -> None:
    sampler = GlobalSampler(num_rows=10, global_batch=4, seed=0)
    with pytest.raises(ValueError, match="no multiple"):
        sampler.step_at(6)
    with pytest.raises(ValueError, match="shares"):
        split((1, 2, 3), (1, 1), (1, 1))
    with pytest.raises(ValueError, match="global batch of 4"):
        RankBatches(sampler=sampler, rank=0, shares=(3,), micro=(1,))
    with pytest.raises(ValueError, match="rank 2"):
        RankBatches(sampler=sampler, rank=2, shares=(2, 2), micro=(1, 1))
    with pytest.raises(ValueError, match="positive"):
        GlobalSampler(num_rows=0, global_batch=4, seed=0)
    with pytest.raises(ValueError, match="lengths"):
        GlobalSampler(num_rows=2, global_batch=4, seed=0, lengths=[1])
    assert even_shares(7, 3) == (3, 2, 2)
    assert split((1, 2, 3), (3, 0), (2, 1)) == (((1, 2), (3,)), ((MASKED,), (MASKED,)))
