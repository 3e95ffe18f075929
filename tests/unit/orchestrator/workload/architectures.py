"""Small configurations of every known family, and what transformers makes of them on the meta device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers.initialization import no_tie_weights
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from orchestrator.workload.parameters import TUPLE_ROUTERS

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
# Falcon, MPT, GPT-2 and others derive the width of the MLP, or name it themselves.
NARROW = {key: value for key, value in SMALL.items() if key not in {"intermediate_size", "num_key_value_heads"}}
_LATENT = {
    "n_routed_experts": 4,
    "moe_intermediate_size": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL),
    "llama-biased": ("LlamaConfig", {**SMALL, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("LlamaConfig", {**SMALL, "tie_word_embeddings": True, "head_dim": 32}),
    "mistral": ("MistralConfig", SMALL),
    "ministral": ("MinistralConfig", {**SMALL, "head_dim": 32}),
    "ministral3": ("Ministral3Config", {**SMALL, "head_dim": 32}),
    "qwen2": ("Qwen2Config", SMALL),
    "qwen2-tied": ("Qwen2Config", {**SMALL, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {**SMALL, "head_dim": 32}),
    "gemma": ("GemmaConfig", {**SMALL, "head_dim": 32}),
    "gemma2": ("Gemma2Config", {**SMALL, "head_dim": 32}),
    "gemma3": ("Gemma3TextConfig", {**SMALL, "head_dim": 32}),
    "phi": ("PhiConfig", SMALL),
    "phi-normed": ("PhiConfig", {**SMALL, "qk_layernorm": True}),
    "phi3": ("Phi3Config", {**SMALL, "pad_token_id": 0}),
    "falcon-7b": ("FalconConfig", {**NARROW, "multi_query": True}),
    "falcon-40b": ("FalconConfig", {**NARROW, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-rw": (
        "FalconConfig",
        {**NARROW, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
    ),
    "falcon-180b": (
        "FalconConfig",
        {**NARROW, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon3": ("LlamaConfig", {**SMALL, "head_dim": 256}),
    "gpt_neox": ("GPTNeoXConfig", SMALL),
    "gpt_neox-unbiased": ("GPTNeoXConfig", {**SMALL, "attention_bias": False}),
    "opt": ("OPTConfig", {**NARROW, "ffn_dim": 176}),
    "opt-350m": ("OPTConfig", {**NARROW, "ffn_dim": 176, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    "galactica": (
        "OPTConfig",
        {**NARROW, "ffn_dim": 176, "enable_bias": False, "layer_norm_elementwise_affine": False},
    ),
    "gpt2": ("GPT2Config", NARROW),
    "gptj": ("GPTJConfig", {**NARROW, "n_inner": 100, "rotary_dim": 8}),
    "gpt_neo": ("GPTNeoConfig", {**NARROW, "num_layers": 3, "attention_types": [[["global"], 3]]}),
    "gpt_bigcode": ("GPTBigCodeConfig", NARROW),
    "gpt_bigcode-many": ("GPTBigCodeConfig", {**NARROW, "multi_query": False}),
    "bloom": ("BloomConfig", NARROW),
    "mpt": ("MptConfig", {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 320}),
    "stablelm": ("StableLmConfig", SMALL),
    "stablelm-2-12b": (
        "StableLmConfig",
        {**SMALL, "use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
    ),
    "starcoder2": ("Starcoder2Config", SMALL),
    "cohere": ("CohereConfig", SMALL),
    "cohere-normed": ("CohereConfig", {**SMALL, "use_qk_norm": True}),
    "cohere2": ("Cohere2Config", SMALL),
    "olmo": ("OlmoConfig", SMALL),
    "olmo-tied": ("OlmoConfig", {**SMALL, "tie_word_embeddings": True}),
    "olmo2": ("Olmo2Config", SMALL),
    "olmo3": ("Olmo3Config", SMALL),
    "smollm3": ("SmolLM3Config", {**SMALL, "pad_token_id": 0}),
    "granite": ("GraniteConfig", SMALL),
    "glm": ("GlmConfig", {**SMALL, "head_dim": 32, "pad_token_id": 0}),
    "glm4": ("Glm4Config", {**SMALL, "head_dim": 32, "pad_token_id": 0}),
    "exaone4": ("Exaone4Config", SMALL),
    "seed_oss": ("SeedOssConfig", {**SMALL, "head_dim": 32}),
    "ernie4_5": ("Ernie4_5Config", {**SMALL, "head_dim": 32, "use_bias": True}),
    "mixtral": ("MixtralConfig", {**SMALL, "num_local_experts": 4}),
    "phimoe": ("PhimoeConfig", {**SMALL, "num_local_experts": 4, "lm_head_bias": True, "attention_bias": True}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**SMALL, "num_experts": 6, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40},
    ),
    "qwen2_moe-mixed": (
        "Qwen2MoeConfig",
        {**SMALL, "num_experts": 6, "moe_intermediate_size": 24, "decoder_sparse_step": 2},
    ),
    "qwen3_moe": ("Qwen3MoeConfig", {**SMALL, "num_experts": 6, "moe_intermediate_size": 24, "head_dim": 32}),
    "qwen3_moe-mixed": (
        "Qwen3MoeConfig",
        {**SMALL, "num_experts": 6, "moe_intermediate_size": 24, "head_dim": 32, "mlp_only_layers": [0]},
    ),
    "olmoe": ("OlmoeConfig", {**SMALL, "num_experts": 4, "eos_token_id": 1}),
    "granitemoe": ("GraniteMoeConfig", {**SMALL, "num_local_experts": 4}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {**SMALL, "num_local_experts": 0, "shared_intermediate_size": 96, "layer_types": ["full_attention"] * 3},
    ),
    "deepseek_v2": ("DeepseekV2Config", {**SMALL, **_LATENT, "q_lora_rank": 24}),
    "deepseek_v2-lite": ("DeepseekV2Config", {**SMALL, **_LATENT, "q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3Config", {**SMALL, **_LATENT, "q_lora_rank": 24, "n_group": 2, "topk_group": 1}),
    "glm4_moe": (
        "Glm4MoeConfig",
        {**SMALL, "n_routed_experts": 4, "moe_intermediate_size": 24, "head_dim": 32, "use_qk_norm": True},
    ),
    "gpt_oss": ("GptOssConfig", {**SMALL, "num_local_experts": 4, "head_dim": 32}),
    "llama4": (
        "Llama4TextConfig",
        {**SMALL, "num_local_experts": 4, "head_dim": 32, "intermediate_size_mlp": 96, "pad_token_id": 0},
    ),
    "llama4-mixed": (
        "Llama4TextConfig",
        {
            **SMALL,
            "num_local_experts": 4,
            "head_dim": 32,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
            "pad_token_id": 0,
        },
    ),
    "gemma3-whole": (
        "Gemma3Config",
        {
            "text_config": {**SMALL, "head_dim": 32},
            "vision_config": {
                "hidden_size": 48,
                "intermediate_size": 80,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 56,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
        },
    ),
    "gemma3-headless": (
        "Gemma3Config",
        {
            "text_config": {**SMALL, "head_dim": 32},
            "vision_config": {
                "hidden_size": 48,
                "intermediate_size": 80,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 56,
                "patch_size": 14,
                "vision_use_head": False,
            },
            "mm_tokens_per_image": 4,
        },
    ),
}
# Their code comes with the model, so there is nothing installed to compare with.
OWN_CODE = {"qwen", "internlm2", "baichuan"}


class Fact(NamedTuple):
    """What transformers says of one parameter."""

    shape: tuple[int, ...]
    is_linear: bool
    is_packed: bool


def config_of(name: str) -> transformers.PretrainedConfig:
    kind, arguments = CASES[name]
    config: transformers.PretrainedConfig = getattr(transformers, kind)(**arguments)
    return config


def meta_model(name: str) -> transformers.PreTrainedModel:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config_of(name))


def facts(name: str) -> dict[str, Fact]:
    """Every parameter, with what transformers' own rules of bitsandbytes do to its module."""
    # As `from_pretrained` does it: modules are replaced before weights are tied.
    with no_tie_weights():
        model = meta_model(name)
    patterns = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    model.tie_weights()
    modules = dict(model.named_modules())
    found = {}
    for path, parameter in model.named_parameters():
        module_name, _, leaf = path.rpartition(".")
        module = modules[module_name]
        is_weight = leaf == "weight" and module is not model.get_output_embeddings()
        replaced = type(module) is nn.Linear or isinstance(module, Conv1D)
        is_adaptable = isinstance(module, nn.Linear | Conv1D) and type(module).__name__ not in TUPLE_ROUTERS
        found[path] = Fact(
            shape=tuple(parameter.shape),
            is_linear=is_weight and is_adaptable,
            is_packed=is_weight and replaced and should_convert_module(module_name, patterns),
        )
    return found
