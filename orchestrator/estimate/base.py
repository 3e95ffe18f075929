"""Bytes of the frozen base as bitsandbytes stores it."""

from __future__ import annotations

from orchestrator.config import Quant
from orchestrator.estimate import calibration as c
from orchestrator.estimate.setting import Setting
from orchestrator.workload.model import LinearShape

FOUR_BIT = frozenset({Quant.nf4, Quant.fp4})
_FP32 = 4


def linear_packed_bytes(linear: LinearShape, quant: Quant, load_bytes: int) -> int:
    """Bytes of one weight: two weights a byte, one a byte, or the load dtype."""
    if quant in FOUR_BIT:
        return -(-linear.weights // 2)
    return linear.weights if quant is Quant.int8 else linear.weights * load_bytes


def linear_absmax_bytes(linear: LinearShape, quant: Quant, *, double_quant: bool) -> int:
    """Bytes of one weight's scales.

    4 bits: one fp32 per 64 weights; with double quantisation one byte per 64, one fp32 per 256 of
    those, an offset and the code books. int8: one fp32 per output row.
    """
    if quant is Quant.int8:
        return _FP32 * linear.out_features
    if quant not in FOUR_BIT:
        return 0
    blocks = -(-linear.weights // c.BLOCK_WEIGHTS)
    if not double_quant:
        return _FP32 * blocks + 16 * _FP32
    return blocks + _FP32 * -(-blocks // c.NESTED_BLOCK) + c.NESTED_EXTRA_BYTES


def packed_bytes(setting: Setting) -> int:
    """Bytes of all decoder linears."""
    linears = setting.model.linears
    return setting.model.layers * sum(linear_packed_bytes(x, setting.quant, setting.load_bytes) for x in linears)


def absmax_bytes(setting: Setting) -> int:
    """Bytes of the scales of all decoder linears; ZeRO-3 does not partition them."""
    layer = (linear_absmax_bytes(x, setting.quant, double_quant=setting.double_quant) for x in setting.model.linears)
    return setting.model.layers * sum(layer)


def unquantised_bytes(setting: Setting) -> int:
    """Bytes of embeddings, norms, head and biases in the load dtype."""
    return setting.model.unquantised_params * setting.load_bytes


def dequantised_bytes(setting: Setting) -> int:
    """Bytes while the largest linear is multiplied: its weight in the compute dtype, with fp32 scales."""
    if setting.quant is Quant.none:
        return 0
    weights = setting.model.largest_linear
    # A CPU unpacks into the stored dtype and casts after that, so two copies are alive.
    copies = 1 if setting.machine.is_gpu else 2
    return copies * weights * setting.compute_bytes + _FP32 * -(-weights // c.BLOCK_WEIGHTS)


def pinned_partition_bytes(setting: Setting) -> int:
    """Pinned host bytes of one rank's share of the base: torch rounds each pinned block up to a power of two."""
    model = setting.model
    total = 0
    for linear in model.linears:
        share = -(-linear_packed_bytes(linear, setting.quant, setting.load_bytes) // setting.world_size)
        total += model.layers * _power_of_two(share)
    for params in (model.embedding_params, model.head_params):
        total += _power_of_two(-(-params * setting.load_bytes // setting.world_size)) if params else 0
    return total


def _power_of_two(size_bytes: int) -> int:
    return 1 << max(0, size_bytes - 1).bit_length()
