"""The constants of step times on GPUs, with unit and source; `calibration` holds those of CPU ranks and of memory.

`counted` follows from the code that runs, `published` from figures of others, `prior` marks what nobody measured yet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from orchestrator.estimate.calibration import Constant


def _constant(value: float, unit: str, source: str) -> Constant:
    return Constant(value=value, unit=unit, source=source)


MEMORY_SHARE: Final = _constant(0.85, "of the memory bandwidth", "published stream tests on A100 and H100: 0.8-0.92")
ATTENTION_SHARE: Final = _constant(
    0.65,
    "of what large products reach",
    "published for FlashAttention-2 on A100, head 128, causal, 2k-8k tokens: 170-190 of 268 TFLOP/s both ways",
)
ATTENTION_BACKWARD: Final = _constant(2.5, "times the forward pass", "counted: five products instead of two")
NORM_BYTES: Final = _constant(
    36, "bytes per feature", "counted in transformers' RMSNorm in bf16: casts, square, mean, scale, weight"
)
LAYER_NORM_BYTES: Final = _constant(4, "bytes per feature", "counted: torch's fused LayerNorm reads and writes bf16")
UNGATED_BYTES: Final = _constant(4, "bytes per feature of an MLP without a gate", "counted: one activation kernel")
RESIDUAL_BYTES: Final = _constant(6, "bytes per feature", "counted: two reads and a write of bf16")
ROTARY_BYTES: Final = _constant(18, "bytes per feature of queries and keys", "counted: turn halves, two products, sum")
GATE_BYTES: Final = _constant(10, "bytes per feature of the MLP", "counted: activation and product in bf16")
ADAPTER_BYTES: Final = _constant(
    10, "bytes per output feature of an adapted module", "counted in PEFT: scaling, and the sum with the base's result"
)
ELEMENTWISE_BACKWARD: Final = _constant(2.0, "times the forward traffic", "counted: gradients read what forward read")
SCORE_BYTES: Final = _constant(16, "bytes per score of unfused attention", "counted: mask, fp32 softmax, cast, dropout")
LOGIT_BYTES: Final = _constant(46, "bytes per logit of a plain head", "counted: shift, fp32 copy, loss and gradients")
ROW_TILE: Final = _constant(128, "rows", "counted: rows of a product are computed in tiles of this many")
TILED_LOGIT_BYTES: Final = _constant(24, "bytes per logit of a tiled head", "counted: fp32 tile forward and backward")
DEQUANTISE_PER_CYCLE: Final = _constant(
    0.56,
    "weights per cycle of a multiprocessor",
    "published on A100 (152e9 cycles/s): fms-acceleration's and litgpt's NF4 rows against their 16-bit rows tell "
    "60-110e9 weights/s, a seventh of what memory allows: the kernel walks a tree of comparisons",
)
LAYER_HOST_SECONDS: Final = _constant(
    8e-4, "seconds of the host per layer and pass", "prior: 60-80 kernel launches of 10-12 us from Python"
)
ADAPTER_HOST_SECONDS: Final = _constant(
    1.5e-4, "seconds of the host per adapter and pass", "published: Qwen LoRA at 256 tokens, 1.6 ms a layer and pass"
)
EXPERT_HOST_SECONDS: Final = _constant(5e-5, "seconds of the host per expert's module and pass", "prior: 5 launches")
CHECKPOINT_HOST_SECONDS: Final = _constant(4e-4, "seconds of the host per checkpointed layer", "prior: RNG, hooks")
MICRO_STEP_HOST_SECONDS: Final = _constant(8e-3, "seconds per micro-step", "prior: trainer loop, collation, loss")
OPTIMIZER_TENSOR_SECONDS: Final = _constant(6e-5, "seconds per trained tensor", "prior: a dozen small kernels each")
ADAM_BYTES: Final = _constant(7, "times the bytes of what trains", "counted: 4 reads and 3 writes of AdamW, unfused")
CPU_ADAM_PARAMS: Final = _constant(
    0.9e9, "parameters per second and rank", "prior: an optimizer on the host, 28 bytes each at 25 GB/s a rank"
)
NVME_SHARE: Final = _constant(1.0, "of the drive's rate", "prior: large sequential reads")
FSDP_UNIT_HOST_SECONDS: Final = _constant(
    2e-3, "seconds of the host per FSDP unit and gather", "published: litgpt of 2023, two GPUs, 9.5-11 ms a layer"
)
STREAMED_LAYER_HOST_SECONDS: Final = _constant(
    5e-4, "seconds of the host per layer that streams and pass", "prior: hooks, events and launches of its transfers"
)
EXPERT_LOOP_SECONDS: Final = _constant(
    1.2e-3,
    "seconds per expert and pass that nothing overlaps",
    "published: fms-acceleration Mixtral GPTQ, 4 against 8 rows: transformers 4 lists each expert's tokens on the host",
)
GPTQ_ADAPTER_HOST_SECONDS: Final = _constant(
    3e-4, "seconds of the host per module and pass", "counted: 15 kernels more than a plain module"
)
TRITON_SHARE: Final = _constant(0.6, "of the memory bandwidth", "prior: one kernel that unpacks, write-bound")
GPTQ_TORCH_BYTES: Final = _constant(
    22, "bytes per weight", "counted in AutoGPTQ's torch path: int32 shifts, int8 masks, gathered scales, difference"
)
COMPILED_SHARE: Final = _constant(0.35, "of the plain traffic", "counted: torch.compile fuses norms, casts and gates")
COLLECTIVE_SHARE: Final = _constant(
    0.15, "of the compute beside a collective", "prior: NCCL runs 16-24 blocks on the 108 multiprocessors of an A100"
)
LITGPT_LAYER_HOST_SECONDS: Final = _constant(
    2e-3,
    "seconds of the host per layer and pass",
    "published: litgpt's table of 2023, 1.2 ms by its Adapter rows, and 0.8 ms for LoRA on the fused projection",
)
OPTIMISTIC: Final = _constant(0.85, "of the expected time", "lower bound: products and kernels that much faster")
PESSIMISTIC: Final = _constant(1.6, "times the expected time", "upper bound: small products, throttled clocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What large bf16 products of a family of GPUs reach, as a share of the rated dense peak.

    `name` is a pattern over the device's name in lower case; the first match of the table counts. `cycle_flops` are the
    rated operations of a multiprocessor per cycle, `cycle_flops_fp32` the same without tensor cores.
    """

    name: str
    share: float
    source: str
    cycle_flops: int = 2048
    cycle_flops_fp32: int = 256


_BENCH: Final = "mag-/gpu_benchmark"
_BOOK: Final = "stas00/ml-engineering, accelerator chapter"
GENERATIONS: Final[tuple[Generation, ...]] = (
    Generation(
        name=r"v100|titan v", cycle_flops=1024, cycle_flops_fp32=128, share=0.77, source=f"{_BENCH}: V100 96.1 of 125"
    ),
    Generation(
        name=r"\bt4\b|quadro rtx|titan rtx|rtx 20\d0",
        cycle_flops_fp32=128,
        share=0.8,
        cycle_flops=1024,
        source="prior: Turing as unknown",
    ),
    Generation(
        name=r"a[18]00.*pcie", cycle_flops_fp32=128, share=0.82, source=f"{_BOOK}: A100 PCIe 252.9-256.4 of 312 TFLOP/s"
    ),
    Generation(
        name=r"a[18]00|a30\b", cycle_flops_fp32=128, share=0.86, source=f"{_BOOK}: A100 SXM 267.9-271.2 of 312 TFLOP/s"
    ),
    Generation(name=r"a10g", cycle_flops=512, share=1.0, source=f"{_BENCH}: A10G 69.7 of 70"),
    Generation(
        name=r"rtx 30[5-9]0",
        cycle_flops=512,
        share=1.08,
        source=f"{_BENCH}: RTX 3090 78.0 of 71, 3090 Ti 86.0 of 80 (clocks)",
    ),
    Generation(
        name=r"rtx 40[5-9]0",
        cycle_flops=512,
        share=1.08,
        source=f"{_BENCH}: RTX 4090 178.8 of 165.2 (clocks)",
    ),
    Generation(
        name=r"\bada\b|l40|\bl4\b",
        cycle_flops=1024,
        share=0.74,
        source=f"{_BENCH}: 6000 Ada 278.5 of 364, L40S 252 of 362, L4 91 of 121",
    ),
    Generation(
        name=r"rtx a\d|a40\b|a10\b|a16\b|a2\b",
        cycle_flops=1024,
        share=0.845,
        source=f"{_BENCH}: RTX A6000 131.2 of 154.8, A5000 93.9",
    ),
    Generation(
        name=r"h[18]00 (?:nvl|pcie)|h100-pcie|h200 nvl",
        cycle_flops=4096,
        share=0.63,
        source=f"{_BENCH}: 499.5/756, 488.5/835",
    ),
    Generation(
        name=r"h[128]00|gh200|h20\b", cycle_flops=4096, share=0.81, source=f"{_BOOK}: H100 SXM 794.5 of 989 TFLOP/s"
    ),
    Generation(name=r"b[23]00|gb[23]00", cycle_flops=8192, share=0.776, source=f"{_BOOK}: B200 1745 of 2250 TFLOP/s"),
    Generation(name=r"rtx 50\d0", share=1.0, cycle_flops=512, source="prior: no measurement at hand, as rated"),
    Generation(name=r"rtx pro|blackwell", share=0.75, cycle_flops=1024, source="prior: as the cards of Ada's make"),
    Generation(name=r"mi300", share=0.6, source=f"{_BOOK}: MI300X 782-788 of 1307 TFLOP/s"),
)
UNKNOWN_GENERATION: Final = Generation(name="", share=0.8, source="prior: between A100 (0.86) and B200 (0.78)")


@lru_cache(64)
def generation_of(device_name: str) -> Generation:
    """The row of `GENERATIONS` for a device's name."""
    lower = device_name.lower()
    return next((row for row in GENERATIONS if re.search(row.name, lower)), UNKNOWN_GENERATION)


# Constants that were set, or confirmed, with the published step times in sight that they are compared with.
SEEN: Final = frozenset(
    {
        "DEQUANTISE_PER_CYCLE",
        "ADAPTER_HOST_SECONDS",
        "FSDP_UNIT_HOST_SECONDS",
        "EXPERT_LOOP_SECONDS",
        "GPTQ_ADAPTER_HOST_SECONDS",
        "LITGPT_LAYER_HOST_SECONDS",
        "CPU_ADAM_PARAMS",
        "COLLECTIVE_SHARE",
    }
)


def table() -> tuple[tuple[str, Constant], ...]:
    """All constants by name, for the documentation."""
    return tuple((name, value) for name, value in globals().items() if isinstance(value, Constant))
