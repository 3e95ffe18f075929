"""Which layers of a model attend only to their last tokens, as transformers 5.24 reads it from `config.json`.

Families differ: some give every layer the window, some every layer but each n-th, Qwen only the late layers and only
when `use_sliding_window` says so. `layer_types`, where a file has it, tells each layer
(`models/*/configuration_*.py`; the masks are made in `models/*/modeling_*.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

LOCAL: Final = frozenset({"sliding_attention", "chunked_attention"})
LookUp = Callable[[str], object]

# Their code asks for `sliding_window` alone, whatever `layer_types` says.
EVERY_LAYER: Final = frozenset({"mistral", "ministral3", "mixtral", "phi3", "phimoe", "qwen3_moe", "starcoder2"})
# All layers but each n-th, counted from 1, unless the file tells another n.
_ALL_BUT_EACH: Final = MappingProxyType(
    {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4, "olmo3": 4, "exaone4": 4}
)
_TELLS_PATTERN: Final = frozenset({"gemma3_text", "cohere2", "exaone4"})
_ONLY_IF_USED: Final = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"})
_BY_TYPES: Final = frozenset({*_ALL_BUT_EACH, *_ONLY_IF_USED, "ministral", "llama4_text"})
_LATE_LAYERS: Final = 28  # max_window_layers where it is absent
_NO_ROPE_EACH: Final = 4  # no_rope_layer_interval where it is absent


def window_of(kind: str, layers: int, look_up: LookUp) -> tuple[int, int]:
    """Tokens of the window, and how many layers have it; both 0 without one.

    Args:
        kind: the `model_type`.
        layers: of the model.
        look_up: value of a key of config.json, or its default.
    """
    tokens = count(look_up("attention_chunk_size" if kind == "llama4_text" else "sliding_window"))
    if not tokens or (kind in _ONLY_IF_USED and not look_up("use_sliding_window")):
        return 0, 0
    if kind in EVERY_LAYER:
        return tokens, layers
    told = told_layers(look_up("layer_types")) if kind in _BY_TYPES else None
    windowed = _by_rule(kind, layers, look_up) if told is None else min(told, layers)
    return (tokens, windowed) if windowed else (0, 0)


def told_layers(types: object) -> int | None:
    """Layers with a window that `layer_types` names; None where it is absent."""
    if not isinstance(types, list | tuple) or not types:
        return None
    return sum(isinstance(kind, str) and kind in LOCAL for kind in types)


def count(value: object) -> int:
    """A count above 0; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _by_rule(kind: str, layers: int, look_up: LookUp) -> int:
    """Layers with a window where the file does not name them."""
    if kind in _ALL_BUT_EACH:
        told = look_up("sliding_window_pattern") if kind in _TELLS_PATTERN else None
        each = len(told) if isinstance(told, str) else count(told)
        return layers - layers // (each or _ALL_BUT_EACH[kind])
    if kind in ("smollm3", "llama4_text"):
        rotary = _rotary_layers(layers, look_up)
        return layers - rotary if kind == "smollm3" else rotary
    late = look_up("max_window_layers")
    first = late if isinstance(late, int) and late >= 0 else _LATE_LAYERS
    if kind in ("qwen2", "qwen3"):
        return max(0, layers - first)
    if kind == "qwen2_moe":
        return -(-min(first, layers) // 2)
    return layers if kind == "ministral" else 0


def _rotary_layers(layers: int, look_up: LookUp) -> int:
    """Layers with rotary embeddings: SmolLM 3 has windows in the others, Llama 4 chunks in these."""
    told = look_up("no_rope_layers")
    if isinstance(told, list | tuple) and told:
        return sum(bool(x) for x in told[:layers])
    return layers - layers // (count(look_up("no_rope_layer_interval")) or _NO_ROPE_EACH)
