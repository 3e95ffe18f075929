"""Storages of small models, told apart by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from torch import nn

from orchestrator.engines.ddp import DdpEngine
from orchestrator.engines.live import base_bytes, count_bytes, partitioned_base, replicated_base, tensors_of

FP32 = 4


class Small(nn.Module):
    """An embedding, a linear module with a bias, a norm and a head."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.inner = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.requires_grad_(False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.inner(self.embedding(tokens)))
        return hidden


def test_a_storage_counts_once_and_for_the_first_name() -> None:
    whole = torch.zeros(100)
    found = count_bytes({"a": [whole[:10], whole], "b": [whole[10:], torch.zeros(3, dtype=torch.uint8)], "c": []})
    assert found == {"a": 400, "b": 3, "c": 0}


def test_an_empty_tensor_is_nothing() -> None:
    assert count_bytes({"a": [torch.empty(0), torch.empty(0)]}) == {"a": 0}


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_and_the_rest_are_not_packed(tied: bool) -> None:
    found = count_bytes(replicated_base(Small(tied=tied)))
    tables = 50 * 16 * (1 if tied else 2)
    assert found == {"base_packed": 16 * 16 * FP32, "absmax": 0, "base_unquantised": (16 + 32 + tables) * FP32}
    assert base_bytes({**found, "adapters": 7}) == sum(found.values())


def test_the_head_is_found_through_wrappers() -> None:
    wrapped = nn.Module()
    wrapped.module = Small(tied=False)
    assert count_bytes(replicated_base(wrapped)) == count_bytes(replicated_base(Small(tied=False)))


def test_four_bits_with_their_scales() -> None:
    model = nn.Sequential(bnb.nn.Linear4bit(256, 256, bias=False, quant_type="nf4", compress_statistics=True)).to("cpu")
    model.requires_grad_(requires_grad=False)
    found = count_bytes(replicated_base(model))
    blocks = 256 * 256 // 64
    code_books, offset = (16 + 256) * FP32, FP32
    assert found["base_packed"] == 256 * 256 // 2
    assert found["absmax"] == blocks + blocks // 256 * FP32 + code_books + offset


def test_eight_bits_with_their_scales_before_and_after_the_first_pass() -> None:
    model = nn.Sequential(bnb.nn.Linear8bitLt(64, 32, bias=False, has_fp16_weights=False)).to("cpu")
    model.requires_grad_(requires_grad=False)
    expected = {"base_packed": 64 * 32, "absmax": 32 * FP32, "base_unquantised": 0}
    assert count_bytes(replicated_base(model)) == expected
    model(torch.randn(2, 64))
    assert count_bytes(replicated_base(model)) == expected


def test_partitions_and_persistent_parameters() -> None:
    model = Small(tied=True)
    for parameter in model.parameters():
        one: Any = parameter
        one.ds_persist = parameter.dim() == 1
        one.ds_tensor = torch.zeros(-(-parameter.numel() // 2))
        if not one.ds_persist:
            parameter.data = torch.empty(0)
    found = count_bytes(partitioned_base(model))
    assert found["base_partition"] == (16 * 16 + 50 * 16) // 2 * FP32
    assert found["persistent_params"] == 3 * 16 * FP32 * 3 // 2  # whole, and this rank's half


def test_ddp_counts_adapters_and_moments() -> None:
    model = Small(tied=True)
    model.inner.weight.requires_grad_(requires_grad=True)
    optimizer = torch.optim.AdamW([model.inner.weight])
    engine = DdpEngine()
    assert engine.live_bytes(model, optimizer)["optimizer"] == 0
    model(torch.arange(5)).sum().backward()
    optimizer.step()
    found = engine.live_bytes(model, SimpleNamespace(optimizer=optimizer))  # accelerate wraps it
    adapters = 16 * 16 * FP32
    step_counter = FP32
    assert found["adapters"] == adapters
    assert found["optimizer"] == 2 * adapters + step_counter
    assert found["ddp_buckets"] == found["base_packed"] == 0


def test_tensors_are_found_in_nested_states() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    assert [x.numel() for x in tensors_of({"a": [one, {"b": (two, 3)}], "c": None, "d": 1.0})] == [1, 2]
