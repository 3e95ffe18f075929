"""Kept values of a chunk as bytes.

fp32: as they are. bf16: rounded to nearest even; what would become infinite is the largest finite number instead.

int8: `q = round(value / scale)` in -127..127, ties to even, with `scale = largest / 127` as fp32, at least the smallest
normal number.

int4: a sign bit (the highest of the four) and a magnitude `low + j * step`, j in 0..7. Kept values are the largest of
4,096, so none is near zero: levels from the smallest kept magnitude to the largest lie closer together than levels from
zero, by three times for normal gradients at 1%. Both numbers fit into the 4 bytes of the scale as bf16: `low` is the
smallest magnitude rounded down, `step` is `(largest - low) / 7` rounded up, so that both ends are covered.

A value is off by half a step at most. Magnitudes above the caps below are sent as the caps, so that no product becomes
infinite; what they lack stays in the residual.
"""

from __future__ import annotations

from typing import Final

import torch

from orchestrator.planner.compression import Codec, Values

BF16_MAX: Final = 3.3895313892515355e38
INT8_CAP: Final = 3.4028e38  # 127 * round(cap / 127) is finite
INT4_CAP: Final = 3.3e38  # low + 7 * step is finite with step rounded up to bf16
SMALLEST: Final = 2.0**-126  # the smallest normal fp32: no division by zero, also where subnormals count as zero
INT8_TOP: Final = 127
INT4_TOP: Final = 7
_HIGH_HALF: Final = -65536  # bits of an fp32 that a bf16 keeps
_LOW_HALF: Final = 65535
_SIGN: Final = 8  # of a 4-bit value
_TO_TOP_BIT: Final = 28
_BOTH_HALVES: Final = 0x0F0F


def to_bytes(values: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, torch.Tensor]:
    """Code fp32 [chunks, kept].

    Returns:
        uint8 [chunks, value_bytes + scale_bytes], and fp32 [chunks, kept]: what a receiver will read.
    """
    if codec.values is Values.fp32:
        return _bytes_of(values), values
    if codec.values is Values.bf16:
        rounded = values.clamp(-BF16_MAX, BF16_MAX).to(torch.bfloat16)
        return _bytes_of(rounded), rounded.to(torch.float32)
    return _int8(values) if codec.values is Values.int8 else _int4(values)


def from_bytes(coded: torch.Tensor, codec: Codec) -> torch.Tensor:
    """Read fp32 [chunks, kept] from uint8 [chunks, value_bytes + scale_bytes]."""
    if codec.values is Values.fp32:
        return _as(coded, torch.float32)
    if codec.values is Values.bf16:
        return _as(coded, torch.bfloat16).to(torch.float32)
    scale = coded[:, codec.value_bytes :]
    if codec.values is Values.int8:
        return coded[:, : codec.value_bytes].view(torch.int8) * _as(scale, torch.float32)
    byte = coded[:, : codec.value_bytes]
    low_step = _as(scale, torch.bfloat16).to(torch.float32)
    code = _halves(byte)
    magnitude = _int4_magnitude(code & INT4_TOP, low_step[:, :1], low_step[:, 1:])
    sign = (code & _SIGN).to(torch.int32) << _TO_TOP_BIT
    return (magnitude.view(torch.int32) | sign).view(torch.float32)


def _int8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    top = values.abs().amax(dim=1, keepdim=True)
    scale = (top.clamp(max=INT8_CAP) / INT8_TOP).clamp(min=SMALLEST)
    q = (values / scale).round_().clamp_(-INT8_TOP, INT8_TOP).to(torch.int8)
    return torch.cat((q.view(torch.uint8), _bytes_of(scale)), dim=1), q * scale


def _int4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    magnitude = values.abs()
    low = _bf16_down(magnitude.amin(dim=1, keepdim=True).clamp(max=INT4_CAP))
    top = magnitude.amax(dim=1, keepdim=True).clamp(max=INT4_CAP)
    step = _bf16_up(((top - low) / INT4_TOP).clamp(min=SMALLEST))
    j = ((magnitude - low) / step).round_().clamp_(0, INT4_TOP).to(torch.uint8)
    code = j | values.signbit().to(torch.uint8) * _SIGN
    scale = _bytes_of(torch.cat((low, step), dim=1).to(torch.bfloat16))
    sent = torch.copysign(_int4_magnitude(j, low, step), values)
    return torch.cat((_joined(code), scale), dim=1), sent


def _int4_magnitude(j: torch.Tensor, low: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    return j * step + low


def _joined(code: torch.Tensor) -> torch.Tensor:
    """Two 4-bit codes to a byte, the first in the low half; as words, since strided bytes are slow on CPUs."""
    word = code.contiguous().view(torch.int16)
    return (word | word >> 4).to(torch.uint8)


def _halves(byte: torch.Tensor) -> torch.Tensor:
    """What `_joined` was given."""
    word = byte.to(torch.int16)
    word = (word | word << 4) & _BOTH_HALVES
    return word.reshape(-1).view(torch.uint8).view(len(byte), 2 * byte.shape[1])


def _bf16_down(x: torch.Tensor) -> torch.Tensor:
    """The next bf16 number that is not above x >= 0, as fp32."""
    return (x.view(torch.int32) & _HIGH_HALF).view(torch.float32)


def _bf16_up(x: torch.Tensor) -> torch.Tensor:
    """The next bf16 number that is not below x >= 0, as fp32."""
    return ((x.view(torch.int32) + _LOW_HALF) & _HIGH_HALF).view(torch.float32)


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """The bytes of each row, lowest first."""
    return x.contiguous().view(torch.uint8)


def _as(coded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers in bytes that may begin anywhere; always a copy, since a view needs an aligned beginning."""
    return coded.clone(memory_format=torch.contiguous_format).view(dtype)
