"""Rows that end early."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dataset.examples import Example, shortened


@given(documents=st.lists(st.integers(1, 9), min_size=1, max_size=5), tokens=st.integers(1, 50))
def test_a_row_keeps_its_first_tokens_and_knows_its_documents(documents: list[int], tokens: int) -> None:
    total = sum(documents)
    ids = np.arange(total, dtype=np.int32)
    row = Example(input_ids=ids, labels=ids + 100, seq_lengths=tuple(documents))
    found = shortened(row, tokens)
    assert found.input_ids.tolist() == list(range(min(tokens, total)))
    assert found.labels.tolist() == [token + 100 for token in found.input_ids.tolist()]
    owner = [at for at, length in enumerate(documents) for _ in range(length)]
    kept = [at for at, length in enumerate(found.seq_lengths) for _ in range(length)]
    assert kept == owner[: len(found)]
    assert shortened(row, total) is row
