"""AdaLoRA's adapters as plain LoRA, which every server loads and every tool merges.

AdaLoRA adds alpha / (r0 + 1e-5) B (E A) to a weight, with r0 the rank at the start and E zero where it has masked
(`peft/tuners/adalora/layer.py`, `SVDLinear.forward`). So E goes into A, masked rows go, and what is left is LoRA, with
one rank for all: modules that have fewer rows get zeros.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

_WEIGHTS: Final = "adapter_model.safetensors"
_CONFIG: Final = "adapter_config.json"
_EPS: Final = 1e-5  # of PEFT's division by the rank
_SHARED: Final = (
    *("target_modules", "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern", "task_type"),
    *("base_model_name_or_path", "revision", "bias", "fan_in_fan_out", "inference_mode"),
)


def store_as_lora(folder: Path) -> None:
    """Rewrite the files of an adapter that PEFT has saved, where it is AdaLoRA; others stay as they are."""
    config: dict[str, Any] = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    if config.get("peft_type") != "ADALORA":
        return
    tensors = load_file(folder / _WEIGHTS)
    names = [name.removesuffix(".lora_E") for name in tensors if name.endswith(".lora_E")]
    kept = {name: tensors[f"{name}.lora_E"].flatten() != 0 for name in names}
    rank = max(1, *(int(mask.sum()) for mask in kept.values()))
    made = {name: value for name, value in tensors.items() if name.rpartition(".")[0] not in kept}
    for name, mask in kept.items():
        first, second = tensors[f"{name}.lora_A"], tensors[f"{name}.lora_B"]
        scaled = (first.float() * tensors[f"{name}.lora_E"].float()).to(first.dtype)
        made[f"{name}.lora_A.weight"] = _padded(scaled[mask], rank, 0)
        made[f"{name}.lora_B.weight"] = _padded(second[:, mask], rank, 1)
    alpha = config["lora_alpha"] / (config["init_r"] + _EPS) * rank
    plain = LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=config["lora_dropout"], **{key: config.get(key) for key in _SHARED}
    )
    save_file(made, folder / _WEIGHTS, metadata={"format": "pt"})
    plain.save_pretrained(str(folder))


def _padded(values: torch.Tensor, rank: int, axis: int) -> torch.Tensor:
    missing = list(values.shape)
    missing[axis] = rank - missing[axis]
    return torch.cat([values, values.new_zeros(missing)], dim=axis).contiguous()
