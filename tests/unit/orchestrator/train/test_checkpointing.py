"""What each mode of activation checkpointing really recomputes."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn import Linear8bitLt
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from orchestrator.train.checkpointing import enable_checkpointing
from orchestrator.train.settings import TrainSettings

RANK = 5  # no other dimension of the model has this size
LAYERS = 2


class CountAdapterProducts(TorchDispatchMode):
    """Counts products that end in the adapters' width; a result taken from the cache does not get here."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.count += args[-1].shape[-1] == RANK and args[-2].shape[-1] != RANK
        return func(*args, **(kwargs or {}))


def settings(mode: str) -> TrainSettings:
    return TrainSettings(
        run_dir=Path("unused"),
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device("cpu"),
        engine="ddp",
        precision="fp32",
        adapter_dtype="fp32",
        quant_storage="uint8",
        checkpointing=mode,
        shares=(2,),
        micro=(2,),
        accumulation=1,
    )


def forward_products(mode: str) -> int:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4
    )
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=RANK, target_modules=["q_proj", "up_proj"]))
    enable_checkpointing(model, settings(mode), RANK)
    model.train()
    ids = torch.randint(0, 64, (2, 7))
    with CountAdapterProducts() as counted:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        in_forward = counted.count
        loss.backward()
    # The backward pass has one more product of this width for each adapter: the gradient of its input side.
    assert in_forward == LAYERS * 2
    return counted.count - in_forward


def test_selective_keeps_the_adapters_products() -> None:
    none, selective, full = (forward_products(mode) for mode in ("none", "selective", "full"))
    assert selective == none
    assert full == none + LAYERS * 2


def test_gradients_agree() -> None:
    found = []
    for mode in ("none", "selective", "full"):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4
        )
        model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=RANK, target_modules="all-linear"))
        enable_checkpointing(model, settings(mode), RANK)
        ids = torch.arange(14).reshape(2, 7)
        model.train()(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("mode", ["none", "full"])
def test_modes_reach_the_model(mode: str) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
    )
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=RANK, target_modules="all-linear"))
    enable_checkpointing(model, settings(mode), RANK)
    assert model.base_model.model.is_activation_checkpointing is (mode == "full")


@pytest.mark.parametrize("mode", ["full", "none"])
def test_8_bit_layers_keep_their_inputs_only_without_checkpointing(mode: str) -> None:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4
    )
    base = LlamaForCausalLM(config).requires_grad_(requires_grad=False)
    inputs: list[weakref.ref[Any]] = []
    for layer in base.model.layers:
        layer.mlp.down_proj = Linear8bitLt(48, 32, bias=False, has_fp16_weights=False).to("cpu")
        layer.mlp.down_proj.register_forward_pre_hook(
            lambda _, args: inputs.append(weakref.ref(args[0].untyped_storage()))
        )
    model = get_peft_model(base, LoraConfig(r=RANK, target_modules=["q_proj"])).train()
    enable_checkpointing(model, settings(mode), RANK)
    ids = torch.randint(0, 64, (2, 7))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    gc.collect()
    kept = sum(storage() is not None for storage in inputs)
    assert kept == (LAYERS if mode == "none" else 0)
    loss.backward()
    assert all(x.grad is not None for x in model.parameters() if x.requires_grad)
