"""The runs whose live storages are counted, and the model they train."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_TOKENS: Final = 192
_MICRO: Final = 2
_ACCUMULATION: Final = 2

DDP: Final = "engine=ddp"
_OFFLOADS: Final = (("none", "none"), ("none", "cpu"), ("cpu", "cpu"))
_NF4: Final = "base=nf4"
_HALF: Final = "checkpointing_layers=1"  # of two
_CHECKPOINTING: Final = ("checkpointing=full", "checkpointing=none")


def zero3(param: str, optimizer: str) -> str:
    """ZeRO-3 with what it offloads."""
    return f"engine=zero3 engine.offload_param={param} engine.offload_optimizer={optimizer}"


def quick_grid() -> list[str]:
    """A run of each engine and offload."""
    return [
        f"devices=2 {DDP} {_NF4} checkpointing=none",
        *(f"devices=2 {zero3(*offload)} {_NF4} checkpointing=full" for offload in _OFFLOADS),
    ]


def grid() -> list[str]:
    """Every engine, offload and storage of the base on two ranks, and what else changes a term."""
    rows = [f"devices=2 {DDP} {quant} {how}" for quant in (_NF4, "base=int8", "base=none") for how in _CHECKPOINTING]
    rows += [
        f"devices=2 {zero3(*offload)} {base}"
        for offload in _OFFLOADS
        for base in (*(f"{_NF4} {how}" for how in _CHECKPOINTING), "base=none checkpointing=full")
    ]
    whole = f"devices=2 {zero3('cpu', 'cpu')}"
    rows += [
        f"{whole} base=none checkpointing=none",
        f"devices=1 {DDP} {_NF4} checkpointing=none",
        *(f"devices=1 {zero3(*offload)} {_NF4} checkpointing=full" for offload in _OFFLOADS[::2]),
        f"devices=2 {DDP} {_NF4} base.double_quant=false checkpointing=full",
        *(f"devices=2 {DDP} {_NF4} checkpointing=full optimizer={x}" for x in ("adamw_8bit", "paged_adamw_8bit")),
        f"devices=2 {DDP} {_NF4} checkpointing=full precision=bf16",
        *(f"devices=2 {DDP} {_NF4} checkpointing={how} {_HALF}" for how in ("full", "selective")),
        *(f"devices=2 {zero3(*offload)} {_NF4} checkpointing=full {_HALF}" for offload in _OFFLOADS[::2]),
        f"{whole} {_NF4} base.double_quant=false checkpointing=full",
        f"{whole} {_NF4} checkpointing=full engine.param_persistence_threshold=2048",
        f"{whole} {_NF4} checkpointing=full engine.max_live_parameters=1000000",
        f"{whole} {_NF4} checkpointing=full precision=bf16",
    ]
    return rows


def num_ranks(row: str) -> int:
    """Ranks of a run."""
    return int(row.partition("devices=")[2].partition(" ")[0])


def folder_name(row: str) -> str:
    """A run's folder."""
    return re.sub(r"[^\w.]+", "-", row)


def common(model: Path, row: str) -> list[str]:
    """Settings of every run: two steps of two micro-batches, each of the same length."""
    return [
        f"model={model}",
        f"data={ROOT / 'examples' / 'data' / 'train.jsonl'}",
        f"data.seq_len={_TOKENS}",
        "data.padding=static",
        "data.eval_fraction=0",
        "batch.max_steps=2",
        f"batch.micro={_MICRO}",
        f"batch.global={_MICRO * _ACCUMULATION * num_ranks(row)}",
        "eval.before=false",
        "checkpoint.every=0",
    ]


def make_model(folder: Path) -> int:
    """Write a Llama of 16 million parameters, 66 MB in fp32, with random weights and the shipped tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if (folder / "config.json").exists():
        return 0
    folder.mkdir(parents=True)
    for name in _TOKENIZER:
        shutil.copy(ROOT / "examples" / "base" / name, folder / name)
    config = LlamaConfig(
        hidden_size=768,
        intermediate_size=2112,
        num_hidden_layers=2,
        num_attention_heads=12,
        num_key_value_heads=6,
        vocab_size=4096,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return 0
