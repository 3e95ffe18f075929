"""Memory of answers: against the cache that the library really holds, and beside the steps of training."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from orchestrator.config import Checkpointing
from orchestrator.estimate.generation import cache_bytes
from orchestrator.estimate.memory import estimate_memory
from orchestrator.estimate.setting import Generation, Setting


def _term(setting: Setting) -> int:
    terms = {term.name: term.bytes for term in estimate_memory(setting).train.terms}
    return terms.get("generation", 0)


def test_the_cache_is_as_large_as_the_librarys(make_setting: Callable[..., Setting]) -> None:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=256,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    with torch.no_grad():
        cache = LlamaForCausalLM(config)(torch.ones(3, 10, dtype=torch.long), use_cache=True).past_key_values
    held = sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))
    setting = make_setting(compute_dtype="fp32", generation=Generation(rows=3, prompt_tokens=6, new_tokens=4))
    # One layer's more: the cache grows by copying it.
    assert cache_bytes(setting) == held + held // 4


def test_short_answers_take_nothing_beyond_a_step(
    make_setting: Callable[..., Setting],
) -> None:
    setting = make_setting(checkpointing=Checkpointing.none)
    longest = setting.batch.longest_tokens
    assert _term(setting) == 0
    assert _term(replace(setting, generation=Generation(rows=None, prompt_tokens=longest, new_tokens=8))) == 0


def test_long_answers_are_counted_and_more_rows_take_more(make_setting: Callable[..., Setting]) -> None:
    setting = make_setting(checkpointing=Checkpointing.full)
    setting = replace(setting, model=replace(setting.model, max_positions=0))
    longest = setting.batch.longest_tokens
    found = [
        _term(replace(setting, generation=Generation(rows=rows, prompt_tokens=longest, new_tokens=new)))
        for rows, new in ((None, 20_000), (None, 40_000), (8 * setting.micro, 40_000))
    ]
    assert 0 < found[0] < found[1] < found[2]
    assert found[1] - found[0] == pytest.approx(
        cache_bytes(replace(setting, generation=Generation(rows=None, prompt_tokens=0, new_tokens=20_000)))
    )


def test_a_model_has_no_more_positions_than_it_has(make_setting: Callable[..., Setting]) -> None:
    setting = make_setting(generation=Generation(rows=1, prompt_tokens=10, new_tokens=90))
    bounded = replace(setting, model=replace(setting.model, max_positions=50))
    free = replace(setting, model=replace(setting.model, max_positions=0))
    assert cache_bytes(free) == 2 * cache_bytes(bounded)
