"""Families with experts. Transformers 5 holds all experts of a layer in two parameters, which nothing packs.

Module names are those of transformers 5.24 (`models/*/modeling_*.py`).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from orchestrator.workload.families_dense import (
    Parameters,
    attention,
    final_norm,
    gated,
    head_norms,
    stacked,
    two_norms,
    wide_norms,
)
from orchestrator.workload.layout import Family, Layout, Reader, Sizes
from orchestrator.workload.parameters import Role, linear, norm, single


def _experts(name: str, num: int, width: int, hidden: int) -> Parameters:
    return (
        *single(f"{name}.gate_up_proj", num, 2 * width, hidden, role=Role.experts),
        *single(f"{name}.down_proj", num, hidden, width, role=Role.experts),
    )


def _router(name: str, num: int, hidden: int) -> Parameters:
    return single(f"{name}.weight", num, hidden, role=Role.router)


def _built(sizes: Sizes, reader: Reader, layers: list[Parameters], experts: int, final: Parameters = ()) -> Layout:
    layout = stacked(sizes, reader, *layers, final=final or final_norm(sizes))
    return replace(layout, experts=experts, experts_per_token=reader.count("num_experts_per_tok") if experts else 0)


def _mixtral(sizes: Sizes, reader: Reader) -> Layout:
    num = reader.count("num_local_experts", 8)
    moe = (*_router("mlp.gate", num, sizes.hidden), *_experts("mlp.experts", num, sizes.intermediate, sizes.hidden))
    return _built(sizes, reader, [(*attention(sizes), *moe, *two_norms(sizes))] * sizes.layers, num)


def _phimoe(sizes: Sizes, reader: Reader) -> Layout:
    num, bias = reader.count("num_local_experts", 16), reader.flag("attention_bias")
    router = _router("mlp.router", num, sizes.hidden)
    moe = (*router, *_experts("mlp.experts", num, sizes.intermediate, sizes.hidden))
    layer = (*attention(sizes, qkv_bias=bias, out_bias=bias), *moe, *two_norms(sizes, bias=True))
    layout = _built(sizes, reader, [layer] * sizes.layers, num, final_norm(sizes, bias=True))
    bias_of_head = single("lm_head.bias", sizes.vocab, role=Role.bias) if reader.flag("lm_head_bias") else ()
    return replace(layout, after=(*layout.after, *bias_of_head))


def _sparse(sizes: Sizes, reader: Reader) -> list[bool]:
    """Which layers have experts, as the Qwen families tell it."""
    step, dense = reader.count("decoder_sparse_step", 1), reader.counts("mlp_only_layers") or ()
    return [index not in dense and (index + 1) % step == 0 for index in range(sizes.layers)]


def _qwen2_moe(sizes: Sizes, reader: Reader) -> Layout:
    num, width = reader.count("num_experts", 60), reader.count("moe_intermediate_size", 1408)
    shared = reader.count("shared_expert_intermediate_size", 5632)
    projections = attention(sizes, qkv_bias=reader.flag("qkv_bias", otherwise=True))
    moe = (
        *_router("mlp.gate", num, sizes.hidden),
        *_experts("mlp.experts", num, width, sizes.hidden),
        *gated(sizes.hidden, shared, name="mlp.shared_expert"),
        *linear("mlp.shared_expert_gate", 1, sizes.hidden),
    )
    dense = gated(sizes.hidden, sizes.intermediate)
    layers = [(*projections, *(moe if has else dense), *two_norms(sizes)) for has in _sparse(sizes, reader)]
    return _built(sizes, reader, layers, num)


def _qwen3_moe(sizes: Sizes, reader: Reader) -> Layout:
    num, width = reader.count("num_experts", 128), reader.count("moe_intermediate_size", 768)
    bias = reader.flag("attention_bias")
    projections = (*attention(sizes, qkv_bias=bias, out_bias=bias), *head_norms(sizes))
    moe = (*_experts("mlp.experts", num, width, sizes.hidden), *_router("mlp.gate", num, sizes.hidden))
    dense = gated(sizes.hidden, sizes.intermediate)
    layers = [(*projections, *(moe if has else dense), *two_norms(sizes)) for has in _sparse(sizes, reader)]
    return _built(sizes, reader, layers, num)


def _olmoe(sizes: Sizes, reader: Reader) -> Layout:
    num, bias = reader.count("num_experts", 64), reader.flag("attention_bias")
    projections = (*attention(sizes, qkv_bias=bias, out_bias=bias), *wide_norms(sizes))
    moe = (*_router("mlp.gate", num, sizes.hidden), *_experts("mlp.experts", num, sizes.intermediate, sizes.hidden))
    return _built(sizes, reader, [(*projections, *moe, *two_norms(sizes))] * sizes.layers, num)


def _granite_experts(sizes: Sizes, reader: Reader) -> tuple[int, Parameters]:
    num = reader.maybe("num_local_experts")
    if not num:
        return 0, ()
    router = _router("block_sparse_moe.router", num, sizes.hidden)
    return num, (*router, *_experts("block_sparse_moe.experts", num, sizes.intermediate, sizes.hidden))


def _granitemoe(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias")
    num, moe = _granite_experts(sizes, reader)
    projections = attention(sizes, qkv_bias=bias, out_bias=bias)
    return _built(sizes, reader, [(*projections, *two_norms(sizes), *moe)] * sizes.layers, num)


def _granitemoehybrid(sizes: Sizes, reader: Reader) -> Layout:
    """The models of this family whose layers are all attention (Granite 4.0 micro)."""
    bias, width = reader.flag("attention_bias"), reader.count("shared_intermediate_size", 1024)
    num, moe = _granite_experts(sizes, reader)
    shared = (
        *linear("shared_mlp.input_linear", 2 * width, sizes.hidden),
        *linear("shared_mlp.output_linear", sizes.hidden, width),
    )
    projections = attention(sizes, qkv_bias=bias, out_bias=bias)
    return _built(sizes, reader, [(*two_norms(sizes), *moe, *shared, *projections)] * sizes.layers, num)


def is_all_attention(config: object) -> bool:
    """Whether a configuration of `granitemoehybrid` names attention for every layer."""
    return isinstance(config, list | tuple) and bool(config) and set(config) <= {"attention", "full_attention"}


def _latent(sizes: Sizes, reader: Reader) -> Parameters:
    """Multi-head latent attention of DeepSeek: queries and keys through a narrow layer."""
    bias, keys = reader.flag("attention_bias"), reader.count("kv_lora_rank", 512)
    rank = reader.maybe("q_lora_rank") if "q_lora_rank" in reader.config else 1536
    rope, nope = reader.count("qk_rope_head_dim", 64), reader.count("qk_nope_head_dim", 128)
    value, wide = reader.count("v_head_dim", 128), sizes.heads * (rope + nope)
    queries = linear("self_attn.q_proj", wide, sizes.hidden)
    if rank:
        queries = (
            *linear("self_attn.q_a_proj", rank, sizes.hidden, bias=bias),
            *norm("self_attn.q_a_layernorm", rank),
            *linear("self_attn.q_b_proj", wide, rank),
        )
    return (
        *queries,
        *linear("self_attn.kv_a_proj_with_mqa", keys + rope, sizes.hidden, bias=bias),
        *norm("self_attn.kv_a_layernorm", keys),
        *linear("self_attn.kv_b_proj", sizes.heads * (nope + value), keys),
        *linear("self_attn.o_proj", sizes.hidden, sizes.heads * value, bias=bias),
    )


def _latent_head(reader: Reader) -> int:
    """Width of a query or key head: the part without a position and the part with one."""
    return reader.count("qk_nope_head_dim", 128) + reader.count("qk_rope_head_dim", 64)


def _deepseek(sizes: Sizes, reader: Reader) -> Layout:
    num, width = reader.count("n_routed_experts"), reader.count("moe_intermediate_size")
    first, shared = reader.maybe("first_k_dense_replace"), reader.count("n_shared_experts") * width
    moe = (
        *_experts("mlp.experts", num, width, sizes.hidden),
        *_router("mlp.gate", num, sizes.hidden),
        *gated(sizes.hidden, shared, name="mlp.shared_experts"),
    )
    dense, projections = gated(sizes.hidden, sizes.intermediate), _latent(sizes, reader)
    layers = [(*projections, *(moe if index >= first else dense), *two_norms(sizes)) for index in range(sizes.layers)]
    return _built(sizes, reader, layers, num)


def _glm4_moe(sizes: Sizes, reader: Reader) -> Layout:
    num, width = reader.count("n_routed_experts", 128), reader.count("moe_intermediate_size", 1408)
    first, shared = reader.count("first_k_dense_replace", 1), reader.count("n_shared_experts", 1) * width
    qk_norms = head_norms(sizes) if reader.flag("use_qk_norm") else ()
    projections = (*attention(sizes, qkv_bias=reader.flag("attention_bias")), *qk_norms)
    moe = (
        *_experts("mlp.experts", num, width, sizes.hidden),
        *_router("mlp.gate", num, sizes.hidden),
        *gated(sizes.hidden, shared, name="mlp.shared_experts"),
    )
    dense = gated(sizes.hidden, sizes.intermediate)
    layers = [(*projections, *(moe if index >= first else dense), *two_norms(sizes)) for index in range(sizes.layers)]
    return _built(sizes, reader, layers, num)


def _gpt_oss(sizes: Sizes, reader: Reader) -> Layout:
    num, bias, width = (
        reader.count("num_local_experts", 128),
        reader.flag("attention_bias", otherwise=True),
        sizes.intermediate,
    )
    layer = (
        *single("self_attn.sinks", sizes.heads),
        *attention(sizes, qkv_bias=bias, out_bias=bias),
        *_router("mlp.router", num, sizes.hidden),
        *single("mlp.router.bias", num, role=Role.router),
        *single("mlp.experts.gate_up_proj", num, sizes.hidden, 2 * width, role=Role.experts),
        *single("mlp.experts.gate_up_proj_bias", num, 2 * width, role=Role.experts),
        *single("mlp.experts.down_proj", num, width, sizes.hidden, role=Role.experts),
        *single("mlp.experts.down_proj_bias", num, sizes.hidden, role=Role.experts),
        *two_norms(sizes),
    )
    return _built(sizes, reader, [layer] * sizes.layers, num)


def _llama4(sizes: Sizes, reader: Reader) -> Layout:
    num, bias = reader.count("num_local_experts", 16), reader.flag("attention_bias")
    step, told = reader.count("interleave_moe_layer_step", 1), reader.counts("moe_layers")
    sparse = set(range(step - 1, sizes.layers, step) if told is None else told)
    width, hidden = sizes.intermediate, sizes.hidden
    moe = (
        *single("feed_forward.experts.gate_up_proj", num, hidden, 2 * width, role=Role.experts),
        *single("feed_forward.experts.down_proj", num, width, hidden, role=Role.experts),
        *_router("feed_forward.router", num, hidden),
        *gated(hidden, width, name="feed_forward.shared_expert"),
    )
    dense = gated(hidden, reader.count("intermediate_size_mlp", 16_384), name="feed_forward")
    projections = attention(sizes, qkv_bias=bias, out_bias=bias)
    layers = [(*projections, *(moe if index in sparse else dense), *two_norms(sizes)) for index in range(sizes.layers)]
    return _built(sizes, reader, layers, num)


_QWEN3_NAMES: Final = MappingProxyType({"num_experts": ("num_local_experts",)})
_TWO: Final = MappingProxyType({"num_experts_per_tok": 2})
MOE: Final = MappingProxyType(
    {
        "mixtral": Family(
            layout=_mixtral, kv_heads=lambda reader, _: reader.count("num_key_value_heads", 8), defaults=_TWO
        ),
        "phimoe": Family(
            layout=_phimoe,
            kv_heads=lambda reader, _: reader.count("num_key_value_heads", 8),
            defaults=_TWO,
            layer_norm=True,
        ),
        "qwen2_moe": Family(
            layout=_qwen2_moe, defaults=MappingProxyType({"num_experts_per_tok": 4, "sliding_window": 4096})
        ),
        "qwen3_moe": Family(
            layout=_qwen3_moe,
            names=_QWEN3_NAMES,
            kv_heads=lambda reader, _: reader.count("num_key_value_heads", 4),
            defaults=MappingProxyType({"num_experts_per_tok": 8, "sliding_window": 4096}),
        ),
        "olmoe": Family(layout=_olmoe, defaults=MappingProxyType({"num_experts_per_tok": 8})),
        "granitemoe": Family(layout=_granitemoe, defaults=_TWO),
        "granitemoehybrid": Family(layout=_granitemoehybrid, defaults=_TWO),
        "deepseek_v2": Family(
            layout=_deepseek,
            head_dim=_latent_head,
            defaults=MappingProxyType({"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407}),
        ),
        "deepseek_v3": Family(
            layout=_deepseek,
            head_dim=_latent_head,
            defaults=MappingProxyType(
                {
                    "n_routed_experts": 256,
                    "n_shared_experts": 1,
                    "moe_intermediate_size": 2048,
                    "num_experts_per_tok": 8,
                    "first_k_dense_replace": 3,
                }
            ),
        ),
        "glm4_moe": Family(
            layout=_glm4_moe,
            kv_heads=lambda reader, _: reader.count("num_key_value_heads", 8),
            defaults=MappingProxyType({"num_experts_per_tok": 8}),
        ),
        "gpt_oss": Family(
            layout=_gpt_oss,
            kv_heads=lambda reader, _: reader.count("num_key_value_heads", 8),
            defaults=MappingProxyType({"num_experts_per_tok": 4, "head_dim": 64, "sliding_window": 128}),
        ),
        "llama4_text": Family(
            layout=_llama4,
            kv_heads=lambda reader, _: reader.count("num_key_value_heads", 8),
            defaults=MappingProxyType({"num_experts_per_tok": 1, "head_dim": 128, "attention_chunk_size": 8192}),
            nested=MappingProxyType(
                {
                    "vocab_size": 202_048,
                    "hidden_size": 5120,
                    "intermediate_size": 8192,
                    "num_hidden_layers": 48,
                    "num_attention_heads": 40,
                    "max_position_embeddings": 131_072,
                }
            ),
        ),
    }
)
