"""What DoRA adds to a pass: every adapted weight is unpacked, summed with its adapter's product and normed anew.

Counted for PEFT 0.21 (`tuners/lora/dora.py`): the product is made by sending an identity matrix through A and B, so a
module with wide inputs pays for the square of its width.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.estimate.setting import Setting
from orchestrator.workload.adapter import AdapterPiece

_FP32 = 4
_RESULTS = 2  # of the frozen module and of the adapter, both kept for the magnitudes' gradient
_WIDE = 3  # fp32 tensors as wide as the output that are alive at once
_MATRICES = 3  # the adapter's product, the unpacked weight and their sum


def dora_saved_per_token(setting: Setting) -> float:
    """Bytes per token that the adapted modules of a layer save beyond plain LoRA, the mean over layers."""
    if not setting.adapter.dora:
        return 0.0
    widths = sum(piece.count * piece.out_features for piece in setting.adapter.all_pieces)
    return _RESULTS * setting.compute_bytes * widths / setting.adapter.layers


def dora_transient_bytes(setting: Setting) -> int:
    """Bytes while the module runs that needs most: matrices of the weight's size, or these and wide fp32 results."""
    if not setting.adapter.dora:
        return 0
    return max(_transient(setting, piece) for piece in setting.adapter.all_pieces)


def _transient(setting: Setting, piece: AdapterPiece) -> int:
    weights, compute = piece.in_features * piece.out_features, setting.compute_bytes
    casts = compute if compute != setting.adapter_bytes else 0
    identity = piece.in_features**2 * (setting.adapter_bytes + casts)
    widened = _FP32 * weights if compute != _FP32 else 0  # autocast takes norms in fp32
    normed = identity + _MATRICES * compute * weights + widened
    return max(normed, identity + (_MATRICES - 1) * compute * weights + wide_bytes(setting, piece.out_features))


def wide_bytes(setting: Setting, out_features: int) -> int:
    """Bytes of the fp32 results of one module that are alive at once."""
    return _WIDE * _FP32 * setting.peak_tokens * out_features


def dora_backward_bytes(setting: Setting) -> int:
    """Bytes of the fp32 gradients of the widest module's results."""
    if not setting.adapter.dora:
        return 0
    return max(wide_bytes(setting, piece.out_features) for piece in setting.adapter.all_pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoraWork:
    """Of one forward pass of a micro-step; nothing of it is done in a backward pass, unless layers are recomputed.

    Attributes:
        flops: of the adapters' products with identity matrices.
        moved: bytes through memory.
        weights: that are unpacked once more.
    """

    flops: float
    moved: float
    weights: int


def dora_work(setting: Setting) -> DoraWork | None:
    """Return what a forward pass does besides; None without DoRA."""
    if not setting.adapter.dora:
        return None
    flops = moved = 0.0
    weights = 0
    size = setting.compute_bytes
    for piece in setting.adapter.all_pieces:
        own = piece.in_features * piece.out_features
        flops += 2.0 * piece.count * piece.rank * (piece.in_features**2 + own)
        # Each matrix is written and read; the identity is written, cast and read.
        moved += piece.count * (2 * (_MATRICES + 1) * size * own + 2 * (size + _FP32) * piece.in_features**2)
        weights += piece.count * own
    return DoraWork(flops=flops, moved=moved, weights=weights)
