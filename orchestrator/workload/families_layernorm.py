"""Llama-like families with LayerNorm instead of RMSNorm: Phi-1.5 and 2, StableLM, StarCoder2.

Module names, biases and norms are those of transformers 5.24 (`models/*/modeling_*.py`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from orchestrator.workload.families_dense import (
    Parameters,
    attention,
    final_norm,
    gated,
    is_tied,
    norms,
    stacked,
    two_norms,
)
from orchestrator.workload.layout import Family, Layout, Reader, Sizes
from orchestrator.workload.parameters import embedding, head, linear, norm


def _phi(sizes: Sizes, reader: Reader) -> Layout:
    qk_norms: Parameters = ()
    if reader.flag("qk_layernorm"):
        qk_norms = tuple(
            parameter for x in "qk" for parameter in norm(f"self_attn.{x}_layernorm", sizes.head_dim, bias=True)
        )
    layer = (
        *attention(sizes, qkv_bias=True, out_bias=True, out="dense"),
        *qk_norms,
        *linear("mlp.fc1", sizes.intermediate, sizes.hidden, bias=True),
        *linear("mlp.fc2", sizes.hidden, sizes.intermediate, bias=True),
        *norms(sizes.hidden, "input_layernorm", bias=True),
    )
    outer = () if is_tied(reader) else head("lm_head", sizes.vocab, sizes.hidden, bias=True)
    return Layout(
        before=embedding("model.embed_tokens", sizes.vocab, sizes.hidden),
        layers=(layer,) * sizes.layers,
        after=(*norm("model.final_layernorm", sizes.hidden, bias=True), *outer),
    )


def _stablelm(sizes: Sizes, reader: Reader) -> Layout:
    names = (
        ["input_layernorm"] if reader.flag("use_parallel_residual") else ["input_layernorm", "post_attention_layernorm"]
    )
    qk_norms: Parameters = ()
    if reader.flag("qk_layernorm"):
        queries = [f"self_attn.q_layernorm.norms.{i}" for i in range(sizes.heads)]
        keys = [f"self_attn.k_layernorm.norms.{i}" for i in range(sizes.kv_heads)]
        qk_norms = norms(sizes.head_dim, *queries, *keys)
    projections = (*attention(sizes, qkv_bias=reader.flag("use_qkv_bias")), *qk_norms)
    layer = (*projections, *gated(sizes.hidden, sizes.intermediate), *norms(sizes.hidden, *names, bias=True))
    return stacked(sizes, reader, layer, final=final_norm(sizes, bias=True))


def _starcoder2(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("use_bias", otherwise=True)
    layer = (
        *attention(sizes, qkv_bias=bias, out_bias=bias),
        *linear("mlp.c_fc", sizes.intermediate, sizes.hidden, bias=bias),
        *linear("mlp.c_proj", sizes.hidden, sizes.intermediate, bias=bias),
        *two_norms(sizes, bias=True),
    )
    return stacked(sizes, reader, layer, final=final_norm(sizes, bias=True))


def _two_keys(reader: Reader, _heads: int) -> int:
    return reader.count("num_key_value_heads", 2)


LAYERNORM: Final = MappingProxyType(
    {
        "phi": Family(layout=_phi, layer_norm=True, gated_mlp=False),
        "stablelm": Family(layout=_stablelm, layer_norm=True),
        "starcoder2": Family(layout=_starcoder2, tied=True, layer_norm=True, gated_mlp=False, kv_heads=_two_keys),
    }
)
