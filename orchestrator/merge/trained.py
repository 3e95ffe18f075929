"""How a run held its base."""

from __future__ import annotations

import torch
from transformers import BitsAndBytesConfig

from orchestrator.config import BaseConfig, Quant
from orchestrator.merge.base import Trained
from orchestrator.train.model import DTYPES


def trained_of(base: BaseConfig, precision: str) -> Trained:
    """Return it from what the plan says; the storage type of packed weights has no say in their values."""
    dtype: torch.dtype = DTYPES[precision]
    if base.quant is Quant.none:
        return Trained(dtype=dtype, quantization=None)
    if base.quant is Quant.int8:
        return Trained(dtype=dtype, quantization=BitsAndBytesConfig(load_in_8bit=True))
    return Trained(
        dtype=dtype,
        quantization=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=base.quant.value,
            bnb_4bit_use_double_quant=base.double_quant,
            bnb_4bit_compute_dtype=dtype,
        ),
    )
