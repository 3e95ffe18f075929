"""Shapes as transformers 4 held them: the same parameters, more of them packed."""

from __future__ import annotations

import pytest

from orchestrator.config import AdapterConfig
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.named import preset_shape
from orchestrator.workload.older import as_transformers_4


@pytest.mark.parametrize(
    "name", ["mixtral-8x7b", "qwen3-30b-a3b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "falcon-7b"]
)
def test_nothing_is_lost_and_more_is_packed(name: str) -> None:
    new = preset_shape(name)
    old = as_transformers_4(new)
    assert old.total_params == new.total_params
    assert old.active_params == pytest.approx(new.active_params, rel=1e-2)  # routers count as linear modules now
    assert old.packed_params == old.linear_params > new.packed_params
    assert old.expert_params == 0
    assert sum(count * linear.weights for linear, count in old.linear_counts) == old.linear_params


@pytest.mark.parametrize("name", ["gpt-oss-20b", "llama-2-7b"])
def test_what_was_held_the_same_way_stays(name: str) -> None:
    assert as_transformers_4(preset_shape(name)) == preset_shape(name)


def test_everything_of_mixtral_but_tables_and_norms_was_packed() -> None:
    old = as_transformers_4(preset_shape("mixtral-8x7b"))
    assert old.packed_params == old.total_params - 2 * 32_000 * 4096 - (2 * 32 + 1) * 4096


def test_adapters_of_single_experts() -> None:
    old = as_transformers_4(preset_shape("mixtral-8x7b"))
    adapter = adapter_shape(old, AdapterConfig(rank=8, targets=("w1", "w2", "w3")))
    assert adapter.params == 32 * 8 * 3 * 8 * (4096 + 14_336)
    assert adapter.tensors == 32 * 8 * 3 * 2
    every = adapter_shape(old, AdapterConfig(rank=8, targets=("all-linear",)))
    assert every.params == 121_112_576
    assert not every.notes
