"""Bytes that a decoder layer saves for its backward pass, per token.

Counted for a Llama block in transformers 5.24 with bitsandbytes linears and PEFT adapters, and checked with
torch's saved-tensor hooks in the tests. Frozen weights save nothing: only what an adapter, a norm, the attention
kernel or the activation function needs. h hidden, q query width, k key width, i intermediate, r rank, c bytes.
"""

from __future__ import annotations

from orchestrator.config import Checkpointing, Quant
from orchestrator.estimate.setting import Setting

_FP32 = 4


def saved_bytes_per_token(setting: Setting) -> float:
    """Bytes per token that one layer saves without checkpointing.

    - norms: each input in fp32 (8 h for two), whatever the compute dtype; queries and keys if normed
    - adapter inputs: attention in, attention out (q, shared with the kernel's output), MLP in: c (2 h + q)
    - attention: query, key, value and fp32 log-sum-exp: c (q + 2 k) + 4 heads; a mask makes the kernel see
      repeated keys and values: 2 q instead of 2 k
    - MLP: gate, its activation, up and their product (the adapter input of the last linear): 4 c i
    - adapters: each A's result: c r
    """
    model, compute = setting.model, setting.compute_bytes
    repeats = setting.batch.padded and model.kv_heads != model.heads
    keys = model.query_width if repeats else model.key_width
    norms = model.norms_per_layer * _FP32 * (model.hidden + 1)
    if model.qk_norm:
        norms += _FP32 * (model.query_width + model.key_width + model.heads + model.kv_heads)
    attention = compute * (model.query_width + 2 * keys) + _FP32 * model.heads
    inputs = compute * (2 * model.hidden + model.query_width)
    mlp = 4 * compute * model.intermediate
    return norms + attention + inputs + mlp + _rank_wide(setting) + _extra(setting)


def _rank_wide(setting: Setting) -> float:
    return float(setting.compute_bytes * setting.adapter.rank * len(setting.adapter.targets))


def _extra(setting: Setting) -> float:
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
    if setting.eager_attention:
        # softmax in fp32, its cast, and dropout's input, each heads x length
        extra += model.heads * length * (_FP32 + 2 * compute)
    elif setting.batch.padded:
        extra += compute * length  # the boolean mask becomes a bias of the compute dtype in every layer
    if setting.quant is Quant.int8:
        extra += sum(linear.in_features for linear in model.linears)  # the quantised input, one byte each
    return extra


def kept_bytes_per_token(setting: Setting) -> float:
    """Bytes per token and layer that live from the forward to the backward pass."""
    hidden = float(setting.compute_bytes * setting.model.hidden)
    match setting.checkpointing:
        case Checkpointing.none:
            return saved_bytes_per_token(setting)
        case Checkpointing.selective:
            return hidden + _rank_wide(setting)
        case _:
            return hidden


def layer_transient_per_token(setting: Setting) -> float:
    """Bytes per token while one layer runs its backward pass: what is recomputed, and live gradients.

    Gradients alive at once: of the MLP's product, gate and up (3 i), and of the residual stream and
    one normed input (fp32 inside the norm): c (3 i + h) + 8 h.
    """
    model = setting.model
    gradients = setting.compute_bytes * (3 * model.intermediate + model.hidden) + 2 * _FP32 * model.hidden
    recomputed = 0.0 if setting.checkpointing is Checkpointing.none else saved_bytes_per_token(setting)
    return recomputed + gradients
