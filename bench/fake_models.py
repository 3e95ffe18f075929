"""Published sizes of models that have no preset, by a short name: one of each family that `bench/fake_memory.py` needs.

Written from the models' own configuration files; what is absent is transformers' default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.workload.named import find_preset


def _sizes(
    kind: str, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "pad_token_id": 0,
    }


MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "starcoder2-7b": {
        **_sizes("starcoder2", 4608, 18432, 32, 36, 4, 49152),
        "sliding_window": 4096,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "olmo-7b": _sizes("olmo", 4096, 11008, 32, 32, 32, 50304),
    "olmo-3-7b": {**_sizes("olmo3", 4096, 11008, 32, 32, 32, 100278), "sliding_window": 4096},
    "glm-4-9b": {**_sizes("glm4", 4096, 13696, 40, 32, 2, 151552), "attention_bias": True},
    "command-r7b": {**_sizes("cohere2", 4096, 14336, 32, 32, 8, 256000), "sliding_window": 4096},
    "command-r": {**_sizes("cohere", 8192, 22528, 40, 64, 64, 256000)},
    "stablelm-2-1.6b": {**_sizes("stablelm", 2048, 5632, 24, 32, 32, 100352), "use_qkv_bias": True},
    "granite-3-8b": _sizes("granite", 4096, 12800, 40, 32, 8, 49155),
    "exaone-4-32b": {**_sizes("exaone4", 5120, 27392, 64, 40, 8, 102400), "sliding_window": 4096},
    "ministral-8b": {**_sizes("ministral", 4096, 12288, 36, 32, 8, 131072), "head_dim": 128, "sliding_window": 4096},
    "ernie-4.5-0.3b": {**_sizes("ernie4_5", 1024, 3072, 18, 16, 2, 103424), "head_dim": 128},
    "seed-oss-36b": {**_sizes("seed_oss", 5120, 27648, 64, 80, 8, 155136), "head_dim": 128},
    "granite-3-1b-moe": {
        **_sizes("granitemoe", 1024, 512, 24, 16, 8, 49155),
        "num_local_experts": 32,
        "num_experts_per_tok": 8,
    },
    "phi-3.5-moe": {
        **_sizes("phimoe", 4096, 6400, 32, 32, 8, 32064),
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
    },
    "starcoder-1b": {
        "model_type": "gpt_bigcode",
        "n_embd": 2048,
        "n_head": 16,
        "n_inner": 8192,
        "n_layer": 24,
        "n_positions": 8192,
        "vocab_size": 49152,
        "multi_query": True,
    },
    "gpt-neo-1.3b": {
        "model_type": "gpt_neo",
        "hidden_size": 2048,
        "num_layers": 24,
        "num_heads": 16,
        "vocab_size": 50257,
        "max_position_embeddings": 8192,
        "attention_types": [[["global", "local"], 12]],
    },
}


def config_of(name: str) -> dict[str, Any]:
    """Content of the model's `config.json`.

    Raises:
        ValueError: neither here nor among the presets.
    """
    preset = find_preset(name)
    if preset is None and name not in MODELS:
        msg = f"no model is called {name!r}"
        raise ValueError(msg)
    return dict(MODELS[name] if preset is None else preset.config)
