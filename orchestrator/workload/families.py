"""Parameter names, shapes and counts of known architectures from `config.json` alone.

They are those of transformers 5.24; the tests compare each family with transformers' own modules on the meta device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from orchestrator.workload.families_classic import CLASSIC
from orchestrator.workload.families_dense import DENSE
from orchestrator.workload.families_layernorm import LAYERNORM
from orchestrator.workload.families_moe import MOE, is_all_attention
from orchestrator.workload.families_own import OWN
from orchestrator.workload.layout import (
    Config,
    Family,
    Reader,
    assembled,
    packed,
    read_sizes,
    skip_patterns,
)
from orchestrator.workload.model import ModelShape
from orchestrator.workload.positions import positions_of
from orchestrator.workload.quantised import prequantised
from orchestrator.workload.unsaid import activation_of, drops_residuals
from orchestrator.workload.windows import window_of
from orchestrator.workload.wrappers import is_whole, language_part, with_vision, wrapper_note

FAMILIES: Final[Mapping[str, Family]] = MappingProxyType({**DENSE, **LAYERNORM, **CLASSIC, **OWN, **MOE})
SUPPORTED: Final = tuple(FAMILIES)
_DTYPES: Final = ("dtype", "torch_dtype")


def is_known(config: Config) -> bool:
    """Whether `config` names an architecture whose layers are known here, alone or inside a wrapper."""
    inner = language_part(config) or config
    kind = inner.get("model_type")
    if kind == "granitemoehybrid":
        return is_all_attention(inner.get("layer_types") or inner.get("layers_block_type"))
    return isinstance(kind, str) and kind in FAMILIES


def shape_from_config(name: str, config: Config) -> ModelShape:
    """Parameters of a known architecture.

    Args:
        name: what to call the model.
        config: the parsed `config.json`.

    Raises:
        UserError: keys are missing or are no counts (all of them at once), or the weights are quantised in a way
            that cannot be trained on.
    """
    told = prequantised(name, config)
    text = language_part(config)
    inner = text or config
    kind = str(inner.get("model_type"))
    family = FAMILIES[kind]
    defaults = {**(family.nested if text else {}), **family.defaults, "tie_word_embeddings": family.tied}
    reader = Reader(name, {**inner, "vision_config": config.get("vision_config")}, family.names, defaults)
    sizes = read_sizes(reader, family)
    layout = family.layout(sizes, reader)
    if text and is_whole(config):
        layout = with_vision(layout, reader, sizes.hidden)
    reader.check()
    tied = reader.flag("tie_word_embeddings")
    skipped = told.skipped if told else None
    layout = packed(layout, skip_patterns(layout, tied=tied) if skipped is None else skipped)
    shape = assembled(name, kind, sizes, layout, tied=tied)
    notes = (wrapper_note(config),) if text else ()

    def told_or_default(key: str) -> object:
        return inner[key] if key in inner else defaults.get(key)  # a null is told, and means none

    window, windowed = window_of(kind, shape.layers, told_or_default)
    return replace(
        shape,
        max_positions=positions_of(kind, shape.max_positions, inner),
        norms_per_layer=shape.norms_per_layer if family.norms_per_layer is None else family.norms_per_layer,
        layer_norm=family.layer_norm,
        gated_mlp=family.gated_mlp,
        activation=activation_of(kind, inner),
        drops_residuals=drops_residuals(kind, inner),
        logit_softcap=bool(told_or_default("final_logit_softcapping")),
        attention_softcap=bool(told_or_default("attn_logit_softcapping")),
        sliding_window=window,
        windowed_layers=windowed,
        dtype=_text(inner, _DTYPES) or _text(config, _DTYPES),
        prequantised=told.quant if told else "",
        double_quant=bool(told and told.double_quant),
        source="config.json",
        notes=(*notes, *((family.note,) if family.note else ()), *((told.note,) if told else ())),
    )


def _text(config: Config, keys: tuple[str, ...]) -> str:
    return next((str(config[key]) for key in keys if config.get(key)), "")
