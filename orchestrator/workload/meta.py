"""Counts any model that transformers knows, by building it on the meta device: no weights, seconds of imports.

A module of its own, started as a process, since it imports torch:

    python -m orchestrator.workload.meta FOLDER [--name NAME] [--trust-remote-code]

prints the shape as JSON (`shape_codec`), or the problems and ends with exit code 2. Nothing is downloaded, and code
that comes with a model runs only when asked to.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.initialization import no_tie_weights
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import HfQuantizer

from orchestrator.errors import ExitCode, Problem, UserError
from orchestrator.workload.files import read_config
from orchestrator.workload.layout import MOST_LAYERS, Layout, Sizes, assembled, packed
from orchestrator.workload.model import ModelShape
from orchestrator.workload.parameters import TUPLE_ROUTERS, Parameter, Role
from orchestrator.workload.positions import positions_of
from orchestrator.workload.quantised import Prequantised, prequantised
from orchestrator.workload.shape_codec import problems_to_json, shape_to_json
from orchestrator.workload.unsaid import activation_of, drops_residuals

_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_STACKED: Final = 3
_NOTE: Final = "Counted by building the model on the meta device with transformers (slower than from config.json)."


def shape_of_folder(folder: Path, name: str = "", *, trust_remote_code: bool = False) -> ModelShape:
    """Build the model that `folder/config.json` describes on the meta device, and count it.

    Raises:
        UserError: transformers cannot build it, or its weights cannot be trained on.
    """
    name = name or folder.name
    told = prequantised(name, read_config(folder))
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
        layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
        if isinstance(layers, int) and layers > MOST_LAYERS:
            raise ValueError(f"num_hidden_layers is {layers}, more than {MOST_LAYERS:,}")  # noqa: TRY301 - told below
        # The quantiser would replace modules while the model is built; what it packs is marked here instead.
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        model, skipped = built(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # libraries raise all kinds for a configuration they cannot build
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(". ")
        remedy = "Check config.json, and that this version of transformers knows the architecture"
        remedy += "." if trust_remote_code else " (model.trust_remote_code=true for one that brings its own code)."
        found = f"transformers cannot build it ({type(error).__name__}: {reason})"
        raise UserError(Problem(where=f"model {name}", found=found, remedy=remedy)) from error
    return shape_of_model(model, name, skipped, told)


def built(config: Any, *, trust_remote_code: bool = False) -> tuple[PreTrainedModel, tuple[str, ...]]:  # noqa: ANN401
    """The model as training would load it, else the whole of a vision-language model.

    Returns it with the modules that transformers keeps from bitsandbytes, chosen as `from_pretrained` does: before
    weights are tied.
    """
    with torch.device("meta"), no_tie_weights():
        try:
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        except ValueError:
            model = AutoModelForImageTextToText.from_config(config, trust_remote_code=trust_remote_code)
    skipped = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)  # noqa: SLF001
    model.tie_weights()
    return model, tuple(skipped)


def shape_of_model(
    model: PreTrainedModel, name: str, skipped: tuple[str, ...], told: Prequantised | None = None
) -> ModelShape:
    """Count a built model, on whatever device; `skipped` names the modules that stay in 16 bits."""
    config = model.config.get_text_config()
    layout = _layout(model, config)
    if told and told.skipped is not None:
        skipped = told.skipped
    tied = not any(x.role is Role.head for x in (*layout.before, *layout.after))
    shape = assembled(name, str(config.model_type), _sizes(config, layout), packed(layout, skipped), tied=tied)
    window, windowed = _window(config, shape.layers)
    told_by = vars(config)
    return replace(
        shape,
        max_positions=positions_of(str(config.model_type), shape.max_positions, told_by),
        dtype=str(getattr(model.config, "dtype", None) or "").removeprefix("torch."),
        activation=activation_of(str(config.model_type), told_by),
        drops_residuals=drops_residuals(str(config.model_type), told_by),
        logit_softcap=bool(getattr(config, "final_logit_softcapping", None)),
        attention_softcap=bool(getattr(config, "attn_logit_softcapping", None)),
        sliding_window=window,
        windowed_layers=windowed,
        prequantised=told.quant if told else "",
        double_quant=bool(told and told.double_quant),
        source="meta device",
        notes=(_NOTE, *((told.note,) if told else ())),
    )


def _layout(model: PreTrainedModel, config: Any) -> Layout:  # noqa: ANN401 - transformers has no types
    prefix, num = _decoder(model)
    roles = _Roles(model)
    before: list[Parameter] = []
    after: list[Parameter] = []
    layers: list[list[Parameter]] = [[] for _ in range(num)]
    for name, tensor in model.named_parameters():
        parameter = Parameter(name=name, shape=tuple(tensor.shape), role=roles.of(name, tensor))
        if name.startswith(f"{prefix}."):
            index, _, rest = name.removeprefix(f"{prefix}.").partition(".")
            layers[int(index)].append(replace(parameter, name=rest))
        else:
            (after if any(layers) else before).append(parameter)
    experts = next((getattr(config, key) for key in _EXPERTS if getattr(config, key, None)), 0)
    has_experts = any(x.role is Role.experts for layer in layers for x in layer)
    return Layout(
        before=tuple(before),
        layers=tuple(tuple(layer) for layer in layers),
        after=tuple(after),
        prefix=prefix,
        experts=experts if has_experts else 0,
        experts_per_token=(getattr(config, "num_experts_per_tok", None) or 1) if has_experts else 0,
    )


def _decoder(model: PreTrainedModel) -> tuple[str, int]:
    """Name and length of the list of layers that holds most parameters."""
    stacks = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outermost = {
        name: module for name, module in stacks.items() if not any(name.startswith(f"{other}.") for other in stacks)
    }
    if not outermost:
        found = "it has no list of layers"
        raise UserError(Problem(where="model", found=found, remedy="Only models made of layers can be counted."))
    name = max(outermost, key=lambda key: sum(p.numel() for p in outermost[key].parameters()))
    return name, len(outermost[name])


class _Roles:
    """Tells what each parameter of a model is for."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.modules: Mapping[str, nn.Module] = dict(model.named_modules())
        self.head = model.get_output_embeddings()

    def of(self, name: str, tensor: torch.Tensor) -> Role:
        """The role of the parameter called `name`."""
        path, _, leaf = name.rpartition(".")
        module = self.modules[path]
        kind = type(module).__name__.lower()
        if module is self.head:
            return Role.bias if leaf == "bias" else Role.head
        if isinstance(module, nn.Linear | Conv1D):
            return Role.bias if leaf == "bias" else _linear_role(module)
        if isinstance(module, nn.Embedding):
            return Role.embedding
        if "norm" in kind:
            return Role.norm
        if "expert" in kind or (tensor.ndim == _STACKED and "expert" in name):
            return Role.experts
        return Role.router if "router" in kind else Role.other


def _linear_role(module: nn.Module) -> Role:
    if isinstance(module, Conv1D):
        return Role.conv1d
    if type(module).__name__ in TUPLE_ROUTERS:
        return Role.router
    return Role.linear if type(module) is nn.Linear else Role.own_linear


def _sizes(config: Any, layout: Layout) -> Sizes:  # noqa: ANN401 - transformers has no types
    hidden = _count(config, "hidden_size", 1)
    heads = _count(config, "num_attention_heads", 1)
    return Sizes(
        hidden=hidden,
        intermediate=_count(config, "intermediate_size", _count(config, "ffn_dim", 4 * hidden)),
        layers=len(layout.layers),
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", heads),
        head_dim=_count(config, "qk_head_dim", _count(config, "head_dim", max(1, hidden // heads))),
        vocab=_count(config, "vocab_size", 1),
        max_positions=_count(config, "max_position_embeddings", 0),
    )


def _count(config: Any, key: str, otherwise: int) -> int:  # noqa: ANN401 - transformers has no types
    value = getattr(config, key, None)
    return value if isinstance(value, int) and value > 0 else otherwise


def _window(config: Any, layers: int) -> tuple[int, int]:  # noqa: ANN401 - transformers has no types
    """The window in tokens and the layers that have it; a configuration without `layer_types` means all of them."""
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    kinds = Counter(types)
    tokens = _count(config, "sliding_window", 0) if getattr(config, "use_sliding_window", True) else 0
    sliding, chunk = kinds["sliding_attention"], _count(config, "attention_chunk_size", 0)
    if tokens and sliding:
        return tokens, sliding
    return (chunk, kinds["chunked_attention"]) if chunk and kinds["chunked_attention"] else (0, 0)


def main(arguments: list[str] | None = None) -> int:
    """Print the shape of a folder as JSON; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.workload.meta", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="")
    parser.add_argument("--trust-remote-code", action="store_true")
    told = parser.parse_args(arguments)
    try:
        print(shape_to_json(shape_of_folder(told.folder, told.name, trust_remote_code=told.trust_remote_code)))
    except UserError as error:
        print(problems_to_json(error))
        return ExitCode.BAD_INPUT
    return ExitCode.DONE


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched, whatever a configuration refers to
    sys.exit(main())
