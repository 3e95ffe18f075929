"""Saved bytes per token and layer against torch's saved-tensor hooks on small models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from orchestrator.config import Checkpointing, Quant
from orchestrator.estimate.activations import kept_bytes_per_token, saved_bytes_per_token
from orchestrator.estimate.backward import layer_peak
from orchestrator.estimate.setting import Setting

ROWS, LENGTH, RANK = 4, 64, 8
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 64,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products run faster without a thread pool, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _quantise(model: torch.nn.Module, dtype: torch.dtype) -> None:
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name.split(".")[-1] != "lm_head":
            layer = bnb.nn.Linear4bit(
                module.in_features,
                module.out_features,
                bias=module.bias is not None,
                compute_dtype=dtype,
                quant_type="nf4",
            )
            layer.load_state_dict(module.state_dict())
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], layer.to("cpu"))


def _adapted(kind: str, layers: int, dtype: torch.dtype, *, quantised: bool, dropout: float) -> PeftModel:
    config_class = getattr(transformers, f"{kind}Config")
    config = config_class(**SIZES, num_hidden_layers=layers, head_dim=16)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(dtype)
    if quantised:
        _quantise(model, dtype)
    lora = LoraConfig(r=RANK, target_modules="all-linear", lora_dropout=dropout)
    adapted = get_peft_model(model, lora)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted.train()


def _saved_bytes(adapted: PeftModel, *, padded: bool, autocast: bool) -> int:
    """Bytes of all storages that autograd holds after a forward pass of the decoder, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in (*adapted.parameters(), *adapted.buffers())}
    seen: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(0, SIZES["vocab_size"], (ROWS, LENGTH))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, LENGTH // 2 :] = 0
    adapted.enable_input_require_grads()
    decoder: Any = adapted.get_base_model().model
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        output = decoder(input_ids=ids, attention_mask=mask, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(storage.nbytes() for storage in seen.values())


@pytest.mark.parametrize(
    ("kind", "dtype", "padded", "quantised", "dropout"),
    [
        ("Llama", "fp32", False, True, 0.0),
        ("Llama", "fp32", True, True, 0.0),
        ("Llama", "bf16", False, True, 0.0),
        ("Llama", "bf16", True, True, 0.0),
        ("Llama", "fp32", False, False, 0.0),
        ("Llama", "fp32", False, True, 0.1),
        ("Qwen3", "fp32", False, True, 0.0),
        ("Gemma2", "fp32", False, True, 0.0),
    ],
)
def test_saved_bytes_match_autograd(
    *, make_setting: Callable[..., Setting], kind: str, dtype: str, padded: bool, quantised: bool, dropout: float
) -> None:
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    # The difference of two depths leaves one layer's share, free of what embedding and final norm save.
    sizes = [
        _saved_bytes(
            _adapted(kind, layers, torch_dtype, quantised=quantised, dropout=dropout),
            padded=padded,
            autocast=dtype == "bf16",
        )
        for layers in (1, 3)
    ]
    measured = (sizes[1] - sizes[0]) / 2 / (ROWS * LENGTH)
    setting = make_setting(
        model={**SIZES, "model_type": kind.lower(), "head_dim": 16},
        rank=RANK,
        seq_len=LENGTH,
        padded=padded,
        compute_dtype=dtype,
        load_dtype=dtype,
        quant=Quant.nf4 if quantised else Quant.none,
        micro=ROWS,
        eager_attention=kind == "Gemma2",
    )
    setting = replace(setting, adapter=replace(setting.adapter, dropout=dropout))
    assert saved_bytes_per_token(setting) == pytest.approx(measured, rel=0.15)


def test_modes_are_ordered(make_setting: Callable[..., Setting]) -> None:
    none, selective, full = (
        make_setting(checkpointing=mode) for mode in (Checkpointing.none, Checkpointing.selective, Checkpointing.full)
    )
    assert kept_bytes_per_token(none) > kept_bytes_per_token(selective) > kept_bytes_per_token(full)
    assert layer_peak(full, 0, recomputes=True).bytes > layer_peak(none, 0, recomputes=False).bytes
