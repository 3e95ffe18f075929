"""How a run held its base."""

from __future__ import annotations

import torch

from orchestrator.config import BaseConfig
from orchestrator.merge.base import Trained
from orchestrator.train.model import DTYPES
from orchestrator.weights.mixed import bitsandbytes_config


def trained_of(base: BaseConfig, precision: str) -> Trained:
    """Return it from what the plan says; the storage type of packed weights has no say in their values."""
    dtype: torch.dtype = DTYPES[precision]
    return Trained(dtype=dtype, quantization=bitsandbytes_config(base, dtype, "uint8"))
