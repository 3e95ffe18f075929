"""Builders of settings for the estimates' tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.config import AdapterConfig, Checkpointing, Engine, Offload, Optimizer, Quant
from orchestrator.estimate.setting import Machine, Setting, Zero3Knobs
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.families import shape_from_config

TINY = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}
GPU = Machine(
    is_gpu=True,
    memory_bytes=24 * 2**30,
    flops_per_second=165e12,
    memory_bytes_per_second=1e12,
    cores=1.0,
    link_bytes_per_second=10e9,
    gather_bytes_per_second=10e9,
    link_alpha_seconds=3e-5,
    h2d_bytes_per_second=12e9,
    known=True,
)
CPU = replace(
    GPU,
    is_gpu=False,
    memory_bytes=8 * 2**30,
    flops_per_second=80e9,
    memory_bytes_per_second=5e9,
    link_bytes_per_second=1e9,
    gather_bytes_per_second=3e8,
    link_alpha_seconds=6e-4,
)
KNOBS = Zero3Knobs(
    offload_param=Offload.none,
    offload_optimizer=Offload.none,
    nvme_path="",
    param_persistence_threshold=0,
    prefetch_bucket_size=100_000,
    max_live_parameters=3_000_000,
    max_reuse_distance=100_000,
    reduce_bucket_size=300_000,
)


@pytest.fixture(scope="session")
def make_setting() -> Callable[..., Setting]:
    """Return a builder: model keys by `model=`, rank by `rank=`, lengths by `seq_len=`, the rest as in Setting."""

    def build(
        *, model: dict[str, Any] | None = None, rank: int = 16, seq_len: int = 128, padded: bool = True, **changes: Any
    ) -> Setting:
        shape = shape_from_config("tiny", {**TINY, **(model or {})})
        setting = Setting(
            model=shape,
            adapter=adapter_shape(shape, AdapterConfig(rank=rank)),
            batch=BatchShape(real_tokens_per_row=seq_len / 2, longest_tokens=seq_len, fixed=False, padded=padded),
            quant=Quant.nf4,
            double_quant=True,
            engine=Engine.ddp,
            world_size=1,
            micro=2,
            rows=8,
            accumulation=4,
            compute_dtype="fp32",
            load_dtype="fp32",
            adapter_dtype="fp32",
            checkpointing=Checkpointing.none,
            optimizer=Optimizer.adamw,
            allocator="",
            eager_attention=False,
            zero3=None,
            machine=CPU,
        )
        if changes.get("machine") == "gpu":
            changes["machine"] = GPU
        if changes.get("engine") is Engine.zero3:
            changes = {"zero3": KNOBS, "world_size": 2, **changes}
        return replace(setting, **changes)

    return build
