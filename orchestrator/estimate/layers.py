"""Bytes that one decoder layer saves for its backward pass, for the stacks of published runs.

`activations` counts the layers of today's transformers with PEFT on every linear module, for our own stacks. Here the
code may be litgpt's or torchtune's, adapters may sit on a few modules, or all parameters may train. Per token;
h hidden, q query width, k key width, i intermediate, c bytes of the compute dtype.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from orchestrator.config import Checkpointing, Quant
from orchestrator.estimate.setting import Setting, Trained
from orchestrator.estimate.stacks import Code, Stack

_FP32: Final = 4
_OUTPUT: Final = re.compile(r"(?:^|\.)(?:o_proj|out_proj|dense|wo)$|attn\.c_proj$")
_ATTENTION: Final = re.compile(
    r"attn|attention|(?:^|\.)(?:q|k|v|qkv|q_a|q_b|kv_a|kv_b)_proj|query_key_value|Wqkv|c_attn"
)


class Input(Enum):
    """Tensors of a layer that linear modules read."""

    attention = "attention"
    context = "context"  # what the attention kernel returns
    mlp = "mlp"
    product = "product"  # what the MLP's last module reads


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes per token: what a layer saves, and the gradients alive at once while it runs backwards."""

    saved: float
    gradients: float


def input_of(name: str, in_features: int, setting: Setting) -> Input:
    """Which tensor a linear module reads, by its name and width."""
    model = setting.model
    if in_features in (model.intermediate, model.expert_width) and in_features != model.hidden:
        return Input.product
    return _by_name(name)


@lru_cache(1024)
def _by_name(name: str) -> Input:
    if _OUTPUT.search(name):
        return Input.context
    return Input.attention if _ATTENTION.search(name) else Input.mlp


def layer_bytes(setting: Setting, stack: Stack) -> LayerBytes:
    """Bytes per token of one running layer."""
    model, size = setting.model, _size(setting)
    # Experts run one after the other, and so do their backward passes: one expert's gradients are alive at once.
    width = _width(setting) / max(1, model.experts)
    return LayerBytes(
        saved=_norms(setting) + _attention(setting, stack) + _mlp(setting) + _inputs(setting, stack),
        gradients=size * ((3 if model.gated_mlp else 2) * width + model.hidden) + 2 * _FP32 * model.hidden,
    )


def kept_per_token(setting: Setting, stack: Stack) -> float:
    """Bytes per token that all layers together keep on the device from the forward to the backward pass."""
    layers = setting.model.layers
    if setting.checkpointing is Checkpointing.none:
        return layers * layer_bytes(setting, stack).saved * stack.layer_factor
    size = _size(setting)
    # Two layers' inputs are on the device while others are copied out or in.
    on_device = min(layers, 2) if setting.offload_activations or stack.offloads_checkpoints else layers
    return on_device * size * setting.model.hidden


def transient_per_token(setting: Setting, stack: Stack) -> float:
    """Bytes per token while one layer runs backwards, recomputed activations included."""
    layer = layer_bytes(setting, stack)
    recomputed = 0.0 if setting.checkpointing is Checkpointing.none else layer.saved
    return stack.layer_factor * (recomputed + layer.gradients)


def _size(setting: Setting) -> int:
    """Bytes of a hidden state: fp32 ones pass through quantised modules as they came."""
    return _FP32 if setting.upcasts else setting.compute_bytes


def _width(setting: Setting) -> int:
    """Width of the MLP that each token sees."""
    model = setting.model
    return model.experts_per_token * _expert_width(setting) if model.experts else model.intermediate


def _expert_width(setting: Setting) -> int:
    return setting.model.expert_width or setting.model.intermediate


def _norms(setting: Setting) -> float:
    model, size = setting.model, _size(setting)
    # RMSNorm widens its input and saves the copy; LayerNorm saves the input as it is.
    each = model.hidden * (size if model.layer_norm else _FP32)
    if setting.trained is Trained.everything and not model.layer_norm:
        each += model.hidden * size
    total = float(model.norms_per_layer * each)
    return total + (_FP32 * (model.query_width + model.key_width) if model.qk_norm else 0)


def _attention(setting: Setting, stack: Stack) -> float:
    """Queries, keys, values, output and the log-sum-exp of a flash kernel."""
    model, size = setting.model, setting.compute_bytes
    query, key = model.query_width, model.key_width
    if stack.code is Code.litgpt:
        if model.kv_heads == model.heads:
            # Values are a view of the fused projection, so all of it stays.
            return size * (query + key + (query + 2 * key) + query) + _FP32 * model.heads
        key = query  # keys and values are repeated before the kernel
    scores = 0.0
    if setting.eager_attention:
        scores = model.heads * setting.batch.longest_tokens * (_FP32 + 2 * size)
    return size * (2 * query + 2 * key) + _FP32 * model.heads + scores


def _mlp(setting: Setting) -> float:
    """Gate, its activation and up; without a gate what the activation reads. Experts also keep what they return."""
    model, size = setting.model, _size(setting)
    total = float(size * (3 if model.gated_mlp else 1) * _width(setting))
    if model.experts:
        total += size * 2 * model.experts_per_token * model.hidden + _FP32 * 2 * model.experts
    return total


def _inputs(setting: Setting, stack: Stack) -> float:
    """Inputs of trained modules, each tensor once; dropout keeps a copy and a mask for every module."""
    model, size = setting.model, setting.compute_bytes  # autocast hands adapters 16-bit inputs
    widths = {
        Input.attention: model.hidden,
        Input.context: 0,  # the attention kernel has saved it
        Input.mlp: model.hidden,
        Input.product: _width(setting),
    }
    everything = setting.trained is Trained.everything
    pieces = setting.adapter.all_pieces
    names: Iterable[tuple[str, int]] = (
        ((linear.name, linear.in_features) for linear in model.linears)
        if everything
        else ((piece.name, piece.in_features) for piece in pieces)
    )
    read = {input_of(name, width, setting) for name, width in names}
    if everything or setting.adapter.dropout <= 0:
        total = float(size * sum(widths[tensor] for tensor in read))
    else:  # the adapter reads a copy, and the frozen module next to it saves nothing
        fused = stack.code is Code.litgpt
        kinds = {(input_of(x.name, x.in_features, setting), "" if fused else x.name): x for x in pieces}
        total = float(sum((size + 1) * piece.in_features for piece in kinds.values()))
    if not everything:
        total += size * setting.adapter.rank * len({piece.name for piece in pieces})
    if setting.upcasts:  # each quantised module keeps a 16-bit copy of its fp32 input
        experts = max(1, model.experts_per_token)
        mlp = experts * (2 if model.gated_mlp else 1) * model.hidden + _width(setting)
        total += setting.compute_bytes * (3 * model.hidden + model.query_width + mlp)
    if setting.quant is not Quant.none and stack.saved_input_bytes:
        total += stack.saved_input_bytes * (2 * model.hidden + model.query_width + _width(setting))
    return total
