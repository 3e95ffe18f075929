"""What is trained in these tests, and how it is streamed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import GPT2Config, LlamaConfig, MixtralConfig

from orchestrator.weights.cut import Tier

VOCABULARY, LENGTH, STEPS = 96, 12, 3
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA = {
    **SIZES,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**LLAMA, tie_word_embeddings=False),
    "tied": lambda: LlamaConfig(**LLAMA, tie_word_embeddings=True),
    "biased": lambda: LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True),
    "gpt2": lambda: GPT2Config(**SIZES, n_embd=64, n_layer=3, n_head=4, n_positions=64),
    "moe": lambda: MixtralConfig(**{**LLAMA, "num_hidden_layers": 2}, num_local_experts=2, num_experts_per_tok=1),
}
QUANTS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False},
    "nf4_double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "nf4_bf16": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_quant_storage": torch.bfloat16,
    },
    "int8": {"load_in_8bit": True},
    "none": {},
}
ADAPTERS: dict[str, dict[str, Any]] = {"lora": {}, "dora": {"use_dora": True}, "rslora": {"use_rslora": True}}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is trained; `ddp` and `streamed` must agree on it."""

    model: str = "llama"
    quant: str = "nf4_double"
    adapter: str = "lora"
    checkpointing: str = "full"
    reentrant: bool = False
    recomputed_layers: int | None = None
    accumulation: int = 1
    in_the_middle: bool = False  # evaluate and generate after the first step


@dataclass(frozen=True, kw_only=True)
class Case:
    """How it is streamed."""

    work: Work
    shares: tuple[dict[Tier, int], ...]
    window: int = 2
    residents: float = 0.0  # share of the layers' bytes that every rank has room for
    chunk_bytes: int = 4096
    is_routed: bool = False
    island: int = 0  # ranks that share one copy; 0 for all


def device(*weights: int) -> tuple[dict[Tier, int], ...]:
    return tuple({Tier.device: weight} for weight in weights)


W = Work()
MIXED = Work(in_the_middle=True, accumulation=2)
LOADED = [
    MIXED,
    replace(W, adapter="dora"),
    replace(W, quant="int8"),
    replace(W, quant="none", checkpointing="none"),
    replace(W, model="tied"),
    replace(W, model="biased"),
    replace(W, model="moe"),
]
CASES: dict[int, list[Case]] = {
    1: [
        Case(work=W, shares=device(1), window=1),
        Case(work=MIXED, shares=({Tier.device: 1, Tier.host: 3},), window=2),
        Case(work=MIXED, shares=({Tier.host: 1},), window=2, residents=0.5),
        Case(work=replace(W, quant="int8"), shares=({Tier.nvme: 1, Tier.host: 1},), window=3),
        Case(work=replace(W, quant="none", checkpointing="none"), shares=({Tier.nvme: 1},), window=1),
    ],
    2: [
        *(
            Case(work=work, shares=device(*cut), window=window)
            for work, cut, window in (
                (W, (50, 50), 1),
                (W, (70, 30), 3),
                (replace(MIXED, checkpointing="none"), (70, 30), 2),
                (replace(W, checkpointing="none"), (0, 1), 1),
                (replace(W, quant="nf4", accumulation=2), (70, 30), 3),
                (replace(W, quant="nf4_bf16", checkpointing="none"), (50, 50), 2),
                (replace(W, quant="int8", in_the_middle=True), (70, 30), 2),
                (replace(W, quant="int8", checkpointing="none"), (30, 70), 1),
                (replace(W, quant="none"), (70, 30), 1),
                (replace(W, quant="none", checkpointing="none", accumulation=2), (50, 50), 2),
                (replace(W, reentrant=True), (50, 50), 2),
                (replace(W, reentrant=True, quant="none"), (70, 30), 1),
                (replace(W, checkpointing="selective"), (70, 30), 2),
                (replace(W, recomputed_layers=2), (70, 30), 2),
                (replace(W, adapter="dora"), (70, 30), 2),
                (replace(W, adapter="dora", quant="none", checkpointing="none"), (50, 50), 1),
                (replace(W, adapter="rslora"), (50, 50), 2),
                (replace(W, model="tied", in_the_middle=True), (70, 30), 2),
                (replace(W, model="biased"), (70, 30), 2),
                (replace(W, model="biased", quant="int8", checkpointing="none"), (70, 30), 2),
                (replace(W, model="gpt2", in_the_middle=True), (70, 30), 2),
                (replace(W, model="moe"), (70, 30), 1),
                (replace(W, model="moe", quant="none", checkpointing="none"), (70, 30), 2),
            )
        ),
        Case(work=W, shares=({Tier.device: 1, Tier.host: 1}, {Tier.nvme: 2}), window=2),
        Case(work=MIXED, shares=device(1, 1), window=2, residents=0.5),
        Case(work=W, shares=device(70, 30), is_routed=True),
    ],
    3: [
        Case(work=W, shares=device(60, 25, 15), window=2),
        Case(work=W, shares=device(60, 0, 40), window=3, is_routed=True),
        Case(work=MIXED, shares=device(60, 40, 0), window=3),
        Case(
            work=replace(W, checkpointing="none"), shares=({Tier.device: 1}, {Tier.host: 2}, {Tier.nvme: 1}), window=1
        ),
    ],
    4: [
        Case(work=W, shares=device(1, 1, 1, 1), window=2),
        Case(work=replace(W, in_the_middle=True), shares=device(70, 30), island=2),
        Case(work=replace(MIXED, checkpointing="none"), shares=device(0, 3, 2, 1), window=2),
    ],
}
