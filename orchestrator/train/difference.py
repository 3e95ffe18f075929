"""A PiSSA adapter as plain LoRA on the base as its files have it: what training has changed, in twice the rank.

s B A - s B0 A0 = s [B, -B0] [A; A0], where A0 and B0 are what training began with. alpha doubles with the rank (with
rsLoRA it grows by the root of two), so that the scale s stays.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

from orchestrator.train.adapter_init import Initial

_PREFIX: Final = "base_model.model."
_WEIGHTS: Final = "adapter_model.safetensors"
_CONFIG: Final = "adapter_config.json"


def store_difference(folder: Path, initial: Initial) -> None:
    """Rewrite an adapter that PEFT has saved.

    Args:
        folder: of the adapter.
        initial: what its matrices began with, by module.
    """
    tensors = load_file(folder / _WEIGHTS)
    for key, value in tensors.items():
        module, _, kind = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if kind in ("lora_A", "lora_B"):
            first = initial[f"{module}.{kind}"].to(value.dtype)
            joined = torch.cat([value, first]) if kind == "lora_A" else torch.cat([value, -first], dim=1)
            tensors[key] = joined.contiguous()
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    path = folder / _CONFIG
    path.write_text(json.dumps(_doubled(json.loads(path.read_text(encoding="utf-8"))), indent=2), encoding="utf-8")


def _doubled(config: dict[str, Any]) -> dict[str, Any]:
    factor = math.sqrt(2) if config["use_rslora"] else 2
    return {
        **config,
        "r": 2 * config["r"],
        "lora_alpha": factor * config["lora_alpha"],
        "rank_pattern": {name: 2 * rank for name, rank in config["rank_pattern"].items()},
        "alpha_pattern": {name: factor * alpha for name, alpha in config["alpha_pattern"].items()},
    }
