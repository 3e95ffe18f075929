"""Which layers have a window, against the masks that transformers' own layers are called with."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
import transformers

from orchestrator.workload.families import shape_from_config
from orchestrator.workload.model import ModelShape
from orchestrator.workload.windows import window_of

from .architectures import SMALL

WINDOW = 8
SIX: dict[str, Any] = {**SMALL, "num_hidden_layers": 6, "sliding_window": WINDOW, "pad_token_id": 0}
HEAD: dict[str, Any] = {"head_dim": 16}
MOE: dict[str, Any] = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
USED: dict[str, Any] = {"use_sliding_window": True}
TYPES: dict[str, Any] = {"layer_types": ["sliding_attention", *["full_attention"] * 4, "sliding_attention"]}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", {}),
    "mistral-none": ("mistral", {"sliding_window": None}),
    "mistral-types": ("mistral", TYPES),
    "ministral": ("ministral", HEAD),
    "ministral-types": ("ministral", {**HEAD, **TYPES}),
    "ministral3": ("ministral3", HEAD),
    "mixtral": ("mixtral", MOE),
    "phi3": ("phi3", {}),
    "starcoder2": ("starcoder2", {}),
    "qwen2-unused": ("qwen2", {}),
    "qwen2-late": ("qwen2", {**USED, "max_window_layers": 4}),
    "qwen2-types": ("qwen2", {**USED, **TYPES}),
    "qwen2-beyond": ("qwen2", USED),
    "qwen2_moe": ("qwen2_moe", {**USED, **MOE, "shared_expert_intermediate_size": 32, "max_window_layers": 3}),
    "qwen3": ("qwen3", {**USED, **HEAD, "max_window_layers": 1}),
    "qwen3_moe": ("qwen3_moe", {**USED, **HEAD, **MOE}),
    "qwen3_moe-unused": ("qwen3_moe", {**HEAD, **MOE}),
    "gemma3": ("gemma3_text", HEAD),
    "gemma3-pattern": ("gemma3_text", {**HEAD, "sliding_window_pattern": 3}),
    "cohere2": ("cohere2", {}),
    "olmo3": ("olmo3", {}),
    "exaone4": ("exaone4", {}),
    "exaone4-none": ("exaone4", {**TYPES, "sliding_window_pattern": "LLLG"}),
    "smollm3": ("smollm3", USED),
    "smollm3-unused": ("smollm3", {}),
    "llama4": ("llama4_text", {**HEAD, **MOE, "attention_chunk_size": WINDOW, "intermediate_size_mlp": 64}),
    "granite": ("granite", {}),
}


def _masked_layers(config: transformers.PretrainedConfig, tokens: int) -> int:
    """Layers of the real model whose attention gets a mask for rows without padding."""
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    original, masks = F.scaled_dot_product_attention, []

    def noted(*args: Any, **kwargs: Any) -> torch.Tensor:
        masks.append(kwargs.get("attn_mask") is not None)
        return original(*args, **kwargs)

    with mock.patch.object(F, "scaled_dot_product_attention", noted), torch.no_grad():
        model(input_ids=torch.ones((1, tokens), dtype=torch.int64), use_cache=False)
    assert len(masks) == config.num_hidden_layers
    return sum(masks)


@pytest.mark.parametrize("name", CASES)
def test_layers_with_a_mask_are_those_with_a_window(name: str) -> None:
    kind, more = CASES[name]
    written = {**SIX, **more}
    if kind == "llama4_text":
        written.pop("sliding_window")
    config = transformers.AutoConfig.for_model(kind, **written)
    shape = shape_from_config(name, {"model_type": kind, **written})
    assert _masked_layers(config, WINDOW) == shape.windowed_layers
    assert _masked_layers(config, WINDOW - 1) == 0
    assert shape.sliding_window == (WINDOW if shape.windowed_layers else 0)
    full = shape_from_config(name, config.to_dict())
    assert (full.sliding_window, full.windowed_layers) == (shape.sliding_window, shape.windowed_layers)


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_plain_kernels_too(kind: str) -> None:
    """These two have no masked kernel to ask, so their configuration is."""
    written = {**SIX, **HEAD, "num_local_experts": 4}
    config = transformers.AutoConfig.for_model(kind, **written)
    shape = shape_from_config("m", {"model_type": kind, **written})
    assert shape.windowed_layers == config.layer_types.count("sliding_attention") == 3


def test_odd_values_mean_no_window() -> None:
    for odd in (None, "4096", True, -1, 0, 2.5, []):
        assert window_of("mistral", 4, {"sliding_window": odd}.get) == (0, 0)
    odd_types = {"sliding_window": 8, "layer_types": [None, 3, "sliding_attention", {}]}
    assert window_of("gemma3_text", 4, odd_types.get) == (8, 1)
    assert window_of("exaone4", 8, {"sliding_window": 8, "sliding_window_pattern": "LLLG"}.get) == (8, 6)


def test_a_window_needs_layers() -> None:
    shape = shape_from_config("m", {"model_type": "llama", **SMALL})
    for window, layers in ((8, 0), (0, 1), (8, 99)):
        with pytest.raises(ValueError, match="window"):
            ModelShape(
                **{
                    name: getattr(shape, name)
                    for name in shape.__slots__
                    if name not in {"sliding_window", "windowed_layers"}
                },
                sliding_window=window,
                windowed_layers=layers,
            )
