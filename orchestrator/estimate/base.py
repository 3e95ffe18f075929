"""Bytes of the frozen base as bitsandbytes stores it."""

from __future__ import annotations

from functools import lru_cache

from orchestrator.config import Quant
from orchestrator.estimate import calibration as c
from orchestrator.estimate.setting import Setting
from orchestrator.workload.model import LinearShape, ModelShape, linears_of

FOUR_BIT = frozenset({Quant.nf4, Quant.fp4})
_FP32 = 4
_HALF = 2


def kind_of(linear: LinearShape, quant: Quant) -> Quant:
    """How a module is stored in a base of this kind: as the base, as a pattern says, or not packed at all."""
    if not linear.packed:
        return Quant.none
    return Quant(linear.quant) if linear.quant else quant


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


def stored_bytes(linear: LinearShape, setting: Setting) -> int:
    """Bytes of one weight as it is stored, packed or not."""
    return _stored_bytes(linear, setting.quant, setting.load_bytes)


def _stored_bytes(linear: LinearShape, quant: Quant, load_bytes: int) -> int:
    return linear_packed_bytes(linear, kind_of(linear, quant), load_bytes)


def largest_layer_bytes(setting: Setting) -> int:
    """Bytes of the largest layer as stored, without scales: what an engine gathers at once."""
    return _largest_layer_bytes(setting.model, setting.quant, setting.load_bytes)


@lru_cache(64)
def _largest_layer_bytes(model: ModelShape, quant: Quant, load: int) -> int:
    if not model.groups:
        rest = -(-(model.norm_params + model.bias_params + model.expert_params) // model.layers)
        return sum(_stored_bytes(x, quant, load) for x in model.linears) + rest * load
    sizes = []
    for group in model.groups:
        linears = linears_of(group.parameters)
        rest = group.layer_elements - sum(x.weights for x in linears)
        sizes.append(sum(_stored_bytes(x, quant, load) for x in linears) + rest * load)
    return max(sizes)


def packed_bytes(setting: Setting) -> int:
    """Bytes of the weights of all linear modules but the head; those that bitsandbytes leaves alone in 16 bits."""
    return _packed_bytes(setting.model, setting.quant, setting.load_bytes)


@lru_cache(64)
def _packed_bytes(model: ModelShape, quant: Quant, load_bytes: int) -> int:
    return sum(count * _stored_bytes(x, quant, load_bytes) for x, count in model.linear_counts)


def absmax_bytes(setting: Setting) -> int:
    """Bytes of the scales of all packed weights; ZeRO-3 does not partition them."""
    return _absmax_bytes(setting.model, setting.quant, setting.double_quant)


@lru_cache(64)
def _absmax_bytes(model: ModelShape, quant: Quant, double_quant: bool) -> int:  # noqa: FBT001 - a part of the key
    return sum(
        count * linear_absmax_bytes(x, kind_of(x, quant), double_quant=double_quant) for x, count in model.linear_counts
    )


def whole_bytes(model: ModelShape, quant: Quant, double_quant: bool) -> int:  # noqa: FBT001 - as the parts' own
    """Bytes of the whole base in its smallest load dtype."""
    packed, scales = _packed_bytes(model, quant, _HALF), _absmax_bytes(model, quant, double_quant)
    return packed + scales + model.unquantised_params * _HALF


def unquantised_bytes(setting: Setting) -> int:
    """Bytes of embeddings, norms, head, biases, routers and stacked experts in the load dtype.

    PEFT's preparation for k-bit training widens them to fp32, where a run has called it.
    """
    widened = setting.upcasts and setting.quant is not Quant.none
    return setting.model.unquantised_params * (_FP32 if widened else setting.load_bytes)


def dequantised_bytes(setting: Setting) -> int:
    """Bytes while the largest linear is multiplied: its weight in the compute dtype, with fp32 scales."""
    if setting.quant is Quant.none:
        return 0
    weights = max((x.weights for x, _ in setting.model.linear_counts if x.packed), default=0)
    # A CPU unpacks into the stored dtype and casts after that, so two copies are alive.
    copies = 1 if setting.machine.is_gpu else 2
    return copies * weights * setting.compute_bytes + _FP32 * -(-weights // c.BLOCK_WEIGHTS)


def pinned_partition_bytes(setting: Setting) -> int:
    """Pinned host bytes of one rank's share of the base: torch rounds each pinned block up to a power of two."""
    model = setting.model
    total = 0
    for linear, count in model.linear_counts:
        total += count * _power_of_two(-(-stored_bytes(linear, setting) // setting.world_size))
    experts = -(-model.expert_params // model.layers)
    for params, count in ((model.embedding_params, 1), (model.head_params, 1), (experts, model.layers)):
        total += count * _power_of_two(-(-params * setting.load_bytes // setting.world_size)) if params else 0
    return total


def _power_of_two(size_bytes: int) -> int:
    return 1 << max(0, size_bytes - 1).bit_length()
