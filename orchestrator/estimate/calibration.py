"""Every constant of the estimates in one table, with its unit and source.

`measured` names the software; values measured on a CPU are of one thread of an AVX512-BF16 server core. `prior`
marks a value that nobody here has measured yet: it is set so that estimates err above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from topology.units import GB, GIB, MIB

_STACK: Final = "torch 2.13, transformers 5.24, TRL 1.16, PEFT 0.21, bitsandbytes 0.50, DeepSpeed 0.19.8"
_MEASURED: Final = f"measured, {_STACK}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A number of the estimates."""

    value: float
    unit: str
    source: str


def _constant(value: float, unit: str, source: str) -> Constant:
    return Constant(value=value, unit=unit, source=source)


# Layout of bitsandbytes' 4-bit storage: exact, and checked against a quantised layer in the tests.
BLOCK_WEIGHTS: Final = 64
NESTED_BLOCK: Final = 256
NESTED_EXTRA_BYTES: Final = 4 + 256 * 4 + 16 * 4  # offset, code book of the scales, code book of the weights
# TRL's fused head: trl/kernels/chunked_logprob.py TOKEN_CHUNK_SIZE, trl/trainer/utils.py _CHUNKED_LOGPROB_CHUNK_SIZE.
HEAD_TILE_TOKENS: Final = 4096
HEAD_TILE_VOCAB: Final = 32768
# torch.optim.AdamW keeps two moments in the parameter's dtype; bitsandbytes two bytes and two fp32 per 256 elements.
ADAM_8BIT_BYTES: Final = 2 + 2 * 4 / 256
# Logits in transformers' own loss: result of log-softmax, its gradient and the gradient of its input, all fp32
# (transformers/loss/loss_utils.py upcasts; checked by bench/fake_memory.py).
PLAIN_LOSS_BYTES: Final = 12
TILE_LOGIT_BYTES: Final = 2  # of a tile of TRL's fused head in 16 bits: what `bench` counts it against
DDP_BUCKET_BYTES: Final = 25 * MIB  # DistributedDataParallel's default bucket_cap_mb

# --- memory
HEAD_TILE_COPIES_CPU: Final = _constant(
    7.25, "fp32 copies of a tile", "counted in trl/kernels/chunked_logprob.py _backward_tile (no Triton on CPUs)"
)
CUDA_CONTEXT_BYTES: Final = _constant(
    0.9 * GIB, "bytes", "prior: context, cuBLAS workspaces and NCCL buffers; published: Unsloth Studio 1.4, others 0.5"
)
RANKS_EXTRA_CONTEXT_BYTES: Final = _constant(0.5 * GIB, "bytes", "prior: NCCL channels of a world above one rank")
FRAGMENTATION_EXPANDABLE: Final = _constant(0.05, "of allocated", "prior: expandable_segments:True")
FRAGMENTATION: Final = _constant(0.12, "of allocated", "prior: caching allocator with rows of varying length")
HEAP_SLACK_CPU: Final = _constant(0.15, "of allocated", "prior: glibc keeps freed blocks of varying size")
HEAP_RETENTION_CPU: Final = _constant(
    1.1,
    "times the kept activations",
    f"{_MEASURED}: second step of a 0.2B model without checkpointing, peak RSS 8.3 GiB at 2048 tokens where "
    "tensors alone explain 5.6: glibc does not return or fully reuse freed blocks below 32 MiB",
)
HEAP_AFTER_TRAINING_CPU: Final = _constant(
    0.6,
    "of what training held above saving",
    f"{_MEASURED}: two ranks of a 5M model; the heap is not returned, and 0.1 (ddp) to 0.3 (zero3) was still resident",
)
RUNTIME_CPU_BYTES: Final = _constant(
    540 * MIB, "bytes", f"{_MEASURED}: RSS 515 MiB after the imports in a fresh process, 535 MiB with DeepSpeed"
)
RUNTIME_GPU_BYTES: Final = _constant(
    3 * GIB, "bytes", "prior: the imports above plus CUDA libraries, pinned staging and data-loader buffers"
)
RUN_BUFFERS_BYTES: Final = _constant(
    128 * MIB, "bytes", "prior: trainer, tokenizer, rows, gloo and DeepSpeed objects of a rank on top of the imports"
)
LOAD_CONVERSION: Final = _constant(
    0.5,
    "of the linear weights in the load dtype",
    f"{_MEASURED}: 0.39 of them were alive at once when a 0.2B bf16 checkpoint was loaded as fp32 NF4",
)
LOAD_INFLIGHT_TENSORS: Final = _constant(
    4, "largest linear weights", "transformers loads tensors in 4 threads (core_model_loading)"
)
SHARD_FILE_BYTES: Final = _constant(5 * GB, "bytes", "save_pretrained's default max_shard_size: mapped file pages")
DEVICE_FILL: Final = _constant(0.92, "of a GPU's memory", "planning rule: the rest is for what no term names")

# --- time
GEMM_EFFICIENCY_CPU: Final = _constant(
    0.85, "of peak", f"{_MEASURED}: Llama of 256 hidden, 4 layers, 2048 tokens, fp32"
)
FALLBACK_FLOPS_GPU: Final = _constant(30e12, "FLOP/s", "prior: a GPU without a row in the peak table")
FALLBACK_BYTES_GPU: Final = _constant(300 * GB, "bytes/s", "prior: a GPU without a row in the peak table")
FALLBACK_FLOPS_CORE: Final = _constant(
    60e9, "FLOP/s a core", f"{_MEASURED}: 88e9 in fp32 with AVX-512; 60e9 allows for narrower vectors"
)
FALLBACK_BYTES_CORE: Final = _constant(5 * GB, "bytes/s a core", "prior: a server core when all cores stream")
ELEMENTWISE_PASSES: Final = _constant(
    2.7,
    "passes over a layer's saved bytes, forward and backward",
    f"{_MEASURED}: what is left of 0.667 s at 2048 tokens after products, dequantising and overhead",
)
HEAD_TILE_PASSES_CPU: Final = _constant(
    18, "fp32 passes over the logits", "counted in trl/kernels/chunked_logprob.py, forward and backward tile"
)
DEQUANTISE_WEIGHTS_PER_CORE: Final = _constant(
    0.55e9, "weights/s a core", f"{_MEASURED}: dequantize_4bit to fp32, 4096 x 4096, one thread (bf16: 1.1e9)"
)
MODULE_PASS_SECONDS_CPU: Final = _constant(
    1.5e-4, "seconds per adapted linear and pass", f"{_MEASURED}: 18.1 ms at 8 tokens, 28 modules, less dequantising"
)
CHECKPOINT_LAYER_SECONDS_CPU: Final = _constant(
    3.5e-3, "seconds per checkpointed layer", f"{_MEASURED}: full against none at 8 and 128 tokens"
)
MICRO_STEP_SECONDS: Final = _constant(8e-3, "seconds per micro-step", "prior: trainer loop, collation, loss, autocast")
OPTIMIZER_TENSOR_SECONDS: Final = _constant(6e-5, "seconds per adapter tensor", "prior: a dozen small kernels each")
ADAM_PASS_BYTES: Final = _constant(7, "times the adapter bytes", "4 reads and 3 writes of AdamW, unfused")
GLOO_ALPHA_SECONDS: Final = _constant(
    6e-4, "seconds per collective", "measured, torch 2.13: two gloo ranks over loopback, 1 KB to 1 MB, median"
)
GLOO_ALL_REDUCE_BYTES: Final = _constant(
    1.1 * GB, "bytes/s", "measured, torch 2.13: two gloo ranks over loopback, 16 MiB all-reduce"
)
GLOO_ALL_GATHER_BYTES: Final = _constant(
    0.3 * GB, "bytes/s", "measured, torch 2.13: two gloo ranks over loopback, 16 MiB all-gather"
)
NCCL_ALPHA_SECONDS: Final = _constant(3e-5, "seconds per collective", "prior: launch and ring latency in one host")
NETWORK_BYTES: Final = _constant(1.25 * GB, "bytes/s", "prior: 10 Gbit/s where no NIC rate was read")
LINK_EFFICIENCY: Final = _constant(0.8, "of a link's rate", "published nccl-tests bus bandwidths lie at 0.75-0.9")
H2D_BYTES: Final = _constant(12 * GB, "bytes/s", "prior: pinned copies over PCIe 4.0 x8 or 3.0 x16")
ZERO3_MODULE_SECONDS_GPU: Final = _constant(
    6e-4, "seconds per module and gather", "prior: DeepSpeed's fetch and release hooks in Python"
)
ZERO3_MODULE_SECONDS_CPU: Final = _constant(
    2e-3,
    "seconds per module and gather",
    f"{_MEASURED}: 28 modules, two gloo ranks, 0.43 s a step against 0.25 s of ddp",
)
STREAMED_LAYER_SECONDS_CPU: Final = _constant(
    1e-3, "seconds per layer that streams and pass", "prior: hooks and threads that fetch beside those that compute"
)
EXTRA_THREAD_GAIN_CPU: Final = _constant(
    0.3, "of a core for each further thread of a rank", f"{_MEASURED}: 0.1 at 256 hidden; wider models gain more"
)
NVME_BYTES: Final = _constant(2 * GB, "bytes/s", "prior: one PCIe 3.0 drive, reads")
# Rate by nvidia-smi's label, where no link was measured: PCIe 4.0 x16 through a switch, host bridge, socket link.
PAIR_BYTES: Final[tuple[tuple[str, float], ...]] = (
    ("NV", 20 * GB),  # per lane and direction, times the lane count
    ("PIX", 20 * GB),
    ("PXB", 18 * GB),
    ("PHB", 12 * GB),
    ("NODE", 10 * GB),
    ("SYS", 8 * GB),
)


def table() -> tuple[tuple[str, Constant], ...]:
    """All constants by name, for the report and the documentation."""
    return tuple((name, value) for name, value in globals().items() if isinstance(value, Constant))
