"""Bytes that a layer's experts save, where one parameter holds all of them (transformers 5) and grouped products run.

PEFT 0.21 adapts such a parameter by adding the adapter's product to it (`ParamWrapper`), so a layer then keeps a merged
copy of all its experts, and the backward pass makes a gradient as large as one of their matrices. k experts a token,
e expert width, h hidden, c bytes of the compute dtype.
"""

from __future__ import annotations

from typing import Final

from orchestrator.estimate.layers import Input, input_of
from orchestrator.estimate.setting import Setting
from orchestrator.workload.parameters import Role

_FP32 = 4
# Their routers' weights stay fp32, and so does what they are multiplied with.
_FP32_ROUTERS: Final = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe"})
# Their gate is clamped, multiplied by its own sigmoid, and then by up plus one.
_CLAMPED: Final = frozenset({"gpt_oss"})
_INDEX_BYTES = 3 * 8 + 2  # of each choice: sorted position, its inverse, the token; and its weight
_RESULTS = 3  # routed results alive at once: their gradient in order, and of both factors of the weighting
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
    if model.architecture in _CLAMPED:  # the clamped gate, its sigmoid, up plus one; and the results in order
        elements += model.hidden + 3 * model.expert_width
    if are_adapted(setting):
        elements += model.hidden + model.expert_width
    return float(chosen * (compute * elements + _INDEX_BYTES) + _FP32 * model.experts)


def gated_bytes_per_token(setting: Setting) -> int:
    """The shared expert's result, where a gate of its own multiplies it."""
    model = setting.model
    is_gated = any(linear.leaf == "shared_expert_gate" for linear in model.linears)
    return setting.compute_bytes * model.hidden if is_gated else 0


def expert_layers(setting: Setting) -> int:
    """Layers that hold experts; the first ones of some models do not."""
    groups = setting.model.groups
    return sum(len(group.layers) for group in groups if group.elements(Role.experts)) or setting.model.layers


def merged_bytes(setting: Setting) -> int:
    """Experts of a layer that has some, with their adapters added."""
    params = setting.model.expert_params // expert_layers(setting)
    return params * setting.load_bytes if are_adapted(setting) else 0


def results_bytes(setting: Setting) -> float:
    """The experts' results while their weighting runs backwards; in fp32 where routers return fp32 weights."""
    model = setting.model
    size = _FP32 if model.architecture in _FP32_ROUTERS else setting.compute_bytes
    return float(_RESULTS * size * model.experts_per_token * model.hidden * setting.peak_tokens)


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
