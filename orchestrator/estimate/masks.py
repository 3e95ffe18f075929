"""Which attention kernel each layer gets, and the masks it needs, in transformers 5.24.

torch's fused attention takes a causal flag or a mask. transformers leaves the mask out (`masking_utils`,
`_ignore_causal_mask_sdpa`) unless rows are padded, or a layer has a window and the row is at least that long. With a
mask CUDA runs the memory-efficient kernel in place of the flash kernel: the mask becomes a bias of the compute dtype,
grouped keys are repeated for every head, and no key is skipped. FlashAttention 2 itself takes the window as a number.
"""

from __future__ import annotations

from typing import Final

from orchestrator.estimate.setting import Setting
from orchestrator.workload.windows import EVERY_LAYER

# Model classes of transformers 5.24 that have no fused attention (`_supports_sdpa`), so that `auto` means eager.
EAGER_BY_DEFAULT: Final = frozenset({"bloom", "gemma2", "gpt_neo", "gpt_oss", "mpt"})
# They make the mask of sliding layers whether or not a layer asks for it.
_ALWAYS_TWO: Final = frozenset({"qwen2_moe", "gemma2", "gemma3_text", "cohere2", "olmo3", "gpt_oss", "ministral"})


def reaches_window(setting: Setting) -> bool:
    """Whether the longest row is as long as a window, so that some keys are out of reach."""
    window = setting.model.sliding_window
    return 0 < window <= setting.batch.longest_tokens


def masked_layers(setting: Setting) -> int:
    """Layers whose fused attention gets a mask; 0 where the kernel is eager or FlashAttention 2."""
    if setting.eager_attention or setting.flash_attention:
        return 0
    if setting.batch.padded:
        return setting.model.layers
    return setting.model.windowed_layers if reaches_window(setting) else 0


def mask_bytes_per_token(setting: Setting) -> float:
    """The masks that all layers share: one byte for each pair of tokens, or a bias of the compute dtype."""
    length = setting.batch.longest_tokens
    if setting.eager_attention:
        return float(setting.compute_bytes * length * mask_kinds(setting))
    if not masked_layers(setting):
        return 0.0
    if setting.batch.padded:
        return float(length * mask_kinds(setting))
    return length / setting.micro  # of a window, the same for every row


def mask_buffer_bytes(setting: Setting) -> int:
    """Triangular masks over all positions that some modules are built with: one a layer, or one for the model."""
    model = setting.model
    count = {"gpt_neo": model.layers, "gpt_bigcode": 1}.get(model.architecture, 0)
    return count * model.max_positions**2


def mask_kinds(setting: Setting) -> int:
    """Different masks of the model: for layers with a window, and for those without."""
    kind = setting.model.architecture
    has_both = setting.model.windowed_layers > 0 and kind not in EVERY_LAYER
    return 2 if has_both or kind in _ALWAYS_TWO else 1
