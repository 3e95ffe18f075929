"""Packed layers kept on disk, so that the next start reads its own bytes and packs nothing.

A folder for each base and way of packing: `layers.bin` (the extents one after the other), `layers.crc` (a checksum of
each block of it) and `index.json`. It is renamed into place when it is complete, by whoever is first, so that any
number of runs may read and write at once. Nothing is flushed to the disk by force: a block that a power cut took is
found by its checksum, and the base is packed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Final

import torch

from orchestrator.dataset.disk import reason_of
from orchestrator.errors import Problem, UserError
from orchestrator.weights.checkpoint import ByteReader, Checkpoint
from orchestrator.weights.layout import BaseLayout
from orchestrator.weights.skeleton import Skeleton

SCHEMA: Final = 1
BLOCK_BYTES: Final = 2**16  # that share a checksum: the most that a rank reads in vain at an edge of its share
PORTION_BYTES: Final = 64 * BLOCK_BYTES  # read at once
CRC_BYTES: Final = 4
LAYERS, CRCS, INDEX = "layers.bin", "layers.crc", "index.json"
_LIBRARIES: Final = ("bitsandbytes", "torch", "transformers")  # their releases change packing or names
Say = Callable[[str], None]
Span = tuple[int, int, int]  # layer, begin, end


def cache_root(environ: Mapping[str, str]) -> Path | None:
    """Folder of all packed bases in the user's cache; None for a user without a home."""
    root = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):  # noqa: PTH117 - the XDG specification: relative ones are ignored
        home = os.path.expanduser("~")  # noqa: PTH111 - Path.home raises where there is none
        if not os.path.isabs(home):  # noqa: PTH117
            return None
        root = os.path.join(home, ".cache")  # noqa: PTH118 - a text, as the variable is
    return Path(root) / "trainmaster" / "bases"


def cache_key(skeleton: Skeleton, checkpoint: Checkpoint, device: torch.device) -> str:
    """Hash of all that the packed bytes depend on.

    Among it is what packs them: on CPU, the mean that double quantisation subtracts is summed up by as many threads
    as torch has, which changes its last bits.
    """
    kinds = sorted((name, repr(kind)) for name, kind in skeleton.kinds.items())
    maker = (device.type, torch.get_num_threads() if device.type == "cpu" else torch.cuda.get_device_name(device))
    versions = [(name, version(name)) for name in _LIBRARIES]
    seal = (SCHEMA, checkpoint.fingerprint, skeleton.layout.fingerprint, kinds, maker, versions)
    return hashlib.sha256(repr(seal).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseCache:
    """Where one packed base is kept.

    Attributes:
        root: of all bases.
        key: of this one.
        model: folder of the checkpoint, to find what has become stale.
        fingerprint: of the checkpoint's files.
    """

    root: Path
    key: str
    model: str
    fingerprint: str

    @property
    def folder(self) -> Path:
        """Of this base."""
        return self.root / self.key

    def find(self, layout: BaseLayout, say: Say) -> bool:
        """Whether there is a complete copy for this layout; tells why one that is there is not good."""
        if not (self.folder / INDEX).exists():
            return False
        fault = self._fault(layout)
        if fault:
            say(f"the packed base in {self.folder} is made again: {fault}")
        return not fault

    def _fault(self, layout: BaseLayout) -> str:
        try:
            index = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
            sizes = [(self.folder / name).stat().st_size for name in (LAYERS, CRCS)]
        except OSError as error:
            return reason_of(error)
        except ValueError:
            return f"{INDEX} does not parse"
        wanted = {"schema": SCHEMA, "key": self.key, "layout": layout.fingerprint, "block_bytes": BLOCK_BYTES}
        if not isinstance(index, dict) or any(index.get(name) != value for name, value in wanted.items()):
            return f"{INDEX} describes another one"
        expected = [layout.total_bytes, CRC_BYTES * blocks_of(layout.total_bytes)]
        return "" if sizes == expected else f"its files have {sizes} bytes, not {expected}"

    def read(
        self,
        layout: BaseLayout,
        wanted: Sequence[Span],
        put: Callable[[int, int, torch.Tensor], None],
        device: torch.device,
    ) -> int:
        """Read spans of layers and check them; returns the bytes read, which are whole blocks.

        Raises:
            UserError: what is there is damaged.
        """
        bases = bases_of(layout)
        # A GPU's driver copies from pinned memory without a copy of its own.
        buffer = torch.empty(PORTION_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        view = buffer.numpy().data
        with ByteReader((self.folder / LAYERS, self.folder / CRCS)) as reader:
            for layer, begin, end in wanted:
                for first, last in portions(bases[layer] + begin, bases[layer] + end, layout.total_bytes):
                    reader.read_into(0, first, view[: last - first])
                    self._check(reader, first, view[: last - first])
                    low, high = max(first, bases[layer] + begin), min(last, bases[layer] + end)
                    put(layer, low - bases[layer], buffer[low - first : high - first])
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)  # the buffer is used again
            return reader.read_bytes

    def _check(self, reader: ByteReader, first: int, portion: memoryview) -> None:
        crcs = bytearray(CRC_BYTES * blocks_of(len(portion)))
        reader.read_into(1, first // BLOCK_BYTES * CRC_BYTES, memoryview(crcs))
        if bytes(crcs) != checksums(portion):
            found = f"a checksum of {LAYERS} is wrong near byte {first:,}"
            raise UserError(Problem(where=str(self.folder), found=found, remedy="It is made again."))


def checksums(data: memoryview) -> bytes:
    """Checksum of each block."""
    return b"".join(
        zlib.crc32(data[at : at + BLOCK_BYTES]).to_bytes(CRC_BYTES, "little") for at in range(0, len(data), BLOCK_BYTES)
    )


def blocks_of(nbytes: int) -> int:
    """Return how many blocks have so many bytes; the last may be shorter."""
    return -(-nbytes // BLOCK_BYTES)


def bases_of(layout: BaseLayout) -> list[int]:
    """First byte of each layer in the file."""
    return [0, *accumulate(layout.layer_bytes)]


def portions(begin: int, end: int, file_bytes: int) -> Iterator[tuple[int, int]]:
    """Whole blocks that cover [begin, end), some at once."""
    at = begin // BLOCK_BYTES * BLOCK_BYTES
    until = min(blocks_of(end) * BLOCK_BYTES, file_bytes)
    while at < until:
        yield at, min(at + PORTION_BYTES, until)
        at += PORTION_BYTES
