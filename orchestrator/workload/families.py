"""Parameter counts of known architectures from `config.json` alone.

Module names, biases and norms are those of transformers 5.24 (`models/*/modeling_*.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from orchestrator.errors import Problem, UserError
from orchestrator.workload.model import LinearShape, ModelShape

Config = Mapping[str, object]
_NEEDED: Final = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_OPTIONAL: Final = ("num_key_value_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """The numbers every family shares."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """How one `model_type` fills its layers. Defaults are those of transformers' configuration class."""

    linears: Callable[[_Sizes, Config], tuple[LinearShape, ...]]
    norms_per_layer: int = 2
    norm_has_bias: bool = False
    qk_norm: bool = False
    tied_by_default: bool = False
    kv_heads_by_default: int | None = None
    head_dim_by_default: int | None = None


def _linear(name: str, out_features: int, in_features: int, *, bias: bool = False) -> LinearShape:
    return LinearShape(name=name, out_features=out_features, in_features=in_features, bias=bias)


def _gated(sizes: _Sizes, *, qkv_bias: bool, out_bias: bool, mlp_bias: bool) -> tuple[LinearShape, ...]:
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return (
        _linear("self_attn.q_proj", queries, sizes.hidden, bias=qkv_bias),
        _linear("self_attn.k_proj", keys, sizes.hidden, bias=qkv_bias),
        _linear("self_attn.v_proj", keys, sizes.hidden, bias=qkv_bias),
        _linear("self_attn.o_proj", sizes.hidden, queries, bias=out_bias),
        _linear("mlp.gate_proj", sizes.intermediate, sizes.hidden, bias=mlp_bias),
        _linear("mlp.up_proj", sizes.intermediate, sizes.hidden, bias=mlp_bias),
        _linear("mlp.down_proj", sizes.hidden, sizes.intermediate, bias=mlp_bias),
    )


def _llama(sizes: _Sizes, config: Config) -> tuple[LinearShape, ...]:
    attention = bool(config.get("attention_bias", False))
    return _gated(sizes, qkv_bias=attention, out_bias=attention, mlp_bias=bool(config.get("mlp_bias", False)))


def _mistral(sizes: _Sizes, _config: Config) -> tuple[LinearShape, ...]:
    return _gated(sizes, qkv_bias=False, out_bias=False, mlp_bias=False)


def _qwen2(sizes: _Sizes, _config: Config) -> tuple[LinearShape, ...]:
    return _gated(sizes, qkv_bias=True, out_bias=False, mlp_bias=False)


def _attention_bias_only(sizes: _Sizes, config: Config) -> tuple[LinearShape, ...]:
    attention = bool(config.get("attention_bias", False))
    return _gated(sizes, qkv_bias=attention, out_bias=attention, mlp_bias=False)


def _phi3(sizes: _Sizes, _config: Config) -> tuple[LinearShape, ...]:
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return (
        _linear("self_attn.qkv_proj", queries + 2 * keys, sizes.hidden),
        _linear("self_attn.o_proj", sizes.hidden, queries),
        _linear("mlp.gate_up_proj", 2 * sizes.intermediate, sizes.hidden),
        _linear("mlp.down_proj", sizes.hidden, sizes.intermediate),
    )


def _gpt_neox(sizes: _Sizes, config: Config) -> tuple[LinearShape, ...]:
    attention = bool(config.get("attention_bias", True))
    return (
        _linear("attention.query_key_value", 3 * sizes.hidden, sizes.hidden, bias=attention),
        _linear("attention.dense", sizes.hidden, sizes.hidden, bias=attention),
        _linear("mlp.dense_h_to_4h", sizes.intermediate, sizes.hidden, bias=True),
        _linear("mlp.dense_4h_to_h", sizes.hidden, sizes.intermediate, bias=True),
    )


_GEMMA3: Final = _Family(
    linears=_attention_bias_only, norms_per_layer=4, qk_norm=True, tied_by_default=True, head_dim_by_default=256
)
_FAMILIES: Final[Mapping[str, _Family]] = MappingProxyType(
    {
        "llama": _Family(linears=_llama),
        "mistral": _Family(linears=_mistral, kv_heads_by_default=8),
        "qwen2": _Family(linears=_qwen2),
        "qwen3": _Family(linears=_attention_bias_only, qk_norm=True, head_dim_by_default=128),
        "gemma": _Family(linears=_attention_bias_only, tied_by_default=True, head_dim_by_default=256),
        "gemma2": _Family(
            linears=_attention_bias_only, norms_per_layer=4, tied_by_default=True, head_dim_by_default=256
        ),
        "gemma3_text": _GEMMA3,
        "phi3": _Family(linears=_phi3),
        "gpt_neox": _Family(linears=_gpt_neox, norm_has_bias=True),
    }
)
SUPPORTED: Final = tuple(_FAMILIES)


def is_known(config: Config) -> bool:
    """Whether `config` names an architecture whose layers are known here."""
    kind = config.get("model_type")
    return isinstance(kind, str) and kind in _FAMILIES


def shape_from_config(name: str, config: Config) -> ModelShape:
    """Parameter counts of a known architecture.

    Args:
        name: what to call the model.
        config: the parsed `config.json`.

    Raises:
        UserError: keys are missing or are no counts (all of them at once).
    """
    kind = str(config.get("model_type"))
    family = _FAMILIES[kind]
    sizes = _sizes(name, config, family)
    linears = family.linears(sizes, config)
    tied = bool(config.get("tie_word_embeddings", family.tied_by_default))
    norm_width = sizes.hidden * (2 if family.norm_has_bias else 1)
    per_layer = family.norms_per_layer * norm_width + (2 * sizes.head_dim if family.qk_norm else 0)
    return ModelShape(
        name=name,
        architecture=kind,
        hidden=sizes.hidden,
        intermediate=sizes.intermediate,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        vocab=sizes.vocab,
        tied=tied,
        max_positions=sizes.max_positions,
        linears=linears,
        embedding_params=sizes.vocab * sizes.hidden,
        norm_params=sizes.layers * per_layer + norm_width,
        head_params=0 if tied else sizes.vocab * sizes.hidden,
        bias_params=sizes.layers * sum(linear.out_features for linear in linears if linear.bias),
        norms_per_layer=family.norms_per_layer,
        qk_norm=family.qk_norm,
    )


def _sizes(name: str, config: Config, family: _Family) -> _Sizes:
    wrong = [key for key in _NEEDED if _count(config, key) is None]
    wrong += [key for key in _OPTIONAL if config.get(key) is not None and _count(config, key) is None]
    if wrong:
        raise UserError(*(_problem(name, key, f"{config.get(key)!r} instead of a count") for key in wrong))
    hidden, intermediate, layers, heads, vocab = (_count(config, key) or 0 for key in _NEEDED)
    kv_heads = _count(config, "num_key_value_heads") or family.kv_heads_by_default or heads
    head_dim = _count(config, "head_dim") or family.head_dim_by_default
    problems = []
    if head_dim is None and hidden % heads:
        found = f"hidden_size {hidden} does not divide among num_attention_heads {heads}"
        problems.append(_problem(name, "num_attention_heads", found))
    if heads % kv_heads:
        found = f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        problems.append(_problem(name, "num_key_value_heads", found))
    if problems:
        raise UserError(*problems)
    return _Sizes(
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        vocab=vocab,
        max_positions=_count(config, "max_position_embeddings") or 0,
    )


def _problem(name: str, key: str, found: str) -> Problem:
    remedy = "Take the file from the model's own folder."
    return Problem(where=f"{name}/config.json, {key}", found=found, remedy=remedy)


def _count(config: Config, key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
