"""Bytes that a decoder layer saves for its backward pass, per token.

Counted for transformers 5.24 with bitsandbytes linears and PEFT adapters; checked with torch's saved-tensor hooks in
the tests and against whole models on fake tensors by `bench/fake_memory.py`. Frozen weights save nothing: only what an
adapter, a norm, the attention kernel or the activation function needs. h hidden, q query width, k key width,
i intermediate, r rank, c bytes of the compute dtype, w bytes of what linear modules return (4 where norms are fp32).
"""

from __future__ import annotations

from collections import Counter

from orchestrator.config import Checkpointing
from orchestrator.estimate.blocks import Block, block_of
from orchestrator.estimate.dora import dora_saved_per_token
from orchestrator.estimate.experts import (
    are_adapted,
    expert_layers,
    gated_bytes_per_token,
    has_dense_mlp,
    has_experts,
    merged_bytes,
    routed_bytes_per_token,
)
from orchestrator.estimate.kept import kept
from orchestrator.estimate.layers import Input, input_of
from orchestrator.estimate.masks import masked_layers
from orchestrator.estimate.recomputed import recomputed_share
from orchestrator.estimate.scores import scores_of
from orchestrator.estimate.setting import Setting

_FP32 = 4
_RESIDUAL_MASKS = 2  # one byte an element: of what attention and the MLP return
_NORM_STATISTICS = 2 * _FP32  # mean and reciprocal deviation of a LayerNorm
# Bytes of a token in one layer are the same whatever the steps, the moments, and where the base lies.
_NOT_OF_A_TOKEN = (
    *("world_size", "micro", "rows", "accumulation", "checkpointing", "recomputed_layers"),
    *("quant", "double_quant", "load_dtype", "optimizer", "allocator", "zero3", "sparse", "streamed"),
)


@kept(*_NOT_OF_A_TOKEN, only_gpu=True)
def saved_bytes_per_token(setting: Setting, *, masked: bool | None = None) -> float:
    """Bytes per token that one layer saves without checkpointing.

    Args:
        setting: what runs.
        masked: whether the layer's attention gets a mask; None for the layers that save most.
    """
    block = block_of(setting)
    masked = masked_layers(setting) > 0 if masked is None else masked
    return (
        _norms(setting, block)
        + _attention(setting, block, masked=masked)
        + _inputs(setting, block)
        + mlp_bytes_per_token(setting, block)
        + _rank_wide(setting)
        + dora_saved_per_token(setting)
        + _extra(setting, masked=masked)
    )


def output_bytes(setting: Setting, block: Block) -> int:
    """Bytes of an element of what linear modules return, and of the residual stream."""
    return _FP32 if block.fp32_outputs else setting.compute_bytes


def _norms(setting: Setting, block: Block) -> float:
    """RMSNorms: each input in fp32, whatever the compute dtype; queries and keys if normed.

    torch's LayerNorm saves its input and two statistics: the residual stream, which parallel norms share.
    """
    model = setting.model
    if model.layer_norm and block.fp32_norms:
        inputs = 1 if block.parallel and block.fp32_outputs else model.norms_per_layer
        return inputs * _FP32 * model.hidden + model.norms_per_layer * _NORM_STATISTICS
    norms = model.norms_per_layer * _FP32 * (block.norm_copies * model.hidden + 1)
    if model.qk_norm:
        norms += _FP32 * (model.query_width + model.key_width + model.heads + model.kv_heads)
    return float(norms)


def _attention(setting: Setting, block: Block, *, masked: bool) -> float:
    """Query, key, value, the kernel's output and its fp32 log-sum-exp; a mask or plain kernel repeats grouped keys."""
    model, compute = setting.model, setting.compute_bytes
    repeats = masked or setting.eager_attention
    keys = model.query_width if repeats and model.kv_heads != model.heads else model.key_width
    elements = 2 * model.query_width + 2 * keys
    if block.fused_qkv:
        elements += model.query_width + model.key_width
    if block.concatenated and not masked:
        elements += model.query_width
    return float(compute * elements + _FP32 * model.heads)


def _inputs(setting: Setting, block: Block) -> float:
    """What adapters read: a norm's output once, or in fp32 a cast for each adapter.

    The kernel's output and the MLP's product count elsewhere.
    """
    readers = Counter(input_of(x.name, x.in_features, setting) for x in setting.adapter.targets)
    attention, mlp = readers[Input.attention], readers[Input.mlp] + are_adapted(setting)
    if not block.fp32_norms:
        shared = block.parallel and setting.model.norms_per_layer == 1
        copies = min(1, attention + mlp) if shared else min(1, attention) + min(1, mlp)
    else:
        copies = attention + mlp
    return float(setting.compute_bytes * setting.model.hidden * copies)


def product_bytes_per_token(setting: Setting) -> int:
    """What the adapter of the MLP's last module reads."""
    reads = any(input_of(x.name, x.in_features, setting) is Input.product for x in setting.adapter.targets)
    return setting.compute_bytes * setting.model.intermediate if reads else 0


def mlp_bytes_per_token(setting: Setting, block: Block) -> float:
    """Gate, its activation and up, or an activation's input; and what the last adapter reads."""
    width, size = setting.model.intermediate, output_bytes(setting, block)
    product = product_bytes_per_token(setting)
    if has_experts(setting):
        dense = 3 * size * width + product + gated_bytes_per_token(setting) if has_dense_mlp(setting) else 0
        return float(dense + routed_bytes_per_token(setting))
    if setting.model.gated_mlp:
        return float(3 * size * width + product)
    if block.written_out:
        powers = _FP32 if setting.machine.is_gpu and setting.compute_dtype != "fp32" else size  # autocast: fp32
        return float((3 * powers + size) * width + product)
    if block.keeps_result and not block.fp32_outputs:
        return float(size * width)
    return float(size * width + product)


def _rank_wide(setting: Setting) -> float:
    return setting.compute_bytes * setting.adapter.ranks_per_layer


def _extra(setting: Setting, *, masked: bool) -> float:
    """What some settings add: input copies, dropout, attention scores, masks, int8 products."""
    model, compute, length = setting.model, setting.compute_bytes, setting.batch.longest_tokens
    target_inputs = sum(target.in_features for target in setting.adapter.targets)
    extra = 0.0
    if not setting.machine.is_gpu and setting.compute_dtype != setting.adapter_dtype:
        # PEFT asks torch.is_autocast_enabled(), which means CUDA: on a CPU it casts every adapter's input
        # there and back, so modules that read the same tensor keep copies of their own.
        extra += compute * max(0, target_inputs - 2 * model.hidden - model.intermediate)
    if setting.adapter.dropout > 0:
        extra += (compute + 1) * target_inputs
    if model.drops_residuals:
        extra += _RESIDUAL_MASKS * model.hidden
    if setting.eager_attention:
        extra += model.heads * length * scores_of(setting).saved
    elif masked:
        extra += compute * length  # the boolean mask becomes a bias of the compute dtype in every layer
    return extra


def kept_bytes_per_token(setting: Setting) -> float:
    """Bytes per token and layer, on average, that live from the forward to the backward pass."""
    share = recomputed_share(setting)
    found = 0.0
    if share > 0:
        stream = float(output_bytes(setting, block_of(setting)) * setting.model.hidden)
        found += share * (stream + (_rank_wide(setting) if setting.checkpointing is Checkpointing.selective else 0.0))
    return found + (1 - share) * whole_bytes_per_token(setting) if share < 1 else found


@kept(*_NOT_OF_A_TOKEN, only_gpu=True)
def whole_bytes_per_token(setting: Setting) -> float:
    """The same of a layer that keeps all of its activations."""
    share = masked_layers(setting) / setting.model.layers
    masked, plain = (saved_bytes_per_token(setting, masked=has_mask) for has_mask in (True, False))
    return share * masked + (1 - share) * plain


def unsaved_bytes_per_token(setting: Setting) -> float:
    """What the first layer's MLP need not save: beside attention it reads the embeddings, which have no gradient."""
    block = block_of(setting)
    if setting.checkpointing is not Checkpointing.none or not block.parallel or has_experts(setting):
        return 0.0
    inputs = {input_of(x.name, x.in_features, setting) for x in setting.adapter.targets}
    return 0.0 if inputs & {Input.mlp, Input.product} else mlp_bytes_per_token(setting, block)


def layer_copy_bytes(setting: Setting) -> int:
    """One layer's weights that wait for the backward pass: casts of fp32 adapters, experts with adapters added."""
    return _cast_bytes(setting) + merged_bytes(setting)


def copy_bytes(setting: Setting) -> int:
    """The same of all layers."""
    return setting.model.layers * _cast_bytes(setting) + expert_layers(setting) * merged_bytes(setting)


def _cast_bytes(setting: Setting) -> int:
    is_cast = setting.adapter_dtype == "fp32" and setting.compute_dtype != "fp32"
    return setting.adapter.adapters_per_layer * setting.compute_bytes if is_cast else 0
