"""Families with LayerNorms, biases and fused or transposed projections: from GPT-2 to Phi-2.

Module names, biases and norms are those of transformers 5.24 (`models/*/modeling_*.py`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from orchestrator.workload.families_dense import (
    Parameters,
    is_tied,
    norms,
    two_norms,
)
from orchestrator.workload.layout import Family, Layout, Reader, Sizes
from orchestrator.workload.parameters import Role, conv1d, embedding, head, linear, norm

GPT2_NAMES: Final = MappingProxyType(
    {
        "hidden_size": ("n_embd",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "intermediate_size": ("n_inner",),
        "max_position_embeddings": ("n_positions",),
    }
)


def outer(sizes: Sizes, reader: Reader, *, bias: bool = False, name: str = "lm_head") -> Parameters:
    """The head, unless it is tied."""
    return () if is_tied(reader) else head(name, sizes.vocab, sizes.hidden, bias=bias)


def _gpt_neox(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("attention_bias", otherwise=True)
    layer = (
        *two_norms(sizes, bias=True),
        *linear("attention.query_key_value", 3 * sizes.hidden, sizes.hidden, bias=bias),
        *linear("attention.dense", sizes.hidden, sizes.hidden, bias=bias),
        *_wide_mlp(sizes, bias=True),
    )
    return Layout(
        before=embedding("gpt_neox.embed_in", sizes.vocab, sizes.hidden),
        layers=(layer,) * sizes.layers,
        after=(*norm("gpt_neox.final_layer_norm", sizes.hidden, bias=True), *outer(sizes, reader)),
        prefix="gpt_neox.layers",
    )


def _wide_mlp(sizes: Sizes, *, bias: bool, role: Role = Role.linear) -> Parameters:
    return (
        *linear("mlp.dense_h_to_4h", sizes.intermediate, sizes.hidden, bias=bias, role=role),
        *linear("mlp.dense_4h_to_h", sizes.hidden, sizes.intermediate, bias=bias, role=role),
    )


def _falcon(sizes: Sizes, reader: Reader) -> Layout:
    bias, own, is_new = reader.flag("bias"), Role.own_linear, reader.flag("new_decoder_architecture")
    two = is_new and reader.count("num_ln_in_parallel_attn", 2) == _TWO_NORMS
    names = ["ln_attn", "ln_mlp"] if two else ["input_layernorm"]
    if not is_new and not reader.flag("parallel_attn", otherwise=True):
        names.append(_AFTER_ATTENTION)
    fused = sizes.queries + 2 * sizes.keys
    layer = (
        *linear("self_attention.query_key_value", fused, sizes.hidden, bias=bias, role=own),
        *linear("self_attention.dense", sizes.hidden, sizes.hidden, bias=bias, role=own),
        *_wide_mlp(sizes, bias=bias, role=own),
        *norms(sizes.hidden, *names, bias=True),
    )
    return transformer(sizes, reader, layer, table="word_embeddings")


def transformer(
    sizes: Sizes,
    reader: Reader,
    layer: Parameters,
    *,
    table: str = "wte",
    more: Parameters = (),
    head_bias: bool = False,
    prefix: str = "transformer.h",
    final: Parameters = (),
) -> Layout:
    """Names of the GPT-2 kind: transformer.wte, transformer.h, transformer.ln_f."""
    return Layout(
        before=(*embedding(f"transformer.{table}", sizes.vocab, sizes.hidden), *more),
        layers=(layer,) * sizes.layers,
        after=(
            *(final or norm("transformer.ln_f", sizes.hidden, bias=True)),
            *outer(sizes, reader, bias=head_bias),
        ),
        prefix=prefix,
    )


def _gpt2(sizes: Sizes, reader: Reader) -> Layout:
    layer = (
        *norm("ln_1", sizes.hidden, bias=True),
        *conv1d("attn.c_attn", 3 * sizes.hidden, sizes.hidden),
        *conv1d("attn.c_proj", sizes.hidden, sizes.hidden),
        *norm("ln_2", sizes.hidden, bias=True),
        *conv1d("mlp.c_fc", sizes.intermediate, sizes.hidden),
        *conv1d("mlp.c_proj", sizes.hidden, sizes.intermediate),
    )
    positions = embedding("transformer.wpe", sizes.max_positions or _GPT2_POSITIONS, sizes.hidden)
    return transformer(sizes, reader, layer, more=positions)


def _gpt_bigcode(sizes: Sizes, reader: Reader) -> Layout:
    layer = (
        *norm("ln_1", sizes.hidden, bias=True),
        *linear("attn.c_attn", sizes.hidden + 2 * sizes.keys, sizes.hidden, bias=True),
        *linear("attn.c_proj", sizes.hidden, sizes.hidden, bias=True),
        *norm("ln_2", sizes.hidden, bias=True),
        *linear("mlp.c_fc", sizes.intermediate, sizes.hidden, bias=True),
        *linear("mlp.c_proj", sizes.hidden, sizes.intermediate, bias=True),
    )
    positions = embedding("transformer.wpe", sizes.max_positions or _GPT2_POSITIONS, sizes.hidden)
    return transformer(sizes, reader, layer, more=positions)


def _gptj(sizes: Sizes, reader: Reader) -> Layout:
    projections = ("k_proj", "v_proj", "q_proj", "out_proj")
    layer = (
        *norm("ln_1", sizes.hidden, bias=True),
        *(x for name in projections for x in linear(f"attn.{name}", sizes.hidden, sizes.hidden)),
        *linear("mlp.fc_in", sizes.intermediate, sizes.hidden, bias=True),
        *linear("mlp.fc_out", sizes.hidden, sizes.intermediate, bias=True),
    )
    return transformer(sizes, reader, layer, head_bias=True)


def _gpt_neo(sizes: Sizes, reader: Reader) -> Layout:
    projections = ("k_proj", "v_proj", "q_proj")
    layer = (
        *norm("ln_1", sizes.hidden, bias=True),
        *(x for name in projections for x in linear(f"attn.attention.{name}", sizes.hidden, sizes.hidden)),
        *linear("attn.attention.out_proj", sizes.hidden, sizes.hidden, bias=True),
        *norm("ln_2", sizes.hidden, bias=True),
        *linear("mlp.c_fc", sizes.intermediate, sizes.hidden, bias=True),
        *linear("mlp.c_proj", sizes.hidden, sizes.intermediate, bias=True),
    )
    positions = embedding("transformer.wpe", sizes.max_positions or 2048, sizes.hidden)
    return transformer(sizes, reader, layer, more=positions)


def _bloom(sizes: Sizes, reader: Reader) -> Layout:
    layer = (
        *norms(sizes.hidden, "input_layernorm", bias=True),
        *linear("self_attention.query_key_value", 3 * sizes.hidden, sizes.hidden, bias=True),
        *linear("self_attention.dense", sizes.hidden, sizes.hidden, bias=True),
        *norms(sizes.hidden, _AFTER_ATTENTION, bias=True),
        *_wide_mlp(sizes, bias=True),
    )
    first = norm("transformer.word_embeddings_layernorm", sizes.hidden, bias=True)
    return transformer(sizes, reader, layer, table="word_embeddings", more=first)


def _mpt(sizes: Sizes, reader: Reader) -> Layout:
    layer = (
        *norm("norm_1", sizes.hidden),
        *linear("attn.Wqkv", 3 * sizes.hidden, sizes.hidden),
        *linear("attn.out_proj", sizes.hidden, sizes.hidden),
        *norm("norm_2", sizes.hidden),
        *linear("ffn.up_proj", 4 * sizes.hidden, sizes.hidden),
        *linear("ffn.down_proj", sizes.hidden, 4 * sizes.hidden),
    )
    final = norm("transformer.norm_f", sizes.hidden)
    return transformer(sizes, reader, layer, prefix="transformer.blocks", final=final)


def _opt(sizes: Sizes, reader: Reader) -> Layout:
    bias, width = reader.flag("enable_bias", otherwise=True), reader.count("word_embed_proj_dim", sizes.hidden)
    has_weights = reader.flag("layer_norm_elementwise_affine", otherwise=True)
    is_before = reader.flag("do_layer_norm_before", otherwise=True) and not reader.flag("_remove_final_layer_norm")

    def maybe_norm(name: str) -> Parameters:
        return norm(name, sizes.hidden, bias=True) if has_weights else ()

    projections = ("k_proj", "v_proj", "q_proj", "out_proj")
    layer = (
        *(x for name in projections for x in linear(f"self_attn.{name}", sizes.hidden, sizes.hidden, bias=bias)),
        *maybe_norm("self_attn_layer_norm"),
        *linear("fc1", sizes.intermediate, sizes.hidden, bias=bias),
        *linear("fc2", sizes.hidden, sizes.intermediate, bias=bias),
        *maybe_norm("final_layer_norm"),
    )
    sides: Parameters = ()
    if width != sizes.hidden:
        sides = (
            *linear("model.decoder.project_out", width, sizes.hidden),
            *linear("model.decoder.project_in", sizes.hidden, width),
        )
    # OPT's table of positions has two rows more than there are positions.
    return Layout(
        before=(
            *embedding("model.decoder.embed_tokens", sizes.vocab, width),
            *embedding("model.decoder.embed_positions", (sizes.max_positions or 2048) + 2, sizes.hidden),
            *sides,
            *(maybe_norm("model.decoder.final_layer_norm") if is_before else ()),
        ),
        layers=(layer,) * sizes.layers,
        after=() if is_tied(reader) else head("lm_head", sizes.vocab, width),
        prefix="model.decoder.layers",
    )


def _falcon_keys(reader: Reader, heads: int) -> int:
    if reader.flag("new_decoder_architecture") or not reader.flag("multi_query", otherwise=True):
        return reader.count("num_kv_heads", heads)
    return 1


def _bigcode_keys(reader: Reader, heads: int) -> int:
    return 1 if reader.flag("multi_query", otherwise=True) else heads


def all_keys(_reader: Reader, heads: int) -> int:
    """As many key heads as heads."""
    return heads


_AFTER_ATTENTION: Final = "post_attention_layernorm"
_TWO_NORMS: Final = 2
_GPT2_POSITIONS: Final = 1024
_FALCON_NAMES: Final = MappingProxyType(
    {
        "hidden_size": ("n_embed",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "intermediate_size": ("ffn_hidden_size",),
        "num_kv_heads": ("n_head_kv",),
    }
)
_FALCON_NOTE: Final = (
    "Falcon's linear modules are a class of their own, which transformers 5.24 does not replace: bitsandbytes "
    "leaves them in 16 bits. Code that also replaces subclasses of nn.Linear packs them."
)
_MPT_NAMES: Final = MappingProxyType(
    {
        "hidden_size": ("d_model",),
        "num_hidden_layers": ("n_layers",),
        "num_attention_heads": ("n_heads",),
        "max_position_embeddings": ("max_seq_len",),
    }
)
_NEO_NAMES: Final = MappingProxyType({"num_hidden_layers": ("num_layers",), "num_attention_heads": ("num_heads",)})
_BLOOM_NAMES: Final = MappingProxyType(
    {
        "hidden_size": ("n_embed",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "max_position_embeddings": ("seq_length",),
    }
)
_OPT_NAMES: Final = MappingProxyType({"intermediate_size": ("ffn_dim",)})

CLASSIC: Final = MappingProxyType(
    {
        "gpt_neox": Family(layout=_gpt_neox, kv_heads=all_keys, layer_norm=True, gated_mlp=False),
        "falcon": Family(
            layout=_falcon,
            names=_FALCON_NAMES,
            widths=4,
            kv_heads=_falcon_keys,
            tied=True,
            layer_norm=True,
            gated_mlp=False,
            note=_FALCON_NOTE,
        ),
        "gpt2": Family(
            layout=_gpt2, names=GPT2_NAMES, widths=4, kv_heads=all_keys, tied=True, layer_norm=True, gated_mlp=False
        ),
        "gpt_bigcode": Family(
            layout=_gpt_bigcode,
            names=GPT2_NAMES,
            widths=4,
            kv_heads=_bigcode_keys,
            tied=True,
            layer_norm=True,
            gated_mlp=False,
        ),
        "gptj": Family(layout=_gptj, names=GPT2_NAMES, widths=4, kv_heads=all_keys, layer_norm=True, gated_mlp=False),
        "gpt_neo": Family(
            layout=_gpt_neo, names=_NEO_NAMES, widths=4, kv_heads=all_keys, tied=True, layer_norm=True, gated_mlp=False
        ),
        "bloom": Family(
            layout=_bloom, names=_BLOOM_NAMES, widths=4, kv_heads=all_keys, tied=True, layer_norm=True, gated_mlp=False
        ),
        "mpt": Family(
            layout=_mpt, names=_MPT_NAMES, widths=4, kv_heads=all_keys, tied=True, layer_norm=True, gated_mlp=False
        ),
        "opt": Family(layout=_opt, names=_OPT_NAMES, kv_heads=all_keys, tied=True, layer_norm=True, gated_mlp=False),
    }
)
