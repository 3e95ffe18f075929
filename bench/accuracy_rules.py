"""What published measurements leave out, and what is assumed instead: per software stack, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from orchestrator.estimate.setting import Gradients
from topology.units import GIB

# First match in `framework` decides.
FAMILIES: Final = (
    ("Qwen finetune", "qwen"),
    ("fms", "fms"),
    ("litgpt (2023)", "litgpt_2023"),
    ("litgpt", "litgpt"),
    ("Unsloth", "unsloth"),
    ("fsdp_qlora", "fsdp_qlora"),
    ("torchtune", "torchtune"),
    ("ms-swift", "ms_swift"),
    ("DeepSpeed+HF", "deepspeed_hf"),
    ("HF+FA2", "hf_fa2"),
    ("TRL", "trl_sft"),
)
# Records that no setting explains.
_MOMENTS: Final = "contradicts physics: weights, gradients and two bf16 moments alone need {} GB, {} were measured"
CONTRADICTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "litgpt-llama-3.2-1B-full": _MOMENTS.format("9.9", "8.7"),
        "litgpt-llama-3.2-3B-full": _MOMENTS.format("25.7", "16.5"),
        "torchtune-8b-full-a6000": "contradicts the row with the same label on another card (half the memory), and its "
        "optimizer is not told",
    }
)


# Assumptions on single records: part of the id, what is assumed, and why.
UPCASTS: Final = "fp32 up-casts"
AUTOCAST: Final = "a loss in fp32"
GEMMA_2: Final = "the model is Gemma 2 2B"
SPECIAL: Final = (
    ("fms-baseline", UPCASTS, "the record's note: PEFT's preparation is left as it is; under FSDP nothing shows it"),
    ("-2node-", AUTOCAST, "its ZeRO stage is not told, and peaks grow by 16 bytes a logit, as under autocast"),
    ("litgpt-gemma2-2b", GEMMA_2, "the recipe's folder is gemma2-2b"),
)


def is_special(record: str, assumed: str) -> bool:
    """Whether the table assumes this of the record of this id."""
    return any(part in record and what == assumed for part, what, _ in SPECIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a family's records leave out.

    Attributes:
        adapter_dtype: of the adapters; empty for the compute dtype.
        autocast: 16-bit compute comes from autocast unless DeepSpeed holds the states.
        dropout: of the adapters.
        double_quant: whatever `quant` says; None for what it says.
        upcasts: a bnb base on one device has gone through PEFT's preparation.
        optimizer: where the record tells none.
        metric: what a peak is when `peak_metric` does not say.
        unit: bytes of a "GB" that may be either.
        older: transformers 4 or litgpt: experts are linear modules.
        own_head: a tied head is loaded as a table of its own, and packed like any linear module.
        deepspeed_full: full fine-tuning goes through DeepSpeed even on one device.
        gradients: how FSDP adds up micro-steps.
        fsdp_masters: full fine-tuning under FSDP holds parameters, gradients and moments in fp32.
        why: where this comes from.
    """

    adapter_dtype: str = ""
    autocast: bool = True
    dropout: float = 0.0
    double_quant: bool | None = None
    upcasts: bool = False
    optimizer: str = ""
    metric: str = "device"
    unit: int = GIB
    older: bool = True
    own_head: bool = False
    deepspeed_full: bool = False
    fsdp_masters: bool = False
    gradients: Gradients = Gradients.trained
    why: str = ""


RULES: Final[Mapping[str, Rules]] = MappingProxyType(
    {
        "qwen": Rules(
            dropout=0.05,
            deepspeed_full=True,
            why="finetune.py of QwenLM/Qwen: PEFT follows the weights' dtype, LoRA runs under bf16 autocast, the "
            "Q-LoRA and full scripts start DeepSpeed; peaks grow in steps, so they are reserved or nvidia-smi bytes; "
            "GB read as GiB, as nvidia-smi prints MiB (read as 1e9 bytes, slack 0.08 fits as well)",
        ),
        "fms": Rules(
            autocast=True,
            double_quant=True,
            metric="allocated",
            why="framework_plugin_bnb.py sets double quantisation and, in the accelerated runs, no up-cast; the float "
            "logits of transformers 4.4x are fp32 with and without autocast",
        ),
        "litgpt": Rules(
            autocast=False,
            dropout=0.05,
            metric="allocated",
            own_head=True,
            why="bf16-true; config hub: dropout 0.05; max_memory_allocated",
        ),
        "litgpt_2023": Rules(
            autocast=False,
            dropout=0.05,
            metric="allocated",
            own_head=True,
            gradients=Gradients.flat,
            why="bf16-true; script defaults; max_memory_allocated; finetune/lora.py wraps whole blocks, adapters and "
            "frozen weights together, and Fabric's no_backward_sync leaves their gradients unsharded",
        ),
        "unsloth": Rules(
            adapter_dtype="fp32",
            optimizer="adamw_8bit",
            why="its notebooks: fp32 adapters, adamw_8bit; the card's size is what nvidia-smi shows",
        ),
        "fsdp_qlora": Rules(
            autocast=False, dropout=0.1, metric="reserved", why="train.py: precision bf16 without autocast, dropout 0.1"
        ),
        "torchtune": Rules(
            autocast=False,
            double_quant=True,
            metric="allocated",
            gradients=Gradients.sharded,
            why="recipes: bf16; NF4Tensor nests scales; its rows agree with one another as allocated bytes",
        ),
        "ms_swift": Rules(adapter_dtype="fp32", metric="reserved", older=False, why="the headers' own word: reserved"),
        "deepspeed_hf": Rules(autocast=False, metric="device", why="DeepSpeed holds 16-bit parameters"),
        "hf_fa2": Rules(adapter_dtype="fp32", upcasts=True, why="prepare_model_for_kbit_training and bf16 autocast"),
        "trl_sft": Rules(adapter_dtype="fp32", upcasts=True, metric="reserved", why="the notebook's own cells"),
    }
)
OTHERS: Final = Rules(
    adapter_dtype="fp32",
    upcasts=True,
    fsdp_masters=True,
    why="today's PEFT on transformers: fp32 adapters, up-casts on a bnb base; accelerate widens what FSDP trains",
)
