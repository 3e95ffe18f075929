"""Packing and collating; packed documents must not see each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from orchestrator.dataset.batching import collate, pack
from orchestrator.dataset.examples import IGNORED, Example, make_example, masked_like

PAD = 0


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring on tensors this small."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def documents(lengths: list[int], seed: int = 0) -> list[Example]:
    random = np.random.default_rng(seed)
    return [make_example(ids := random.integers(1, 64, length).tolist(), ids) for length in lengths]


def unpacked(row: Example) -> list[tuple[int, ...]]:
    ends = np.cumsum(row.seq_lengths)[:-1]
    return [tuple(part.tolist()) for part in np.split(row.input_ids, ends)]


def tiny_llama(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 16), min_size=1, max_size=40))
def test_packing_keeps_every_document_whole(lengths: list[int]) -> None:
    examples = documents(lengths)
    rows = pack(examples, 16)
    assert all(len(row) <= 16 for row in rows)
    found = sorted(document for row in rows for document in unpacked(row))
    assert found == sorted(tuple(example.input_ids.tolist()) for example in examples)
    assert all((row.labels == row.input_ids).all() for row in rows)
    # Best fit decreasing never opens a row while another is at most half full.
    assert sum(len(row) <= 8 for row in rows) <= 1


def test_packing_refuses_what_does_not_fit() -> None:
    assert pack([], 8) == ()
    with pytest.raises(ValueError, match="9 tokens does not fit"):
        pack(documents([9]), 8)
    with pytest.raises(ValueError, match="packed already"):
        pack(pack(documents([3, 4]), 8), 8)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("is_flat", [False, True])
def test_packed_logits_equal_those_of_each_document_alone(attention: str, is_flat: bool) -> None:
    model = tiny_llama(attention)
    rows = pack(documents([9, 7, 5, 5, 4, 1, 12, 3]), 16)
    assert len(rows) > 2
    batch = collate(rows, PAD, is_flat=is_flat, pad_to=64 if is_flat else 20)
    assert "attention_mask" not in batch
    assert len(batch["input_ids"]) == (1 if is_flat else len(rows))
    del batch["labels"]
    with torch.no_grad():
        packed = model(**batch, use_cache=False).logits
        start = 0
        for i, row in enumerate(rows):
            start = start if is_flat else 0
            for ids in unpacked(row):
                alone = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
                together = packed[0 if is_flat else i, start : start + len(ids)]
                torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
                start += len(ids)


def test_a_cache_lets_packed_documents_see_each_other() -> None:
    # Pins the trap described in the module: if this fails, `use_cache=False` is no longer needed.
    model = tiny_llama("sdpa")
    batch = collate(pack(documents([9, 7]), 16), PAD)
    with torch.no_grad():
        with_cache = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=True).logits
        without = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    assert (with_cache - without).abs().max() > 1e-3


def test_packed_loss_equals_the_mean_over_documents() -> None:
    model = tiny_llama("sdpa")
    examples = documents([9, 7, 5, 5, 4])
    with torch.no_grad():
        losses = [
            model(**collate(rows, PAD, pad_multiple_of=8), use_cache=False).loss
            for rows in (pack(examples, 16), tuple(examples))
        ]
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=0)


def test_collate_pads_and_masks() -> None:
    batch = collate(documents([3, 5]), PAD, pad_multiple_of=4)
    assert batch["attention_mask"].tolist() == [[1] * 3 + [0] * 5, [1] * 5 + [0] * 3]
    assert batch["input_ids"][0, 3:].tolist() == [PAD] * 5
    assert batch["labels"][0, 3:].tolist() == [IGNORED] * 5
    assert batch["labels"][:, 0].tolist() == [IGNORED] * 2
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    packed = collate(pack(documents([3, 2]), 8), PAD, pad_to=8)
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert (packed["labels"] == IGNORED).tolist() == [[True, False, False, True, False, True, True, True]]
    named = collate(documents([3]), PAD, is_packed=True)
    assert set(named) == {"input_ids", "labels", "position_ids"}
    with pytest.raises(ValueError, match="cannot pad 5 tokens to 4"):
        collate(documents([5]), PAD, pad_to=4)
    with pytest.raises(ValueError, match="attention mask"):
        collate(pack(documents([3, 2]), 8), PAD, is_packed=False)


def test_masked_rows_have_no_loss() -> None:
    row = pack(documents([3, 2]), 8)[0]
    masked = masked_like(row)
    assert masked.num_label_tokens == 0
    assert row.num_label_tokens == 3
    assert masked.seq_lengths == row.seq_lengths
    assert (masked.input_ids == row.input_ids).all()


def test_inconsistent_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 labels"):
        make_example([1, 2], [1])
    with pytest.raises(ValueError, match="empty"):
        make_example([], [])
