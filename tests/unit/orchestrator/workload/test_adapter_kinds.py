"""What other kinds of adapters train, against PEFT on models without weights, and names that match nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import AdaLoraConfig, LoraConfig, get_peft_model

from orchestrator.config import AdapterConfig, AdapterInit, AdapterKind
from orchestrator.errors import UserError
from orchestrator.workload.adapter import AdapterShape, adapter_shape
from orchestrator.workload.adapter_names import in_layers
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.model import ModelShape

from .architectures import meta_model

pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning", "ignore:The following:RuntimeWarning")
NAMES = ("llama", "qwen3", "gemma2", "phi3", "gpt_neox", "opt", "gpt2", "falcon-7b")
DENSE_PATTERN = {"layers.0.self_attn.q_proj": 12, r"layers\.[1-2]\..*down_proj": 3, "o_proj": 6}


def _shape(name: str) -> ModelShape:
    return shape_from_config(name, meta_model(name).config.to_dict())


def _trained(name: str, config: LoraConfig) -> list[torch.nn.Parameter]:
    with torch.device("meta"):
        model = get_peft_model(meta_model(name), config)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _check(shape: AdapterShape, trained: list[torch.nn.Parameter]) -> None:
    assert shape.params == sum(parameter.numel() for parameter in trained)
    assert shape.tensors == len(trained)
    assert shape.largest_tensor == max(parameter.numel() for parameter in trained)


@pytest.mark.parametrize("name", NAMES)
def test_magnitudes_of_dora(name: str) -> None:
    trained = _trained(name, LoraConfig(r=8, target_modules="all-linear", use_dora=True, task_type="CAUSAL_LM"))
    _check(adapter_shape(_shape(name), AdapterConfig(rank=8, dora=True)), trained)


@pytest.mark.parametrize("name", NAMES)
def test_singular_values_of_adalora(name: str) -> None:
    config = AdaLoraConfig(init_r=12, target_r=8, total_step=10, target_modules="all-linear", task_type="CAUSAL_LM")
    _check(adapter_shape(_shape(name), AdapterConfig(kind=AdapterKind.adalora, rank=8)), _trained(name, config))


@pytest.mark.parametrize("name", ["llama", "llama-biased", "qwen3", "gemma2", "smollm3"])
@pytest.mark.parametrize("dora", [False, True])
def test_ranks_by_pattern(name: str, dora: bool) -> None:
    config = LoraConfig(
        r=8, target_modules="all-linear", rank_pattern=dict(DENSE_PATTERN), use_dora=dora, task_type="CAUSAL_LM"
    )
    pattern = tuple((key, float(number)) for key, number in DENSE_PATTERN.items())
    shape = adapter_shape(_shape(name), AdapterConfig(rank=8, rank_pattern=pattern, dora=dora))
    _check(shape, _trained(name, config))
    assert shape.ranks_per_layer == pytest.approx(sum(x.count * x.rank for x in shape.all_pieces) / 3)


@pytest.mark.parametrize(
    ("name", "saved", "inside"),
    [
        ("llama", ("embed_tokens", "lm_head"), False),
        ("llama", ("lm_head", "model.norm"), False),
        ("llama", ("input_layernorm",), True),
        ("qwen3", ("embed_tokens",), False),
    ],
)
def test_modules_that_train_whole(name: str, saved: tuple[str, ...], inside: bool) -> None:
    config = LoraConfig(r=8, target_modules="all-linear", modules_to_save=list(saved), task_type="CAUSAL_LM")
    shape = adapter_shape(_shape(name), AdapterConfig(rank=8, modules_to_save=saved))
    _check(shape, _trained(name, config))
    assert in_layers(_shape(name), shape.saved) is inside


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        (
            "llama",
            {"rank_pattern": (("q_porj", 4.0),)},
            r"'q_porj' matches no module with an adapter\. The nearest: q_proj",
        ),
        ("llama", {"targets": ("q_proj",), "alpha_pattern": (("v_proj", 4.0),)}, "'v_proj' matches no module"),
        ("llama", {"rank_pattern": (("q_proj(", 4.0),)}, "is no regular expression"),
        ("llama", {"modules_to_save": ("embd_tokens",)}, r"names no module of llama\. The nearest: embed_tokens"),
        ("llama", {"modules_to_save": ("q_proj",)}, "carries an adapter already"),
        ("llama", {"targets": ("v_proj",), "modules_to_save": ("q_proj",)}, "packed weights have no gradient"),
        ("llama-tied", {"modules_to_save": ("embed_tokens",)}, "is tied"),
        ("llama-tied", {"modules_to_save": ("lm_head",)}, "is tied"),
        ("mixtral", {"dora": True}, "stacked experts of mixtral take plain LoRA"),
    ],
)
def test_what_cannot_be_is_refused(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        adapter_shape(_shape(name), AdapterConfig(**changes))


def test_eva_is_counted_at_the_most_its_budget_allows() -> None:
    """The widest modules of `llama` are the MLP's: 64 to 176, three in each of 3 layers; 21 modules in all."""
    shape = adapter_shape(_shape("llama"), AdapterConfig(rank=8, init=AdapterInit.eva, rho=2.0))
    assert sum(piece.count * piece.rank for piece in shape.all_pieces) == 21 * 8
    assert max(piece.rank for piece in shape.all_pieces) == 16
    assert shape.params == 9 * 16 * (64 + 176) + 16 * (64 + 64) + 8 * (64 + 64)
    assert shape.params > adapter_shape(_shape("llama"), AdapterConfig(rank=8)).params
