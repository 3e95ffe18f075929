from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.collectives.execute import Pieces
from orchestrator.collectives.memory import Pool, apply
from orchestrator.errors import UserError


@given(chunk_bytes=st.integers(0, 1 << 40), piece_bytes=st.integers(1, 1 << 30), most=st.integers(1, 1000))
def test_a_chunk_is_cut_into_one_piece_at_least(chunk_bytes: int, piece_bytes: int, most: int) -> None:
    number = Pieces(piece_bytes=piece_bytes, most=most).number(chunk_bytes)
    assert 1 <= number <= most
    if 1 < number < most:
        assert piece_bytes / 2 < chunk_bytes / number < 2 * piece_bytes


@pytest.mark.parametrize("wrong", ["piece_bytes", "most", "depth"])
def test_pieces_of_nothing_are_refused(wrong: str) -> None:
    with pytest.raises(UserError, match=f"{wrong}=0"):
        Pieces(**{wrong: 0})


def test_buffers_are_lent_again_and_grow_only_when_they_must() -> None:
    pool, like = Pool(), torch.zeros(1)
    first = pool.take(100, like)
    second = pool.take(50, like)
    assert pool.held_bytes == 600
    pool.give_back(first)
    third = pool.take(60, like)
    assert third.numel() == 60
    assert third.data_ptr() == first.data_ptr()
    assert second.data_ptr() != first.data_ptr()
    assert pool.held_bytes == 600
    assert pool.take(10, torch.zeros(1, dtype=torch.int64)).dtype is torch.int64


def test_truth_values_are_summed_as_the_library_does() -> None:
    held = torch.tensor([True, True, False, False])
    apply(held, torch.tensor([True, False, True, False]), add=True)
    assert held.tolist() == [True, True, True, False]
