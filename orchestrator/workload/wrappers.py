"""Models with more than a language part: where it is, and what surrounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from orchestrator.workload.families_dense import Parameters, norms
from orchestrator.workload.layout import Config, Layout, Reader
from orchestrator.workload.parameters import Role, linear, norm, single

# Wrappers whose language part is loaded alone by AutoModelForCausalLM.
_LANGUAGE_ONLY: Final = frozenset({"llama4"})
_SIGLIP: Final = MappingProxyType(
    {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 16,
    }
)


def language_part(config: Config) -> Config | None:
    """The configuration of the language part of a wrapper; None when `config` is no wrapper."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return None
    outer, inner = str(config.get("model_type")), text.get("tie_word_embeddings")
    kind = text.get("model_type") or _KINDS.get(outer)
    tied = config.get("tie_word_embeddings")
    # The whole model ties its head when either part says so; a language part that is loaded alone goes by its own word.
    is_own = tied is None or (outer in _LANGUAGE_ONLY and inner is not None)
    told = {} if is_own else {"tie_word_embeddings": bool(tied or inner)}
    return {**text, **told, "model_type": kind}


_KINDS: Final = MappingProxyType({"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral"})


def is_whole(config: Config) -> bool:
    """Whether the parts around the language model are counted too."""
    return config.get("model_type") == "gemma3" and isinstance(config.get("vision_config"), Mapping)


def wrapper_note(config: Config) -> str:
    """What is counted of a wrapper."""
    kind = str(config.get("model_type"))
    if is_whole(config):
        return "The vision tower is counted: it is loaded, packed and reached by all-linear with the language part."
    if kind in _LANGUAGE_ONLY:
        return "Only the language part is counted; that is what AutoModelForCausalLM loads."
    return f"Only the language part of {kind} is counted; a vision or audio tower adds to it."


def with_vision(layout: Layout, reader: Reader, hidden: int) -> Layout:
    """Put Gemma 3's vision tower and projector before the language part, under the names of the whole model."""
    vision = reader.config.get("vision_config")
    tower = Reader(f"{reader.name}, vision_config", vision if isinstance(vision, Mapping) else {}, {}, _SIGLIP)
    width = tower.count("hidden_size")
    parameters = (
        *_siglip(tower),
        *single("model.multi_modal_projector.mm_input_projection_weight", width, hidden),
        *norm("model.multi_modal_projector.mm_soft_emb_norm", width),
    )
    reader.problems.extend(tower.problems)
    inner = [replace(x, name=x.name.replace("model.", "model.language_model.", 1)) for x in layout.before]
    outer = [
        replace(x, name=x.name.replace("model.", "model.language_model.", 1)) if x.role is Role.norm else x
        for x in layout.after
    ]
    return replace(layout, before=(*parameters, *inner), after=tuple(outer), prefix="model.language_model.layers")


def _siglip(tower: Reader) -> Parameters:
    """The SigLIP vision tower of transformers."""
    width, wide, side = tower.count("hidden_size"), tower.count("intermediate_size"), tower.count("patch_size")
    patches = (tower.count("image_size") // side) ** 2
    root = "model.vision_tower"
    found: list[Parameters] = [
        single(f"{root}.embeddings.patch_embedding.weight", width, tower.count("num_channels"), side, side),
        single(f"{root}.embeddings.patch_embedding.bias", width),
        single(f"{root}.embeddings.position_embedding.weight", patches, width),
    ]
    for index in range(tower.count("num_hidden_layers")):
        layer = f"{root}.encoder.layers.{index}"
        found += [linear(f"{layer}.self_attn.{x}", width, width, bias=True) for x in _PROJECTIONS]
        found += [
            linear(f"{layer}.mlp.fc1", wide, width, bias=True),
            linear(f"{layer}.mlp.fc2", width, wide, bias=True),
            norms(width, f"{layer}.layer_norm1", f"{layer}.layer_norm2", bias=True),
        ]
    found.append(norm(f"{root}.post_layernorm", width, bias=True))
    if tower.flag("vision_use_head", otherwise=True):
        found += _pooling_head(f"{root}.head", width, wide)
    return tuple(parameter for parameters in found for parameter in parameters)


_PROJECTIONS: Final = ("k_proj", "v_proj", "q_proj", "out_proj")


def _pooling_head(root: str, width: int, wide: int) -> list[Parameters]:
    return [
        single(f"{root}.probe", 1, 1, width),
        single(f"{root}.attention.in_proj_weight", 3 * width, width),
        single(f"{root}.attention.in_proj_bias", 3 * width),
        linear(f"{root}.attention.out_proj", width, width, bias=True, role=Role.own_linear),
        norm(f"{root}.layernorm", width, bias=True),
        linear(f"{root}.mlp.fc1", wide, width, bias=True),
        linear(f"{root}.mlp.fc2", width, wide, bias=True),
    ]
