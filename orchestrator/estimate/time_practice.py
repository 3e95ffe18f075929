"""How a training stack does what the arithmetic leaves open: kernels, launches, and what it gathers when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from orchestrator.estimate import calibration_time as ct

# Layers gathered ahead of the one at work.
_AHEAD: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    """What a stack does in a step.

    Attributes:
        elementwise: traffic of norms, rotations and activations, times that of plain transformers kernels.
        logit_bytes: traffic of the loss, per logit.
        head_passes: products with the head: forward and input gradient (2), a tile computed twice (3).
        dequantise_share: of the memory bandwidth that unpacking reaches at best.
        dequantise_bytes: traffic per weight and pass; 0 counts packed bytes read and compute dtype written.
        dequantise_per_cycle: weights that a multiprocessor unpacks per cycle at best; 0 for no such limit.
        layer_host_seconds, adapter_host_seconds: of the host per layer, and per adapter, and pass.
        unit_host_seconds: of the host per layer and gather.
        gather_passes: how often a micro-step gathers a layer; 0 for the engine's own count.
        window_forward, window_backward: layers gathered ahead; 0 gathers one when it is needed.
        expert_seconds: per expert, layer and pass, that nothing overlaps (a loop over experts that waits for each).
        copies_gathers: gathered weights are copied out of the collective's buffer.
        packs_experts: stacked experts are quantised like linear modules.
    """

    elementwise: float = 1.0
    logit_bytes: float = ct.TILED_LOGIT_BYTES.value
    head_passes: int = 3
    dequantise_share: float = ct.MEMORY_SHARE.value
    dequantise_bytes: float = 0.0
    dequantise_per_cycle: float = ct.DEQUANTISE_PER_CYCLE.value
    layer_host_seconds: float = ct.LAYER_HOST_SECONDS.value
    adapter_host_seconds: float = ct.ADAPTER_HOST_SECONDS.value
    unit_host_seconds: float = 0.0
    gather_passes: int = 0
    window_forward: int = _AHEAD
    window_backward: int = _AHEAD
    expert_seconds: float = 0.0
    copies_gathers: bool = True
    packs_experts: bool = False


_PLAIN: Final = Practice(logit_bytes=ct.LOGIT_BYTES.value, head_passes=2)
# The recomputation runs each unit's forward pass within the backward pass, where nothing is gathered ahead.
_FSDP: Final = replace(
    _PLAIN,
    gather_passes=2,
    unit_host_seconds=ct.FSDP_UNIT_HOST_SECONDS.value,
    window_backward=0,
    copies_gathers=False,
)
# transformers 4 holds experts as linear modules and loops over them.
_LOOPED: Final = replace(_FSDP, expert_seconds=ct.EXPERT_LOOP_SECONDS.value, packs_experts=True)
_TRITON: Final = replace(_LOOPED, dequantise_share=ct.TRITON_SHARE.value, dequantise_per_cycle=0.0)
# Published stacks that `bench/time_accuracy.py` compares with, after our own two.
PRACTICES: Final = MappingProxyType(
    {
        "trl": replace(_PLAIN, logit_bytes=ct.TILED_LOGIT_BYTES.value, head_passes=3),
        "hf_plain": _PLAIN,
        "hf_fsdp": _LOOPED,
        "hf_upcast": replace(_LOOPED, elementwise=2.0),
        "hf_gptq_triton": _TRITON,
        "hf_gptq_torch": replace(
            _PLAIN,
            dequantise_bytes=ct.GPTQ_TORCH_BYTES.value,
            dequantise_per_cycle=0.0,
            adapter_host_seconds=ct.GPTQ_ADAPTER_HOST_SECONDS.value,
        ),
        "compiled": replace(
            _FSDP,
            elementwise=ct.COMPILED_SHARE.value,
            logit_bytes=ct.TILED_LOGIT_BYTES.value,
            window_backward=_AHEAD,
            copies_gathers=True,
            # Its 4-bit tensors are unpacked by kernels that torch.compile writes.
            dequantise_share=ct.TRITON_SHARE.value,
            dequantise_per_cycle=0.0,
        ),
        "litgpt": replace(_FSDP, layer_host_seconds=ct.LITGPT_LAYER_HOST_SECONDS.value, adapter_host_seconds=0.0),
    }
)


def practice_of(stack: str) -> Practice:
    """The practice of a stack that estimates are asked for by name; plain transformers for one without a row."""
    return PRACTICES.get(stack, _PLAIN)
