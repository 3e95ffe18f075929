"""Families in the manner of Llama: separate or fused projections, a gated MLP, RMS norms.

Module names, biases and norms are those of transformers 5.24 (`models/*/modeling_*.py`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from orchestrator.workload.layout import Family, Layout, Reader, Sizes
from orchestrator.workload.parameters import Parameter, embedding, head, linear, norm

Parameters = tuple[Parameter, ...]


def is_tied(reader: Reader) -> bool:
    """Whether the head shares the embedding's storage."""
    return reader.flag("tie_word_embeddings")


def attention(sizes: Sizes, *, qkv_bias: bool = False, out_bias: bool = False, out: str = "o_proj") -> Parameters:
    """Separate projections of queries, keys and values."""
    return (
        *linear("self_attn.q_proj", sizes.queries, sizes.hidden, bias=qkv_bias),
        *linear("self_attn.k_proj", sizes.keys, sizes.hidden, bias=qkv_bias),
        *linear("self_attn.v_proj", sizes.keys, sizes.hidden, bias=qkv_bias),
        *linear(f"self_attn.{out}", sizes.hidden, sizes.queries, bias=out_bias),
    )


def head_norms(sizes: Sizes) -> Parameters:
    """Norms of queries and keys, each over one head."""
    return (*norm("self_attn.q_norm", sizes.head_dim), *norm("self_attn.k_norm", sizes.head_dim))


def wide_norms(sizes: Sizes) -> Parameters:
    """Norms of queries and keys, each over all heads."""
    return (*norm("self_attn.q_norm", sizes.queries), *norm("self_attn.k_norm", sizes.keys))


def gated(hidden: int, width: int, *, bias: bool = False, name: str = "mlp") -> Parameters:
    """Gate, up and down projections."""
    return (
        *linear(f"{name}.gate_proj", width, hidden, bias=bias),
        *linear(f"{name}.up_proj", width, hidden, bias=bias),
        *linear(f"{name}.down_proj", hidden, width, bias=bias),
    )


def norms(hidden: int, *names: str, bias: bool = False) -> Parameters:
    """Norms over the residual stream."""
    return tuple(parameter for name in names for parameter in norm(name, hidden, bias=bias))


def two_norms(sizes: Sizes, *, bias: bool = False) -> Parameters:
    """The two norms of a Llama layer."""
    return norms(sizes.hidden, "input_layernorm", "post_attention_layernorm", bias=bias)


def four_norms(sizes: Sizes) -> Parameters:
    """The four norms of a Gemma 2 layer."""
    return (*two_norms(sizes), *norms(sizes.hidden, "pre_feedforward_layernorm", "post_feedforward_layernorm"))


def stacked(sizes: Sizes, reader: Reader, *layers: Parameters, final: Parameters) -> Layout:
    """Embedding, layers, final norm and head, named as in Llama. One layer stands for all."""
    every = layers * sizes.layers if len(layers) == 1 else layers
    outer = () if is_tied(reader) else head("lm_head", sizes.vocab, sizes.hidden)
    return Layout(
        before=embedding("model.embed_tokens", sizes.vocab, sizes.hidden), layers=every, after=(*final, *outer)
    )


def final_norm(sizes: Sizes, *, bias: bool = False) -> Parameters:
    """The norm before the head."""
    return norm("model.norm", sizes.hidden, bias=bias)


def _llama(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias")
    mlp = gated(sizes.hidden, sizes.intermediate, bias=reader.flag("mlp_bias"))
    layer = (*attention(sizes, qkv_bias=bias, out_bias=bias), *mlp, *two_norms(sizes))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _plain(sizes: Sizes, reader: Reader) -> Layout:
    layer = (*attention(sizes), *gated(sizes.hidden, sizes.intermediate), *two_norms(sizes))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _qwen2(sizes: Sizes, reader: Reader) -> Layout:
    layer = (*attention(sizes, qkv_bias=True), *gated(sizes.hidden, sizes.intermediate), *two_norms(sizes))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _qwen3(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias")
    projections = attention(sizes, qkv_bias=bias, out_bias=bias)
    layer = (*projections, *head_norms(sizes), *gated(sizes.hidden, sizes.intermediate), *two_norms(sizes))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _gemma(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias")
    mlp = gated(sizes.hidden, sizes.intermediate)
    layer = (*attention(sizes, qkv_bias=bias, out_bias=bias), *mlp, *two_norms(sizes))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _gemma2(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias")
    mlp = gated(sizes.hidden, sizes.intermediate)
    layer = (*attention(sizes, qkv_bias=bias, out_bias=bias), *mlp, *four_norms(sizes))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def gemma3_text(sizes: Sizes, reader: Reader) -> Layout:
    """The language part of Gemma 3."""
    bias = reader.flag("attention_bias")
    projections = (*attention(sizes, qkv_bias=bias, out_bias=bias), *head_norms(sizes))
    layer = (*projections, *gated(sizes.hidden, sizes.intermediate), *four_norms(sizes))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _phi3(sizes: Sizes, reader: Reader) -> Layout:
    layer = (
        *linear("self_attn.o_proj", sizes.hidden, sizes.queries),
        *linear("self_attn.qkv_proj", sizes.queries + 2 * sizes.keys, sizes.hidden),
        *linear("mlp.gate_up_proj", 2 * sizes.intermediate, sizes.hidden),
        *linear("mlp.down_proj", sizes.hidden, sizes.intermediate),
        *two_norms(sizes),
    )
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _glm(sizes: Sizes, reader: Reader) -> Layout:
    layer = (
        *attention(sizes, qkv_bias=reader.flag("attention_bias", otherwise=True)),
        *linear("mlp.gate_up_proj", 2 * sizes.intermediate, sizes.hidden),
        *linear("mlp.down_proj", sizes.hidden, sizes.intermediate),
        *two_norms(sizes),
    )
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _glm4(sizes: Sizes, reader: Reader) -> Layout:
    plain = _glm(sizes, reader)
    more = norms(sizes.hidden, "post_self_attn_layernorm", "post_mlp_layernorm")
    return stacked(sizes, reader, (*plain.layers[0], *more), final=final_norm(sizes))


def _cohere(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias")
    qk_norms: Parameters = ()
    if reader.flag("use_qk_norm"):
        qk_norms = (
            *norm("self_attn.q_norm", sizes.heads, sizes.head_dim),
            *norm("self_attn.k_norm", sizes.kv_heads, sizes.head_dim),
        )
    projections = (*attention(sizes, qkv_bias=bias, out_bias=bias), *qk_norms)
    layer = (*projections, *gated(sizes.hidden, sizes.intermediate), *norms(sizes.hidden, "input_layernorm"))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _olmo(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias")
    layer = (*attention(sizes, qkv_bias=bias, out_bias=bias), *gated(sizes.hidden, sizes.intermediate))
    return stacked(sizes, reader, layer, final=())


def _olmo2(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias")
    projections = (*attention(sizes, qkv_bias=bias, out_bias=bias), *wide_norms(sizes))
    after = norms(sizes.hidden, "post_attention_layernorm", "post_feedforward_layernorm")
    layer = (*projections, *gated(sizes.hidden, sizes.intermediate), *after)
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _exaone4(sizes: Sizes, reader: Reader) -> Layout:
    after = norms(sizes.hidden, "post_attention_layernorm", "post_feedforward_layernorm")
    layer = (*attention(sizes), *head_norms(sizes), *gated(sizes.hidden, sizes.intermediate), *after)
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _seed_oss(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias", otherwise=True)
    projections = attention(sizes, qkv_bias=bias, out_bias=reader.flag("attention_out_bias"))
    mlp = gated(sizes.hidden, sizes.intermediate, bias=reader.flag("mlp_bias"))
    return stacked(sizes, reader, (*projections, *mlp, *two_norms(sizes)), final=final_norm(sizes))


def _ernie(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("use_bias")
    mlp = gated(sizes.hidden, sizes.intermediate, bias=bias)
    layer = (*attention(sizes, qkv_bias=bias, out_bias=bias), *mlp, *two_norms(sizes))
    return stacked(sizes, reader, layer, final=final_norm(sizes))


def _eight_keys(reader: Reader, _heads: int) -> int:
    return reader.count("num_key_value_heads", 8)


def _four_keys(reader: Reader, _heads: int) -> int:
    return reader.count("num_key_value_heads", 4)


_WINDOW: Final = MappingProxyType({"sliding_window": 4096})
_WIDE_HEADS: Final = MappingProxyType({"head_dim": 256})
_GEMMA2: Final = MappingProxyType(
    {**_WIDE_HEADS, **_WINDOW, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
)
_GEMMA3_NESTED: Final = MappingProxyType(
    {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
    }
)
DENSE: Final = MappingProxyType(
    {
        "llama": Family(layout=_llama),
        "mistral": Family(layout=_plain, kv_heads=_eight_keys, defaults=_WINDOW),
        "ministral": Family(layout=_plain, kv_heads=_eight_keys, defaults=_WINDOW),
        "ministral3": Family(layout=_plain, kv_heads=_eight_keys),
        "qwen2": Family(layout=_qwen2, defaults=_WINDOW),
        "qwen3": Family(layout=_qwen3, defaults=MappingProxyType({**_WINDOW, "head_dim": 128})),
        "gemma": Family(layout=_gemma, tied=True, defaults=_WIDE_HEADS),
        "gemma2": Family(layout=_gemma2, tied=True, kv_heads=_four_keys, defaults=_GEMMA2),
        "gemma3_text": Family(
            layout=gemma3_text,
            tied=True,
            kv_heads=_four_keys,
            defaults=MappingProxyType({**_WIDE_HEADS, **_WINDOW}),
            nested=_GEMMA3_NESTED,
        ),
        "phi3": Family(layout=_phi3),
        "glm": Family(layout=_glm, defaults=MappingProxyType({"head_dim": 128})),
        "glm4": Family(layout=_glm4, defaults=MappingProxyType({"head_dim": 128})),
        "cohere": Family(layout=_cohere, tied=True, layer_norm=True),
        "cohere2": Family(layout=_cohere, tied=True, layer_norm=True, defaults=_WINDOW),
        "olmo": Family(layout=_olmo, norms_per_layer=2, layer_norm=True),
        "olmo2": Family(layout=_olmo2),
        "olmo3": Family(layout=_olmo2, defaults=_WINDOW),
        "smollm3": Family(layout=_llama, tied=True, kv_heads=_four_keys),
        "granite": Family(layout=_llama),
        "exaone4": Family(layout=_exaone4, defaults=_WINDOW),
        "seed_oss": Family(layout=_seed_oss, kv_heads=_eight_keys, defaults=MappingProxyType({"head_dim": 128})),
        "ernie4_5": Family(layout=_ernie, tied=True, defaults=MappingProxyType({"head_dim": 128})),
    }
)
