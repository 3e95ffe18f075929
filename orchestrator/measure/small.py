"""The small model that layers are measured on: as a configuration, and as the estimate sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.config import AdapterConfig, Checkpointing, Engine, Optimizer, Quant
from orchestrator.estimate.setting import Machine, Setting
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.families import shape_from_config

RANK = 16


def llama(*, hidden: int, layers: int, vocab: int = 256) -> dict[str, Any]:
    """`config.json` of a Llama with grouped keys."""
    heads = max(1, hidden // 64)
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(2.75 * hidden),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2),
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
    }


def setting_of(config: Mapping[str, Any], *, rows: int, tokens: int, is_gpu: bool, **changes: Any) -> Setting:  # noqa: ANN401
    """What the estimate is asked: one step of `rows` x `tokens` with NF4 weights; `changes` as in `Setting`."""
    shape = shape_from_config("bench", dict(config))
    # Rates take no part in what is asked of it: operations, and bytes of memory.
    machine = Machine(
        is_gpu=is_gpu,
        memory_bytes=2**40,
        flops_per_second=1.0,
        memory_bytes_per_second=1.0,
        cores=1.0,
        link_bytes_per_second=1.0,
        gather_bytes_per_second=1.0,
        link_alpha_seconds=0.0,
        h2d_bytes_per_second=1.0,
        known=False,
    )
    plain: dict[str, Any] = {
        "compute_dtype": "fp32",
        "load_dtype": "fp32",
        "adapter_dtype": "fp32",
        "checkpointing": Checkpointing.none,
        "stack": "trl",
        **changes,
    }
    return Setting(
        model=shape,
        adapter=adapter_shape(shape, AdapterConfig(rank=RANK)),
        batch=BatchShape(real_tokens_per_row=float(tokens), longest_tokens=tokens, fixed=True, padded=False),
        quant=Quant.nf4,
        double_quant=True,
        engine=Engine.ddp,
        world_size=1,
        micro=rows,
        rows=rows,
        accumulation=1,
        optimizer=Optimizer.adamw,
        allocator="",
        eager_attention=False,
        zero3=None,
        machine=machine,
        **plain,
    )
