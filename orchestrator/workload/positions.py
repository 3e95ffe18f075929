"""How long a sequence a model takes: its positions, with the scaling of rotary embeddings counted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# Where the file does not tell: `max_position_embeddings` of the configuration classes of transformers 5.24.
_DEFAULTS: Final = MappingProxyType(
    {
        **dict.fromkeys(("gpt2", "gpt_bigcode"), 1024),
        **dict.fromkeys(
            (
                *("deepseek_v2", "exaone4", "falcon", "gpt_neo", "gpt_neox", "gptj", "granite", "granitemoe"),
                *("granitemoehybrid", "llama", "mpt", "olmo", "olmo2", "olmo3", "opt", "phi"),
            ),
            2048,
        ),
        **dict.fromkeys(("deepseek_v3", "olmoe", "phi3", "stablelm", "starcoder2"), 4096),
        **dict.fromkeys(("cohere", "cohere2", "gemma", "gemma2"), 8192),
        **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"), 32_768),
        **dict.fromkeys(
            (
                *("ernie4_5", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt_oss", "llama4_text", "ministral"),
                *("mistral", "mixtral", "phimoe"),
            ),
            131_072,
        ),
        "ministral3": 262_144,
        "seed_oss": 524_288,
    }
)
# They look each position up in a table of that many rows: a longer sequence fails, where others only extrapolate.
_WITH_TABLE: Final = frozenset({"codegen", "gpt2", "gpt_bigcode", "gpt_neo", "gptj", "mpt", "opt"})
# Of these the number in the file stands for the model before scaling. (`llama3` and `longrope` name the scaled one.)
_STRETCHED: Final = frozenset({"dynamic", "linear", "ntk", "yarn"})
# The configuration names what is reached with its scaling.
_NAMED_SCALED: Final = frozenset({"gemma3", "gemma3_text"})
_KEYS: Final = ("rope_scaling", "rope_parameters")


def has_table(kind: str) -> bool:
    """Whether models of this `model_type` cannot run a sequence beyond their positions."""
    return kind in _WITH_TABLE


def positions_of(kind: str, read: int, config: Mapping[str, object]) -> int:
    """Longest sequence that the model was made for, in tokens; 0 when unknown.

    Args:
        kind: `model_type`.
        read: what config.json says; 0 for nothing.
        config: the parsed file, for the scaling of rotary embeddings: `factor` times the positions before it.
    """
    positions = read or _DEFAULTS.get(kind, 0)
    told = next((config[key] for key in _KEYS if isinstance(config.get(key), Mapping)), None)
    if not isinstance(told, Mapping) or kind in _NAMED_SCALED | _WITH_TABLE:
        return positions
    factor, before = told.get("factor"), told.get("original_max_position_embeddings", positions)
    if str(told.get("rope_type", told.get("type"))) not in _STRETCHED or not _is_number(factor, before):
        return positions
    return max(positions, round(float(str(before)) * float(str(factor))))


def _is_number(*values: object) -> bool:
    return all(isinstance(x, int | float) and not isinstance(x, bool) and 0 < x <= 10**9 for x in values)
