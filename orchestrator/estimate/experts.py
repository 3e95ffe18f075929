"""Bytes that a layer's experts save, where one parameter holds all of them (transformers 5) and grouped products run.

PEFT 0.21 adapts such a parameter by adding the adapter's product to it (`ParamWrapper`), so a layer then keeps a merged
copy of all its experts, and the backward pass makes a gradient as large as one of their matrices. k experts a token,
e expert width, h hidden, c bytes of the compute dtype.
"""

from __future__ import annotations

from orchestrator.estimate.layers import Input, input_of
from orchestrator.estimate.setting import Setting

_FP32 = 4
_INDEX_BYTES = 3 * 8 + 2  # of each choice: sorted position, its inverse, the token; and its weight
_DOWN_SHARE = 3  # gate, up and down are equally large


def has_experts(setting: Setting) -> bool:
    """Whether layers hold experts in stacked parameters."""
    return setting.model.expert_params > 0 and setting.model.experts > 0


def are_adapted(setting: Setting) -> bool:
    """Whether the stacked parameters carry adapters."""
    return any(".experts." in piece.name for piece in setting.adapter.pieces)


def has_dense_mlp(setting: Setting) -> bool:
    """Whether every token also goes through an MLP of linear modules (all of it, or a shared expert)."""
    return any(input_of(x.name, x.in_features, setting) is Input.product for x in setting.model.linears)


def routed_bytes_per_token(setting: Setting) -> float:
    """Gate and up, the activation, the result that is weighted; with adapters also what each matrix reads."""
    model, compute, chosen = setting.model, setting.compute_bytes, setting.model.experts_per_token
    elements = model.hidden + 3 * model.expert_width
    if are_adapted(setting):
        elements += model.hidden + model.expert_width
    return float(chosen * (compute * elements + _INDEX_BYTES) + _FP32 * model.experts)


def gated_bytes_per_token(setting: Setting) -> int:
    """The shared expert's result, where a gate of its own multiplies it."""
    model = setting.model
    is_gated = any(linear.leaf == "shared_expert_gate" for linear in model.linears)
    return setting.compute_bytes * model.hidden if is_gated else 0


def merged_bytes(setting: Setting) -> int:
    """One layer's experts with their adapters added."""
    model = setting.model
    return model.expert_params // model.layers * setting.load_bytes if are_adapted(setting) else 0


def backward_bytes(setting: Setting) -> float:
    """The gradient of the last matrices, whose adapters need it, and of what they read."""
    if not are_adapted(setting):
        return 0.0
    routed = setting.model.experts_per_token * setting.model.expert_width * setting.compute_bytes
    return merged_bytes(setting) / _DOWN_SHARE + setting.peak_tokens * routed


def recompute_bytes(setting: Setting) -> float:
    """Each token's copies on their way into and out of the experts, beyond what is saved."""
    copies = 2 if are_adapted(setting) else 3
    model = setting.model
    return float(copies * model.experts_per_token * model.hidden * setting.compute_bytes * setting.peak_tokens)
