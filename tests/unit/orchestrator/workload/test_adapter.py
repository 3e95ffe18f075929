"""Adapter counts, and the errors for names that match nothing."""

from __future__ import annotations

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from orchestrator.config import AdapterConfig
from orchestrator.errors import UserError
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.families import shape_from_config

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
SHAPE = shape_from_config("small", {"model_type": "llama", **SMALL})


@pytest.mark.parametrize("targets", [("all-linear",), ("q_proj", "v_proj"), ("mlp.down_proj",)])
def test_counts_match_peft(targets: tuple[str, ...]) -> None:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
        wanted = "all-linear" if targets == ("all-linear",) else list(targets)
        model = get_peft_model(model, LoraConfig(r=8, target_modules=wanted, task_type="CAUSAL_LM"))
    trained = [p for p in model.parameters() if p.requires_grad]

    shape = adapter_shape(SHAPE, AdapterConfig(rank=8, targets=targets))

    assert shape.params == sum(p.numel() for p in trained)
    assert shape.tensors == len(trained)
    assert shape.largest_tensor == max(p.numel() for p in trained)


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'q_porj'.*The nearest: q_proj"):
        adapter_shape(SHAPE, AdapterConfig(targets=("q_porj",)))


def test_all_problems_come_at_once() -> None:
    with pytest.raises(UserError) as caught:
        adapter_shape(SHAPE, AdapterConfig(rank=0, targets=("zzz", "v_projj")))
    assert len(caught.value.problems) == 3


def test_nothing_to_train_is_an_error() -> None:
    with pytest.raises(UserError, match="no parameter would train"):
        adapter_shape(SHAPE, AdapterConfig(targets=()))
