"""Parameter counts against transformers' own modules on the meta device."""

from __future__ import annotations

import pytest
import torch
import transformers

from orchestrator.errors import UserError
from orchestrator.workload.families import SUPPORTED, shape_from_config

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
CASES = {
    "llama": ("LlamaConfig", {}),
    "llama-biased": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True, "head_dim": 32}),
    "mistral": ("MistralConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 32}),
    "gemma": ("GemmaConfig", {"head_dim": 32}),
    "gemma2": ("Gemma2Config", {"head_dim": 32}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 32}),
    "phi3": ("Phi3Config", {"pad_token_id": 0}),
    "gpt_neox": ("GPTNeoXConfig", {}),
}


def _meta_model(name: str) -> transformers.PreTrainedModel:
    kind, extra = CASES[name]
    config = getattr(transformers, kind)(**SMALL, **extra)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", CASES)
def test_counts_match_transformers(name: str) -> None:
    model = _meta_model(name)
    shape = shape_from_config(name, model.config.to_dict())
    parameters = dict(model.named_parameters())

    assert shape.total_params == sum(p.numel() for p in parameters.values())
    assert shape.bias_params == sum(
        p.numel() for key, p in parameters.items() if key.endswith(".bias") and "norm" not in key
    )
    assert shape.norm_params == sum(p.numel() for key, p in parameters.items() if "norm" in key)


@pytest.mark.parametrize("name", CASES)
def test_linears_are_those_that_bitsandbytes_replaces(name: str) -> None:
    model = _meta_model(name)
    shape = shape_from_config(name, model.config.to_dict())
    found = {
        key.split(".1.", 1)[1]: (module.out_features, module.in_features, module.bias is not None)
        for key, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".1." in key
    }
    assert {x.name: (x.out_features, x.in_features, x.bias) for x in shape.linears} == found


def test_missing_keys_are_named_all_at_once() -> None:
    with pytest.raises(UserError) as caught:
        shape_from_config("broken", {"model_type": "llama", "hidden_size": 64, "vocab_size": "many"})
    text = str(caught.value)
    for key in ("intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert key in text


def test_every_supported_type_is_covered() -> None:
    covered = {getattr(transformers, kind)(**SMALL, **extra).model_type for kind, extra in CASES.values()}
    assert covered == set(SUPPORTED)
