"""Memory of answers that an evaluation makes: keys and values of every token so far, and the logits of the newest."""

from __future__ import annotations

from orchestrator.estimate.setting import Setting
from orchestrator.estimate.values import Term

_FP32 = 4
_LOGIT_COPIES = 2  # in the compute dtype and, for the choice of a token, in fp32; above rather than below


def cache_bytes(setting: Setting) -> int:
    """Keys and values of the longest answers of a rank, and one layer's again: a cache grows by copying it."""
    made, model = setting.generation, setting.model
    if made is None:
        return 0
    tokens = made.prompt_tokens + made.new_tokens
    if model.max_positions:
        tokens = min(tokens, max(model.max_positions, made.prompt_tokens + 1))
    each = 2 * model.kv_heads * model.head_dim * setting.compute_bytes
    return (made.rows or setting.micro) * tokens * (model.layers + 1) * each


def generation_term(setting: Setting, kept_bytes: int, peak_bytes: int) -> Term:
    """What answers take beyond a training step; most often nothing, as no activations are kept meanwhile.

    Args:
        setting: of the rank.
        kept_bytes: activations that a step keeps for its backward pass, which an evaluation does not.
        peak_bytes: the largest transient of a step; reading the prompts takes no more for as many rows.
    """
    made = setting.generation
    if made is None:
        return Term(name="generation", bytes=0, why="no answers are made")
    rows = made.rows or setting.micro
    logits = rows * setting.model.vocab * _FP32 * _LOGIT_COPIES
    reading = round(peak_bytes * max(1.0, rows / setting.micro))
    cache = cache_bytes(setting)
    why = f"{rows} answers of up to {made.prompt_tokens + made.new_tokens:,} tokens: a cache of keys and values, "
    why += "beyond the activations that an evaluation does not keep"
    return Term(name="generation", bytes=max(0, cache + logits + reading - kept_bytes - peak_bytes), why=why)
