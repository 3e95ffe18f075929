"""Arithmetic and storage types of a run, with the reason for each choice."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config import Dtype, Engine, Offload, Precision, Quant, RunConfig
from orchestrator.planner.world import World
from topology.hardware import supports_bf16

# DeepSpeed casts every floating tensor to its own 16-bit type, which must therefore be the storage type of packed
# bytes; in fp32 it casts nothing, and bf16 storage passes through bit for bit.
_COMPUTE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_STORAGE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The precision of the passes, why, and what to warn about."""

    precision: str
    reason: str
    warnings: tuple[str, ...] = ()


def choose_precision(config: RunConfig, world: World) -> Arithmetic:
    """Take the user's precision, or bf16 where every device has it, else fp16 on GPUs and fp32 on CPUs."""
    without = sorted({device.name for device in world.devices if not supports_bf16(device)})
    if config.precision is not Precision.auto:
        chosen = config.precision.value
        warnings: tuple[str, ...] = ()
        if chosen == "bf16" and without:
            warnings = (f"{', '.join(without)} has no bf16 unit: products are emulated and slow",)
        return Arithmetic(precision=chosen, reason=f"{chosen} was asked for", warnings=warnings)
    if not world.is_gpu:
        return Arithmetic(precision="fp32", reason="fp32, since CPU ranks are checked and fast enough in it")
    if without:
        capability = min(device.compute_capability or (0, 0) for device in world.devices)
        shown = ".".join(map(str, capability))
        return Arithmetic(
            precision="fp16",
            reason=f"fp16 with loss scaling, since {', '.join(without)} (compute capability {shown}) has no bf16 unit",
        )
    return Arithmetic(precision="bf16", reason="bf16, which every device computes at its full rate without a scaler")


def adapter_dtype(config: RunConfig, engine: Engine, precision: str) -> str:
    """Take the user's adapter dtype, or fp32 (small, and exact for AdamW); ZeRO-3 casts the module to one dtype."""
    wanted: str = config.adapter.dtype.value
    if wanted != Dtype.auto.value:
        return wanted
    return precision if engine is Engine.zero3 else "fp32"


def quant_storage(engine: Engine, precision: str) -> str:
    """Name the dtype packed bytes are stored under: DeepSpeed casts and gathers one dtype, others need none."""
    return _STORAGE[precision] if engine is Engine.zero3 else "uint8"


def swap_conflict(quant: Quant, precision: str, param: Offload) -> str | None:
    """Say why parameters of this storage type cannot go to NVMe, if so.

    DeepSpeed 0.19 gives its parameter swapper one dtype, that of the passes (`AsyncPartitionedParameterSwapper`), and
    its buffers hold no other.
    """
    storage = _STORAGE[precision]
    if param is not Offload.nvme or quant is Quant.none or storage == _COMPUTE[precision]:
        return None
    return (
        f"DeepSpeed's swapper holds {_COMPUTE[precision]} alone, and packed weights are stored as {storage}: use "
        "precision=bf16 or engine.offload_param=cpu"
    )


def type_conflict(engine: Engine, precision: str, adapters: str, *, is_gpu: bool) -> str | None:
    """Say why adapters of this dtype cannot train in this precision, if so.

    DeepSpeed 0.19 asks its accelerator (`is_fp16_supported`), which few CPUs affirm.
    """
    if engine is Engine.zero3 and precision == "fp16" and not is_gpu:
        return "DeepSpeed has no fp16 on CPU ranks: use precision=fp32 or bf16"
    if engine is Engine.zero3 and adapters != precision:
        return f"DeepSpeed casts the module to {precision}, so adapters cannot stay {adapters}: use adapter.dtype=auto"
    if engine is not Engine.zero3 and precision == "fp16" and adapters == "fp16":
        return "the loss scaler cannot unscale fp16 gradients: use adapter.dtype=fp32"
    return None
