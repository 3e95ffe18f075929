from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.compress import reference, select, select_cpu
from orchestrator.planner.compression import CHUNK

_kept = st.sampled_from((2, 4, 40, 64, 128, 300, 1000, 2048, 4094))


def _drawn(seed: int, levels: int, filled: float, chunks: int) -> torch.Tensor:
    """Chunks with so many different magnitudes, so many of them not zero; whole rows alike, too."""
    at = torch.Generator().manual_seed(seed)
    x = torch.randn(chunks, CHUNK, generator=at).mul_(levels).round_()
    return x * (torch.rand(chunks, CHUNK, generator=at) < filled)


@given(
    seed=st.integers(0, 2**32),
    kept=_kept,
    levels=st.sampled_from((1, 3, 30, 1000, 10**6)),
    filled=st.sampled_from((1.0, 0.5, 0.01, 0.0)),
)
def test_both_searches_find_what_sorting_finds(seed: int, kept: int, levels: int, filled: float) -> None:
    x = _drawn(seed, levels, filled, 2)
    wanted = torch.tensor([reference.largest(row.numpy(), kept) for row in x])
    assert torch.equal(torch.from_numpy(select_cpu.largest(x.numpy(), kept)), wanted)
    assert torch.equal(select.by_keys(x, kept), wanted)
    assert torch.equal(select.largest(x, kept), wanted)


@given(seed=st.integers(0, 2**32), kept=_kept, levels=st.sampled_from((3, 100, 10**6)))
def test_rows_do_not_disturb_each_other_across_tiles(seed: int, kept: int, levels: int) -> None:
    x = _drawn(seed, levels, 1.0, select_cpu.TILE + 3)
    x[::5] = 0
    x[1, 7], x[2, 8] = torch.inf, torch.nan
    assert torch.equal(torch.from_numpy(select_cpu.largest(x.numpy(), kept)), select.by_keys(x, kept))


@pytest.mark.parametrize("kept", [2, 40, 4094])
def test_strided_rows_and_no_rows(kept: int) -> None:
    wide = torch.randn(3, 2 * CHUNK, generator=torch.Generator().manual_seed(1))
    rows = wide[:, :CHUNK]
    assert torch.equal(select.largest(rows, kept), select.largest(rows.contiguous(), kept))
    assert select.largest(rows[:0], kept).shape == (0, kept)


def test_a_nan_is_the_largest_then_an_infinity() -> None:
    x = torch.ones(1, CHUNK)
    x[0, 3000], x[0, 2000], x[0, 1000] = -torch.nan, -torch.inf, 1e38
    assert select.largest(x, 2).tolist() == [[2000, 3000]]
    assert select.largest(x, 4).tolist() == [[0, 1000, 2000, 3000]]


@pytest.mark.parametrize("kept", [2, 40, 1000, 4094])
def test_neighbouring_numbers_are_told_apart(kept: int) -> None:
    order = torch.randperm(CHUNK, generator=torch.Generator().manual_seed(4))
    x = (order.to(torch.int32) + 0x3F800001).view(torch.float32)[None] * torch.where(order % 3 == 0, -1, 1)
    wanted = (order >= CHUNK - kept).nonzero().view(1, -1)
    assert torch.equal(select.largest(x, kept), wanted)
    assert torch.equal(select.by_keys(x, kept), wanted)
