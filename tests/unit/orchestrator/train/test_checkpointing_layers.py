"""Recomputing the first layers alone: which ones, and that losses and gradients stay bitwise the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear8bitLt
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from orchestrator.errors import UserError
from orchestrator.train.checkpointing import enable_checkpointing
from orchestrator.train.settings import TrainSettings

RANK, LAYERS = 5, 4
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
}
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {"num_key_value_heads": 2, "head_dim": 8}),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_key_value_heads": 2, "num_local_experts": 3}),
    "gpt_neox": (GPTNeoXConfig, GPTNeoXForCausalLM, {}),
}
SETTINGS = TrainSettings(
    run_dir=Path("unused"),
    rank=0,
    local_rank=0,
    world_size=1,
    device=torch.device("cpu"),
    engine="ddp",
    precision="fp32",
    adapter_dtype="fp32",
    quant_storage="uint8",
    checkpointing="full",
    shares=(2,),
    micro=(2,),
    accumulation=1,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _model(kind: str, *, int8: bool = False) -> Any:
    torch.manual_seed(0)
    config, model, more = MODELS[kind]
    base = model(config(**SIZES, **more)).requires_grad_(requires_grad=False)
    if int8:
        for layer in base.model.layers:
            layer.mlp.down_proj = Linear8bitLt(48, 32, bias=False, has_fp16_weights=False).to("cpu")
    adapted = get_peft_model(base, LoraConfig(r=RANK, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # they start as zeros, which hides the other half
            torch.nn.init.normal_(parameter, std=0.1)
    return adapted.train()


def _layers(model: Any) -> list[Any]:
    return [x for x in model.modules() if isinstance(x, GradientCheckpointingLayer)]


def _step(kind: str, settings: TrainSettings, *, int8: bool = False) -> tuple[list[torch.Tensor], list[int]]:
    """Loss and gradients of a step, and how often each layer ran forward."""
    model = _model(kind, int8=int8)
    enable_checkpointing(model, settings, RANK)
    runs = [0] * LAYERS

    def count(index: int) -> Any:
        def hook(*_: Any) -> None:
            runs[index] += 1

        return hook

    for index, layer in enumerate(_layers(model)):
        # The module inside runs again, the layer's own hooks do not.
        next(iter(layer.children())).register_forward_pre_hook(count(index))
    ids = torch.arange(14).reshape(2, 7)
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(x.grad for x in model.parameters() if x.requires_grad)], runs


@pytest.mark.parametrize("kind", list(MODELS))
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_losses_and_gradients_are_bitwise_those_of_none(kind: str, mode: str) -> None:
    wanted, runs = _step(kind, replace(SETTINGS, checkpointing="none"))
    assert runs == [1] * LAYERS
    for count in range(1, LAYERS):
        settings = replace(SETTINGS, checkpointing=mode, recomputed_layers=count)
        found, runs = _step(kind, settings)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
        assert runs == [2] * count + [1] * (LAYERS - count), "the first ones are recomputed"
    found, runs = _step(kind, replace(SETTINGS, checkpointing=mode))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert runs == [2] * LAYERS


@pytest.mark.parametrize("changes", [{"engine": "zero3"}, {}])
def test_the_reentrant_way_too(changes: dict[str, Any]) -> None:
    """As ZeRO-3 and 8-bit layers need it."""
    int8 = not changes
    wanted, _ = _step("llama", replace(SETTINGS, checkpointing="none", **changes), int8=int8)
    found, runs = _step("llama", replace(SETTINGS, recomputed_layers=2, **changes), int8=int8)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert runs == [2, 2, 1, 1]


def test_code_without_layers_of_its_own_is_told() -> None:
    class Plain(torch.nn.Module):
        def activation_checkpointing_enable(self, **_: Any) -> None:
            """Do as models of other people's code do: nothing for a single layer."""

        def enable_input_require_grads(self) -> None:
            """No inputs here."""

    with pytest.raises(UserError, match="has 0 that can be recomputed one by one"):
        enable_checkpointing(Plain(), replace(SETTINGS, recomputed_layers=2), RANK)
