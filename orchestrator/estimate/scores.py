"""What attention keeps of each score where no fused kernel runs: pairs of tokens, of every head.

Read in transformers 5.24 (`eager_attention_forward` and the families' own attention); c bytes of the compute dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.estimate.blocks import Block, block_of
from orchestrator.estimate.setting import Setting

_FP32: Final = 4
# Layers return their softmax, and the loop over layers holds it until the next one has returned.
_RETURNS_WEIGHTS: Final = frozenset({"bloom", "gpt_neo", "mpt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Bytes per score.

    Attributes:
        saved: kept for the backward pass.
        forward: alive at once around the softmax of a forward pass, what the layer before has returned included.
        backward: alive at once while the softmax runs backwards.
    """

    saved: int
    forward: int
    backward: int


def scores_of(setting: Setting) -> Scores:
    """Bytes per score in the attention of `setting`'s model."""
    block, compute, kind = block_of(setting), setting.compute_bytes, setting.model.architecture
    cast = compute if setting.compute_dtype != "fp32" else 0
    capped = compute if block.soft_capped else 0
    if kind == "gpt_oss":  # its softmax stays in the compute dtype: scores, with a sink, less their largest
        return Scores(saved=compute, forward=3 * compute, backward=3 * compute)
    saved, backward = _FP32 + cast + capped, 3 * _FP32 + capped
    held = _returned(block, compute) if kind in _RETURNS_WEIGHTS else 0
    if kind == "mpt":  # alibi is fp32, and so is its sum with the scores; the product with the values casts
        return Scores(saved=saved, forward=held + 2 * _FP32 + cast, backward=backward)
    scores = 2 * compute if kind == "bloom" else compute  # before and after the mask is added
    return Scores(saved=saved, forward=held + scores + (1 + (cast > 0)) * _FP32 + capped, backward=backward)


def _returned(block: Block, compute: int) -> int:
    """Bytes of a returned weight: of the values' dtype."""
    return _FP32 if block.fp32_outputs else compute
