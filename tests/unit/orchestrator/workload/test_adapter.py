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
from orchestrator.workload.parameters import TUPLE_ROUTERS

from .architectures import CASES, meta_model

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}
TARGETS = {
    "mixtral": ("q_proj", "w1", "w2", "w3"),
    "qwen2_moe-mixed": ("q_proj", "down_proj"),
    "qwen3_moe-mixed": ("q_proj", "down_proj"),
    "deepseek_v2": ("q_b_proj", "gate_proj", "up_proj", "down_proj"),
    "gpt_oss": ("q_proj", "o_proj"),
    "llama4-mixed": ("q_proj", "down_proj"),
    "gemma3-whole": ("q_proj", "v_proj", "fc1"),
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


# PEFT warns that Conv1D is stored the other way round, and that the rank of stacked experts is set twice.
pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning", "ignore:The following:RuntimeWarning")


def _trained(name: str, targets: str | list[str]) -> list[torch.nn.Parameter]:
    with torch.device("meta"):
        base = meta_model(name)
        # PEFT would wrap routers that return tuples, and the first forward pass would fail.
        routers = [key for key, module in base.named_modules() if type(module).__name__ in TUPLE_ROUTERS]
        config = LoraConfig(r=8, target_modules=targets, exclude_modules=routers or None, task_type="CAUSAL_LM")
        model = get_peft_model(base, config)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("name", "targets"), [*((name, ("all-linear",)) for name in CASES), *TARGETS.items()], ids=lambda x: str(x)[:30]
)
def test_every_family_gets_the_adapters_of_peft(name: str, targets: tuple[str, ...]) -> None:
    trained = _trained(name, "all-linear" if targets == ("all-linear",) else list(targets))

    shape = adapter_shape(
        shape_from_config(name, meta_model(name).config.to_dict()), AdapterConfig(rank=8, targets=targets)
    )

    assert shape.params == sum(parameter.numel() for parameter in trained)
    assert shape.tensors == len(trained)
    assert shape.largest_tensor == max(parameter.numel() for parameter in trained)


def test_half_of_a_fused_projection_is_refused() -> None:
    shape = shape_from_config("m", meta_model("mixtral").config.to_dict())
    with pytest.raises(ValueError, match="without also targeting w3"):
        _trained("mixtral", ["q_proj", "w1"])
    with pytest.raises(UserError, match="w1 without w3"):
        adapter_shape(shape, AdapterConfig(targets=("q_proj", "w1")))


def test_experts_are_told() -> None:
    reached = shape_from_config("m", meta_model("mixtral").config.to_dict())
    alone = shape_from_config("m", meta_model("gpt_oss").config.to_dict())
    assert "on experts and routers" in adapter_shape(reached, AdapterConfig(targets=("all-linear",))).notes[0]
    assert "No expert carries" in adapter_shape(alone, AdapterConfig(targets=("all-linear",))).notes[0]


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
