"""Operations per token, and passes over the weights."""

from __future__ import annotations

from orchestrator.config import Checkpointing
from orchestrator.estimate.recomputed import recomputed_share
from orchestrator.estimate.setting import Setting, Trained


def passes_of(setting: Setting) -> float:
    """Passes over every frozen weight: forward, input gradient, recomputation; the mean of all layers."""
    return 2 + recomputed_share(setting)


def flops_per_token(setting: Setting) -> float:
    """Floating-point operations per token of one micro-step, without the saving of a causal mask.

    Frozen weights 2 per pass (no weight gradient), experts by what a token uses of them; adapters 6, and 2 more
    when recomputed (selective keeps A's half); attention 4 s q forward, twice that backward; the fused head
    recomputes its tile.
    """
    model, adapter = setting.model, setting.adapter
    passes = passes_of(setting)
    recomputed = recomputed_share(setting) * (1.0 if setting.checkpointing is Checkpointing.selective else 2.0)
    length = setting.batch.expected_tokens(setting.micro)
    attention = 4 * length * model.query_width * model.layers * (passes + 1)
    head = (6 if setting.stack == "trl" else 4) * model.vocab * model.hidden
    if setting.trained is Trained.everything:
        return 2 * (passes + 1) * model.active_params + attention + head + 2 * model.vocab * model.hidden
    return 2 * passes * model.active_params + (6 + recomputed) * adapter.params + attention + head
