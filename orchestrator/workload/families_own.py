"""Families whose code comes with the model (trust_remote_code): nothing installed can confirm the names.

The counts are confirmed by published totals (`presets/qwen.json`, `presets/others.json`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from orchestrator.workload.families_classic import GPT2_NAMES, all_keys, outer, transformer
from orchestrator.workload.families_dense import final_norm, gated, norms, stacked, two_norms
from orchestrator.workload.layout import Family, Layout, Reader, Sizes
from orchestrator.workload.parameters import embedding, linear, norm

_OWN_CODE: Final = "Module names are those of the model's own code (trust_remote_code), which was not run."


def _qwen(sizes: Sizes, reader: Reader) -> Layout:
    bias = not reader.flag("no_bias", otherwise=True)
    width = sizes.intermediate
    layer = (
        *norm("ln_1", sizes.hidden),
        *linear("attn.c_attn", 3 * sizes.queries, sizes.hidden, bias=True),
        *linear("attn.c_proj", sizes.hidden, sizes.queries, bias=bias),
        *norm("ln_2", sizes.hidden),
        *linear("mlp.w1", width, sizes.hidden, bias=bias),
        *linear("mlp.w2", width, sizes.hidden, bias=bias),
        *linear("mlp.c_proj", sizes.hidden, width, bias=bias),
    )
    return transformer(sizes, reader, layer, final=norm("transformer.ln_f", sizes.hidden))


def _internlm2(sizes: Sizes, reader: Reader) -> Layout:
    bias = reader.flag("bias")
    layer = (
        *linear("attention.wqkv", sizes.queries + 2 * sizes.keys, sizes.hidden, bias=bias),
        *linear("attention.wo", sizes.hidden, sizes.queries, bias=bias),
        *linear("feed_forward.w1", sizes.intermediate, sizes.hidden),
        *linear("feed_forward.w3", sizes.intermediate, sizes.hidden),
        *linear("feed_forward.w2", sizes.hidden, sizes.intermediate),
        *norms(sizes.hidden, "attention_norm", "ffn_norm"),
    )
    return Layout(
        before=embedding("model.tok_embeddings", sizes.vocab, sizes.hidden),
        layers=(layer,) * sizes.layers,
        after=(*final_norm(sizes), *outer(sizes, reader, name="output")),
        head="output",
    )


def _baichuan(sizes: Sizes, reader: Reader) -> Layout:
    layer = (
        *linear("self_attn.W_pack", 3 * sizes.hidden, sizes.hidden),
        *linear("self_attn.o_proj", sizes.hidden, sizes.hidden),
        *gated(sizes.hidden, sizes.intermediate),
        *two_norms(sizes),
    )
    return stacked(sizes, reader, layer, final=final_norm(sizes))


_QWEN_NAMES: Final = MappingProxyType(
    {
        **GPT2_NAMES,
        "intermediate_size": ("ffn_hidden_size",),
        "head_dim": ("kv_channels",),
        "max_position_embeddings": ("seq_length", "n_positions"),
    }
)
OWN: Final = MappingProxyType(
    {
        "qwen": Family(layout=_qwen, names=_QWEN_NAMES, halves=2, kv_heads=all_keys, note=_OWN_CODE),
        "internlm2": Family(layout=_internlm2, note=_OWN_CODE),
        "baichuan": Family(layout=_baichuan, kv_heads=all_keys, note=_OWN_CODE),
    }
)
