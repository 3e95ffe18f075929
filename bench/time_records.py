"""How published step times are read: a record's words as a setting, with the rules in tables.

What a record does not tell is assumed here and nowhere else.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from orchestrator.config import AdapterConfig, Checkpointing, Engine, Optimizer, Quant
from orchestrator.estimate.setting import Machine, Setting, Sharding, Stage, Trained
from orchestrator.estimate.time_compute import products_work, rates_of
from orchestrator.workload.adapter import adapter_shape
from orchestrator.workload.batch import BatchShape
from orchestrator.workload.model import ModelShape
from orchestrator.workload.named import preset_shape
from topology.hardware import Precision, peak

Record = Mapping[str, Any]
RECORDS: Final = Path(__file__).resolve().parents[2] / "shared" / "corpus" / "memory_numbers.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """How a record's words for its machine are read.

    `link` and `host` are bytes per second between the GPUs, and from pinned memory.
    """

    pattern: str
    device: str
    link: float
    host: float
    why: str


# NVLink: 12 lanes of 20 GB/s, 80% of them. PCIe without peer access: every byte crosses host memory.
_NVLINK: Final = 12 * 20e9 * 0.8
BOXES: Final = (
    Box(
        pattern="RTX3090", device="NVIDIA GeForce RTX 3090", link=3e9, host=6e9, why="older board: PCIe 3.0 x8, no P2P"
    ),
    Box(pattern="RTX4090", device="NVIDIA GeForce RTX 4090", link=9.6e9, host=22e9, why="PCIe 4.0 x16, no P2P"),
    Box(pattern="A5000", device="NVIDIA RTX A5000", link=6e9, host=6e9, why="PCIe x4 and x8"),
    Box(pattern="A6000Ada", device="NVIDIA RTX 6000 Ada Generation", link=9.6e9, host=12e9, why="PCIe"),
    Box(pattern="A6000", device="NVIDIA RTX A6000", link=9.6e9, host=12e9, why="one card"),
    Box(pattern="A10G", device="NVIDIA A10G", link=9.6e9, host=12e9, why="one card"),
    Box(pattern="A100-40GB", device="NVIDIA A100-SXM4-40GB", link=_NVLINK, host=22e9, why="NVLink"),
    Box(
        pattern="^A100-80GB$",
        device="NVIDIA A100 80GB PCIe",
        link=20e9 * 0.8,
        host=22e9,
        why="no SXM told: PCIe 4.0 through one switch",
    ),
    Box(pattern="A100", device="NVIDIA A100-SXM4-80GB", link=_NVLINK, host=22e9, why="NVLink; 80 GB where not told"),
)

MODELS: Final = {
    "Yi-34B": "01-ai/Yi-34B",
    "StableLM Alpha 3 B": "stablelm-alpha-3b",
    "Llama 2 7 B": "llama-2-7b",
    "Llama 2 13 B": "llama-2-13b",
}
# Which leaves of a layer a record's target words mean.
TARGETS: Final = {
    "q": ("q_proj", "query_key_value", "qkv_proj", "c_attn", "Wqkv"),
    "k": ("k_proj", "query_key_value", "qkv_proj", "c_attn", "Wqkv"),
    "v": ("v_proj", "query_key_value", "qkv_proj", "c_attn", "Wqkv"),
    "o": ("o_proj", "dense", "out_proj"),
    "gate": ("gate_proj",),
    "up": ("up_proj",),
    "down": ("down_proj",),
    "mlp": ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h"),
    "c_attn": ("c_attn",),
    "c_proj": ("c_proj",),
    "w1": ("w1",),
    "w2": ("w2",),
}
_WORDS: Final = {"query": "q", "key": "k", "value": "v", "projection": "o"}
# Alpaca rows with their prompt, as a log-normal: nobody publishes the lengths of these runs. The two means are chosen,
# one to each set; the tokenizer's share is told by the longest row of the full set (1304 against 1034 to 1079 tokens).
ALPACA_MEAN: Final = 140.0
ALPACA_2K_MEAN: Final = 207.0
LLAMA_TOKENIZER: Final = 1304 / 1044
LLAMA_VOCABULARIES: Final = (32000, 32064)
ALPACA_SIGMA: Final = 0.75
ALPACA_ROWS: Final = 1900  # of 2000, with a validation share of 5%
ALPACA_EVAL_EVERY: Final = 100  # steps
_SHARES: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A record as a setting, with the measured seconds of an optimizer step."""

    id: str
    machine: str
    setting: Setting
    measured_seconds: float
    evaluation: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A record that is not compared, and why."""

    id: str
    reason: str


def read_records(path: Path = RECORDS) -> tuple[Record, ...]:
    """The records that tell a throughput."""
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(row for row in rows if row.get("throughput"))


def interpret(record: Record) -> Reading | Left:
    """A record as a setting, or the reason why not."""
    reason = _reason_against(record)
    if reason:
        return Left(id=record["id"], reason=reason)
    setting = _setting(record)
    seconds, evaluation = _measured(record, setting)
    least = compute_floor(setting)
    if seconds < least:
        reason = f"contradicts physics: its products alone take {least:.2f} s at the best published rate of the card"
        return Left(id=record["id"], reason=f"{reason}, the whole step took {seconds:.2f} s")
    machine = f"{_box(record).device.removeprefix('NVIDIA ')} | {_family(record)}"
    return Reading(id=record["id"], machine=machine, setting=setting, measured_seconds=seconds, evaluation=evaluation)


def compute_floor(setting: Setting) -> float:
    """Seconds that the products of a step take at the best rate ever measured on such a card."""
    forward, backward = products_work(setting)
    return setting.accumulation * (forward.flops + backward.flops) / rates_of(setting).products


def _reason_against(record: Record) -> str:
    throughput = record["throughput"]
    if record["kind"] == "oom":
        return "ran out of memory: nothing was timed"
    if "value" in throughput:
        return "the column's unit is not visible in the stored copy"
    if record["n_nodes"] > 1:
        return (
            "contradicts the same page: 1.75-1.8 times the time of one GPU at every length, though only adapter "
            "gradients travel, whose bytes do not grow with the length"
        )
    return ""


def _family(record: Record) -> str:
    name = record["framework"]
    for word in ("fsdp_qlora", "torchtune", "litgpt (2023)", "litgpt", "fms", "Qwen"):
        if word in name:
            return {"litgpt (2023)": "litgpt 2023", "Qwen": "Qwen finetune.py", "fms": "fms-hf-tuning"}.get(word, word)
    return str(name)


def _box(record: Record) -> Box:
    return next(box for box in BOXES if re.search(box.pattern, record["gpu"]))


def _machine(record: Record) -> Machine:
    box = _box(record)
    found = peak(box.device)
    if found is None:
        msg = f"no peak of {box.device}"
        raise ValueError(msg)
    return Machine(
        is_gpu=True,
        memory_bytes=found.memory_bytes,
        flops_per_second=found.flops_per_second[Precision.fp16],
        memory_bytes_per_second=found.memory_bytes_per_second,
        cores=1.0,
        link_bytes_per_second=box.link,
        gather_bytes_per_second=box.link,
        link_alpha_seconds=3e-5,
        h2d_bytes_per_second=box.host,
        known=True,
        device_name=box.device,
    )


def _stack(record: Record) -> str:
    """Which practice the record's code follows."""
    family, quant = _family(record), record["quant"] or ""
    if family.startswith("litgpt"):
        return "litgpt"
    if family == "torchtune":
        return "compiled" if "compile" in (record["loss_kernel"] or "") else "hf_fsdp"
    if family == "Qwen finetune.py":
        return "hf_gptq_torch" if "gptq" in quant else "hf_plain"
    if family == "fms-hf-tuning":
        if "gptq" in quant:
            return "hf_gptq_triton"
        # On one GPU PEFT's preparation leaves hidden states in fp32; FSDP casts them back.
        return "hf_upcast" if "baseline" in record["id"] and record["n_gpus"] == 1 else "hf_fsdp"
    return "hf_fsdp"


def _sharding(record: Record) -> Sharding | None:
    words, offload = record["sharding"] or "none", record["offload"] or "none"
    if words == "none" or "no_shard" in words or record["n_gpus"] == 1:
        return None
    stage = Stage.zero2 if "zero2" in words else Stage.zero3 if "zero3" in words else Stage.fsdp
    return Sharding(stage=stage, offload_params="param" in offload, offload_optimizer="optimizer" in offload)


def _model(record: Record) -> ModelShape:
    # The rows of the folder gemma2-2b are told as gemma-2b.
    name = "gemma-2-2b" if "gemma2-2b" in record["id"] else record["model"]
    return preset_shape(MODELS.get(name, name))


def _targets(record: Record, model: ModelShape) -> tuple[str, ...]:
    words = record["lora_targets"] or "q,v"
    words = re.sub(r"\(.*?\)", "", words).replace("all MLP", "mlp").replace("+", ",")
    leaves = {linear.leaf for linear in model.linears}
    wanted = [_WORDS.get(word.strip(), word.strip()) for word in words.split(",")]
    found = [leaf for word in wanted for leaf in TARGETS.get(word, ()) if leaf in leaves]
    return tuple(dict.fromkeys(found))


def _batch(record: Record) -> BatchShape:
    length = int(record["seq_len"])
    if not _family(record).startswith("litgpt"):
        return BatchShape(real_tokens_per_row=length, longest_tokens=length, fixed=True, padded=False)
    mean = ALPACA_2K_MEAN if _family(record) == "litgpt" else ALPACA_MEAN
    if _model(record).vocab in LLAMA_VOCABULARIES:
        mean *= LLAMA_TOKENIZER
    normal = statistics.NormalDist(math.log(mean) - ALPACA_SIGMA**2 / 2, ALPACA_SIGMA)
    shares = tuple(min(length, round(math.exp(normal.inv_cdf((i + 0.5) / _SHARES)))) for i in range(_SHARES))
    return BatchShape(
        real_tokens_per_row=statistics.fmean(shares),
        longest_tokens=length,
        fixed=False,
        padded=False,  # litgpt masks no padding
        quantiles=shares,
    )


def _setting(record: Record) -> Setting:
    model = _model(record)
    adapter = AdapterConfig(rank=int(record["lora_r"] or 8), targets=_targets(record, model) or ("all-linear",))
    quant = record["quant"] or "none"
    micro, accumulation = int(record["micro_batch"]), int(record["grad_accum"] or 1)
    dtype = "fp16" if "fp16" in record["compute_dtype"] else "bf16"
    return Setting(
        model=model,
        adapter=adapter_shape(model, adapter),
        batch=_batch(record),
        quant=Quant.none if quant == "none" else Quant.nf4,
        double_quant="dq" in quant,
        engine=Engine.ddp,
        world_size=int(record["n_gpus"]),
        micro=micro,
        rows=micro * accumulation,
        accumulation=accumulation,
        compute_dtype=dtype,
        load_dtype=dtype,
        adapter_dtype=dtype,
        checkpointing=Checkpointing.full if record["grad_ckpt"] else Checkpointing.none,
        optimizer=Optimizer.adamw,
        allocator="",
        eager_attention=False,
        flash_attention=record["attn"] == "flash_attention_2",
        zero3=None,
        machine=_machine(record),
        stack=_stack(record),
        trained=Trained.everything if record["method"] == "full" else Trained.adapters,
        sharding=_sharding(record),
        offload_activations="activation" in (record["offload"] or ""),
    )


def _measured(record: Record, setting: Setting) -> tuple[float, float]:
    """Seconds of an optimizer step, and what validation adds to it as a share."""
    throughput = record["throughput"]
    tokens = setting.rows * setting.batch.real_tokens_per_row
    if "seconds_for_1024_samples" in throughput:
        return throughput["seconds_for_1024_samples"] * setting.rows * setting.world_size / 1024, 0.0
    if "tokens_per_s_total" in throughput:
        return tokens * setting.world_size / throughput["tokens_per_s_total"], 0.0
    if "tokens_per_gpu_per_s" in throughput:
        return tokens / throughput["tokens_per_gpu_per_s"], 0.0
    if "s_per_iter" in throughput:
        return float(throughput["s_per_iter"]), 0.0
    if "min_per_1k_iter" in throughput:
        # An iteration is a micro-step.
        return float(throughput["min_per_1k_iter"]) * 60 / 1000 * setting.accumulation, 0.0
    seconds = float(throughput["runtime_min"].split()[0]) * 60
    steps = ALPACA_ROWS * int(throughput["epochs"]) / setting.rows
    # Every 100 steps the other 100 rows pass forward, a third of a step's work each.
    rounds = int(steps / ALPACA_EVAL_EVERY) + 1
    return seconds / steps, rounds * 100 / 3 / (steps * setting.rows)
