"""Safetensors files written one tensor at a time: what is in memory is a tensor, never a file.

The format: eight bytes with the length of a JSON header, the header, the tensors one after the other
(https://huggingface.co/docs/safetensors). Everything in the header is known before the first tensor is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import torch

from orchestrator.weights.jobs import STORED_TYPES

_LENGTH_BYTES: Final = 8
_ALIGNED_BYTES: Final = 8
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_NAMES: Final = {dtype: name for name, dtype in STORED_TYPES.items()}
PORTION: Final = 2**22
"""Elements that are cast at once on their way to the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Out:
    """One tensor that is written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return prod(self.shape) * self.dtype.itemsize


Fill = Callable[[Out], Iterable[torch.Tensor]]
"""Gives the elements of a tensor, flat and in order, in portions of any type."""


def cut(tensors: Sequence[Out], limit_bytes: int) -> list[list[Out]]:
    """Cut tensors into shards of at most `limit_bytes`, or one tensor, in their order."""
    shards: list[list[Out]] = []
    room_bytes = 0
    for tensor in tensors:
        if not shards or tensor.nbytes > room_bytes:
            shards.append([])
            room_bytes = limit_bytes
        shards[-1].append(tensor)
        room_bytes -= tensor.nbytes
    return shards


def write_shards(folder: Path, shards: Sequence[Sequence[Out]], fill: Fill, say: Callable[[str], None]) -> list[Path]:
    """Write shards, and an index where there are several.

    Returns:
        The files.

    Raises:
        OSError: the disk refuses.
    """
    names = [f"model-{at:05d}-of-{len(shards):05d}.safetensors" for at in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [_SINGLE]
    total_bytes = sum(tensor.nbytes for shard in shards for tensor in shard)
    done_bytes = 0
    for name, shard in zip(names, shards, strict=True):
        write_file(folder / name, shard, fill)
        done_bytes += sum(tensor.nbytes for tensor in shard)
        say(f"wrote {name} ({done_bytes / 2**30:.2f} of {total_bytes / 2**30:.2f} GiB)")
    written = [folder / name for name in names]
    if len(shards) > 1:
        weight_map = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        body = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / _INDEX).write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        written.append(folder / _INDEX)
    return written


def write_file(path: Path, tensors: Sequence[Out], fill: Fill) -> None:
    """Write one file and bring it to the disk.

    Raises:
        OSError: the disk refuses.
    """
    with path.open("wb") as file:
        file.write(_header(tensors))
        for tensor in tensors:
            begin = file.tell()
            for part in _portions(fill(tensor), tensor.dtype):
                file.write(part)
            if file.tell() - begin != tensor.nbytes:
                raise RuntimeError(f"{tensor.name} has {file.tell() - begin} bytes instead of {tensor.nbytes}")
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: Sequence[Out]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor in tensors:
        offsets = [begin, begin + tensor.nbytes]
        entries[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        begin += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _portions(values: Iterable[torch.Tensor], dtype: torch.dtype) -> Iterator[memoryview]:
    for value in values:
        flat = value.detach().reshape(-1)
        for begin in range(0, flat.numel(), PORTION):
            part = flat[begin : begin + PORTION].to(dtype).contiguous()
            yield part.view(torch.uint8).numpy().data
