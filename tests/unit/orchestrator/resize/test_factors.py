from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.resize import reference
from orchestrator.resize.factors import (
    FIRST,
    SECOND,
    STEP,
    Resized,
    energies,
    moments_of_a,
    moments_of_b,
    resized,
    restart,
)

_BETAS = (0.9, 0.999)
_SHAPES = ("trained", "start", "deficient", "tiny", "long", "copies")


def _adapter(shape: str, rank: int, into: int, out: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A pair of matrices of one kind: what training makes of them, and what it seldom does."""
    at = torch.Generator().manual_seed(seed)
    a = (torch.rand(rank, into, generator=at) * 2 - 1) / math.sqrt(into)
    b = torch.randn(out, rank, generator=at) * 0.02
    if shape == "start":
        b.zero_()
    if shape == "deficient" and rank > 1:
        b[:, rank // 2 :] = 0
    if shape == "tiny":
        b *= 1e-12
    if shape == "long":
        b *= 1e6
    if shape == "copies":
        a[:] = a[0]
    return a, b


def _draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


_adapters = st.builds(
    _adapter, st.sampled_from(_SHAPES), st.integers(1, 12), st.integers(2, 40), st.integers(2, 40), st.integers(0, 999)
)


@given(_adapters, st.integers(1, 12))
@settings(deadline=None, max_examples=150)
def test_fewer_ranks_are_the_nearest_product_and_the_error_is_what_was_dropped(
    pair: tuple[torch.Tensor, torch.Tensor], rank: int
) -> None:
    a, b = pair
    rank = min(rank, a.shape[0])
    change = resized(a.double(), b.double(), rank, _draws())
    nearest, squared = reference.nearest(a, b, rank)
    whole = b.double() @ a.double()
    size = float(whole.square().sum())
    assert change.a.shape == (rank, a.shape[1])
    assert change.b.shape == (b.shape[0], rank)
    error = float((whole - change.b @ change.a).square().sum())
    assert error == pytest.approx(squared, rel=1e-6, abs=1e-20 * size + 1e-24 * size)
    assert change.dropped == pytest.approx(squared, rel=1e-6, abs=1e-20 * size)
    assert change.energy == pytest.approx(size, rel=1e-9)
    assert float((nearest - change.b @ change.a).norm()) <= 1e-6 * math.sqrt(size) + math.sqrt(squared) * 1e-3


@given(_adapters, st.integers(1, 12))
@settings(deadline=None, max_examples=100)
def test_more_ranks_leave_the_product_and_the_old_rows_bit_by_bit(
    pair: tuple[torch.Tensor, torch.Tensor], more: int
) -> None:
    a, b = pair
    change = resized(a, b, a.shape[0] + more, _draws())
    assert torch.equal(change.a[: a.shape[0]], a)
    assert torch.equal(change.b[:, : a.shape[0]], b)
    assert not change.b[:, a.shape[0] :].any()
    assert change.a[a.shape[0] :].norm(dim=1).min() > 0
    torch.testing.assert_close(change.b @ change.a, b @ a, rtol=1e-5, atol=1e-6 * float((b @ a).abs().max()))
    assert change.dropped == 0


@given(st.integers(2, 10), st.integers(1, 12), st.integers(1, 30), st.integers(0, 999))
@settings(deadline=None, max_examples=60)
def test_momentum_is_what_the_new_matrices_would_have_gathered(rank: int, new: int, steps: int, seed: int) -> None:
    a, b = (x.double() for x in _adapter("trained", rank, 24, 16, seed))
    at = _draws(seed)
    gradients = [torch.randn(16, 24, generator=at, dtype=torch.float64) for _ in range(steps)]
    change = resized(a, b, new, _draws(seed + 1))
    old_a, old_b = reference.unbiased_momentum(gradients, a, b, _BETAS[0])
    # New rows have no past: what momentum has of them is 0.
    kept_a = change.rows @ a
    new_a, new_b = reference.unbiased_momentum(gradients, kept_a, change.b, _BETAS[0])
    for old, expected, project in ((old_a, new_a, moments_of_a), (old_b, new_b, moments_of_b)):
        share = 1 - _BETAS[0] ** steps
        held = {FIRST: old * share, SECOND: old.square(), STEP: torch.tensor(float(steps))}
        found = project(held, change, _BETAS)
        unbiased = found[FIRST] / (1 - _BETAS[0] ** float(found[STEP]))
        torch.testing.assert_close(unbiased, expected, rtol=1e-8, atol=1e-12)


def test_columns_of_b_that_are_zero_have_rows_of_a_that_can_learn() -> None:
    a, b = _adapter("start", 8, 32, 16, 0)
    change = resized(a, b, 3, _draws())
    assert not change.b.any()
    lengths = change.a.norm(dim=1)
    typical = float(a.norm()) / math.sqrt(8)
    torch.testing.assert_close(lengths, torch.full((3,), typical))
    # Rows of its own row space, so that what B's gradients say goes on.
    torch.testing.assert_close(change.rows.float() @ a, change.a, rtol=1e-4, atol=1e-6)


def test_an_adapter_of_zeros_gets_rows_as_long_as_new_ones_of_peft() -> None:
    change = resized(torch.zeros(4, 6), torch.zeros(5, 4), 6, _draws())
    assert float(change.a[4:].abs().max()) <= 1 / math.sqrt(6)
    assert change.a[4:].norm(dim=1).min() > 0


def test_rank_beyond_the_matrix_is_cut_to_what_there_is() -> None:
    a, b = _adapter("trained", 12, 4, 5, 0)
    change = resized(a, b, 6, _draws())
    assert change.a.shape == (6, 4)
    torch.testing.assert_close(change.b @ change.a, b @ a, rtol=1e-4, atol=1e-7)
    assert len(energies(a, b)) == 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_cut_in_full_precision_and_rounded_once(dtype: torch.dtype) -> None:
    a, b = (x.to(dtype) for x in _adapter("trained", 8, 64, 48, 3))
    change = resized(a, b, 4, _draws())
    assert change.a.dtype is dtype
    exact = resized(a.double(), b.double(), 4, _draws())
    torch.testing.assert_close(change.a, exact.a.to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(change.b, exact.b.to(dtype), rtol=0, atol=0)
    error = float((b.double() @ a.double() - change.b.double() @ change.a.double()).square().sum())
    assert error == pytest.approx(change.dropped, rel=0.02)


def test_same_seed_same_rows() -> None:
    a, b = _adapter("trained", 4, 8, 8, 0)
    assert torch.equal(resized(a, b, 9, _draws(5)).a, resized(a, b, 9, _draws(5)).a)
    assert not torch.equal(resized(a, b, 9, _draws(5)).a, resized(a, b, 9, _draws(6)).a)


def _held(a: torch.Tensor, steps: float) -> dict[str, torch.Tensor]:
    return {FIRST: torch.randn_like(a), SECOND: torch.rand_like(a), STEP: torch.tensor(steps)}


@pytest.mark.parametrize("steps", [1.0, 7.0, 500.0])
def test_second_moment_of_rows_that_stay_is_kept_and_soon_outweighed(steps: float) -> None:
    a, b = _adapter("trained", 4, 8, 8, 0)
    change = resized(a, b, 6, _draws())
    held = _held(b, steps)
    found = moments_of_b(held, change, _BETAS)
    unbiased = found[SECOND][:, :4] / (1 - 0.999 ** float(found[STEP]))
    torch.testing.assert_close(unbiased, held[SECOND] / (1 - 0.999**steps), rtol=1e-4, atol=1e-6)
    assert not found[SECOND][:, 4:].any()
    assert float(found[STEP]) == min(steps, 10.0)


def test_no_entry_moves_further_than_in_the_first_steps_of_a_run() -> None:
    """With a second moment of zeros and an old step count, AdamW would move 3 and 30 times too far."""
    a, b = _adapter("trained", 4, 8, 8, 0)
    change = resized(a, b, 6, _draws())
    weight = torch.nn.Parameter(change.b.clone())
    optimizer = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.0, betas=_BETAS)
    optimizer.state[weight] = moments_of_b(
        {FIRST: b * 0, SECOND: b * 0 + 1e-6, STEP: torch.tensor(900.0)}, change, _BETAS
    )
    for _ in range(40):
        before = weight.detach().clone()
        weight.grad = torch.full_like(weight, 1e-3)
        optimizer.step()
        assert float((weight.detach() - before)[:, 4:].abs().max()) <= 1.2e-3


def test_moments_of_another_optimizer_begin_anew() -> None:
    a, b = _adapter("trained", 4, 8, 8, 0)
    change = resized(a, b, 2, _draws())
    assert moments_of_a({"state1": a, "state2": a, "step": torch.tensor(3.0)}, change, _BETAS) == {}
    assert moments_of_a({}, change, _BETAS) == {}


def test_step_count_after_a_change() -> None:
    assert restart(3, 0.9) == 3
    assert restart(1000, 0.9) == 10
    assert restart(1000, 0.0) == 1


def test_a_rank_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 0"):
        resized(torch.ones(2, 3), torch.ones(4, 2), 0, _draws())


def test_result_names_what_it_dropped() -> None:
    a, b = torch.eye(3), torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    change: Resized = resized(a, b, 1, _draws())
    assert (change.energy, change.dropped) == (pytest.approx(14.0), pytest.approx(5.0))
    assert energies(a, b) == pytest.approx((9.0, 4.0, 1.0))
