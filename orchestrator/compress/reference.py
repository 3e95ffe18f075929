"""The packets of `orchestrator.compress.topk`, said slowly and plainly in numpy, chunk by chunk. For tests."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.planner.compression import CHUNK, Codec, Values, chunks_of

_Floats = npt.NDArray[np.float32]

BF16_MAX: Final = np.float32(3.3895313892515355e38)
INT8_CAP: Final = np.float32(3.4028e38)
INT4_CAP: Final = np.float32(3.3e38)
SMALLEST: Final = np.float32(2.0**-126)


def encode(x: _Floats, codec: Codec) -> npt.NDArray[np.uint8]:
    """Packets [chunks, chunk_bytes] of x [chunks, 4096]."""
    packets = b"".join(_packet(chunk, codec) for chunk in x)
    return np.frombuffer(packets, np.uint8).reshape(len(x), codec.chunk_bytes)


def decode(packets: npt.NDArray[np.uint8], codec: Codec) -> _Floats:
    """What packets say [chunks, 4096], zero elsewhere."""
    out = np.zeros((len(packets), CHUNK), np.float32)
    for chunk, packet in zip(out, packets, strict=True):
        places, values = _read(packet.tobytes(), codec)
        chunk[places] = values
    return out


def pack(x: _Floats, codec: Codec) -> npt.NDArray[np.uint8]:
    """Packets of a flat array, the last chunk filled up with zeros."""
    whole = np.zeros(chunks_of(len(x)) * CHUNK, np.float32)
    whole[: len(x)] = x
    return encode(whole.reshape(-1, CHUNK), codec)


def largest(chunk: _Floats, kept: int) -> list[int]:
    """Ascending places of the largest magnitudes; of equal ones the lower place goes first."""
    order = sorted(range(CHUNK), key=lambda place: (-abs(float(chunk[place])), place))
    return sorted(order[:kept])


def _packet(chunk: _Floats, codec: Codec) -> bytes:
    if codec.kept == CHUNK:
        return _values(chunk, codec)
    places = largest(chunk, codec.kept)
    words = (first | second << 12 for first, second in zip(places[::2], places[1::2], strict=True))
    return b"".join(word.to_bytes(3, "little") for word in words) + _values(chunk[places], codec)


def _values(values: _Floats, codec: Codec) -> bytes:
    if codec.values is Values.fp32:
        return struct.pack(f"<{len(values)}f", *values)
    if codec.values is Values.bf16:
        return b"".join(struct.pack("<H", _bf16(value)) for value in values)
    return _int8(values) if codec.values is Values.int8 else _int4(values)


def _bf16(value: np.float32) -> int:
    """The high half of the bits, rounded to nearest even."""
    capped = max(-BF16_MAX, min(BF16_MAX, value))
    bits = _bits(capped)
    odd = bits >> 16 & 1
    return (bits + 0x7FFF + odd) >> 16


def _int8(values: _Floats) -> bytes:
    scale = max(min(np.abs(values).max(), INT8_CAP) / np.float32(127), SMALLEST)
    codes = [max(-127, min(127, round(float(value / scale)))) for value in values]
    return struct.pack(f"<{len(codes)}bf", *codes, scale)


def _int4(values: _Floats) -> bytes:
    magnitudes = np.abs(values)
    low = _bits(min(magnitudes.min(), INT4_CAP)) >> 16
    top = min(magnitudes.max(), INT4_CAP)
    step = (_bits(max((top - _wide(low)) / np.float32(7), SMALLEST)) + 0xFFFF) >> 16
    codes = []
    for value, magnitude in zip(values, magnitudes, strict=True):
        level = max(0, min(7, round(float((magnitude - _wide(low)) / _wide(step)))))
        codes.append(level | int(np.signbit(value)) << 3)
    return bytes(low_half | high_half << 4 for low_half, high_half in zip(codes[::2], codes[1::2], strict=True)) + (
        struct.pack("<HH", low, step)
    )


def _read(packet: bytes, codec: Codec) -> tuple[list[int], list[np.float32]]:
    places = list(range(CHUNK)) if codec.kept == CHUNK else []
    for at in range(0, codec.index_bytes, 3):
        word = int.from_bytes(packet[at : at + 3], "little")
        places += [word & 0xFFF, word >> 12]
    rest = packet[codec.index_bytes :]
    if codec.values is Values.fp32:
        return places, [np.float32(value) for value in struct.unpack(f"<{codec.kept}f", rest)]
    if codec.values is Values.bf16:
        return places, [_wide(half) for half in struct.unpack(f"<{codec.kept}H", rest)]
    if codec.values is Values.int8:
        *codes, scale = struct.unpack(f"<{codec.kept}bf", rest)
        return places, [np.float32(code) * np.float32(scale) for code in codes]
    low, step = struct.unpack("<HH", rest[-4:])
    halves = [half for byte in rest[:-4] for half in (byte & 15, byte >> 4)]
    return places, [_signed(half, np.float32(half & 7) * _wide(step) + _wide(low)) for half in halves]


def _signed(half: int, magnitude: np.float32) -> np.float32:
    return np.float32(-magnitude if half & 8 else magnitude)


def _bits(value: np.float32) -> int:
    return int(np.float32(value).view(np.uint32))


def _wide(half: int) -> np.float32:
    """The fp32 number whose high half is `half`."""
    return np.uint32(half << 16).view(np.float32)
