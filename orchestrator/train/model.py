"""The base as planned: quantised on load, adapters on top, nothing left to a library's default."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.quantization_config import QuantizationConfigMixin

from orchestrator.config import BaseConfig, ModelConfig
from orchestrator.errors import Problem, UserError
from orchestrator.train.loading_errors import memory_error_told, reason_of
from orchestrator.train.settings import TrainSettings
from orchestrator.weights.mixed import bitsandbytes_config

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_base(model: ModelConfig, base: BaseConfig, settings: TrainSettings) -> PreTrainedModel:
    """Load the base in the planned storage and compute types on this rank's device.

    Args:
        model: where the base is.
        base: how it is quantised.
        settings: the planned types and device of this rank.
    """
    kwargs: dict[str, Any] = {
        "dtype": DTYPES[settings.precision],
        "trust_remote_code": model.trust_remote_code,
    }
    if model.revision:
        kwargs["revision"] = model.revision
    if model.attention.value != "auto":
        kwargs["attn_implementation"] = model.attention.value
    quantization = quantization_config(base, settings)
    if quantization is not None:
        kwargs["quantization_config"] = quantization
    if settings.device.type == "cuda" and not settings.is_zero3:
        kwargs["device_map"] = {"": settings.device.index or 0}
    loaded = _from_pretrained(model.path, kwargs)
    keep_packing(loaded)
    for parameter in loaded.parameters():
        parameter.requires_grad_(False)  # noqa: FBT003 - torch's own signature
    return loaded


def _from_pretrained(path: str, kwargs: dict[str, Any]) -> PreTrainedModel:
    """Load, and tell a broken model apart from a fault of the run.

    Raises:
        UserError: the folder does not hold what its configuration says.
    """
    try:
        loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, **kwargs)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # libraries raise all kinds for a damaged file
        of_memory = memory_error_told(error)
        if of_memory is not None:
            raise of_memory from error
        raise UserError(
            Problem(
                where=f"model {path}",
                found=f"it could not be loaded ({reason_of(error)})",
                remedy="Download or save the model again, and check that this version of transformers knows it.",
            )
        ) from error
    return loaded


def quantization_config(base: BaseConfig, settings: TrainSettings) -> QuantizationConfigMixin | None:
    """Return what bitsandbytes is asked for; None keeps the base in the load dtype."""
    return bitsandbytes_config(base, DTYPES[settings.precision], settings.quant_storage)


def keep_packing(model: nn.Module) -> None:
    """Stop bitsandbytes from repacking 4-bit weights for inference on CPUs with AVX512-BF16.

    The repacked layout replaces the stored bytes at the first evaluation: a checkpointed or
    partitioned layer would then be restored into a layout nobody expects.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010 - a plain attribute, no tensor


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the adapters' parameters by name, in the model's own order."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def cast_adapters(model: nn.Module, dtype: torch.dtype, values: dict[str, torch.Tensor]) -> None:
    """Give the adapters their planned type, from the values they were initialised with.

    TRL casts the adapters of a quantised base to bf16 on its own, which would round the
    initialisation even where fp32 was planned.
    """
    for name, parameter in trainable(model):
        parameter.data = values[name].to(parameter.device, dtype)
