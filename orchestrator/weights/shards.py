"""This rank's pieces of the layers, each in its tier."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from orchestrator.errors import Problem, RunFailed, UserError
from orchestrator.weights.cut import Cut, Place, Tier, buffer_bytes, places

_READERS: Final = 4
_REQUEST_BYTES: Final = 4 << 20


class Shards:
    """Buffers of all tiers, allocated once; a piece never moves."""

    def __init__(self, cut: Cut, rank: int, device: torch.device, folder: Path | None = None) -> None:
        """Allocate what the cut gives this rank.

        Args:
            cut: who holds what.
            rank: of this process among those of the cut.
            device: where the `device` tier is; pieces in host memory are pinned beside a GPU.
            folder: for the file of the `nvme` tier, which has no name and ends with the process.

        Raises:
            UserError: there are pieces for NVMe, and no folder (or no room in it).
        """
        self.rank, self.device = rank, device
        self._places = {tier: places(cut, rank, tier) for tier in Tier}
        # A place by layer and tier: a rank's pieces of a layer lie in one run, each tier's once.
        self._by_layer: dict[int, list[tuple[Tier, Place]]] = {}
        for tier, found in self._places.items():
            for place in found:
                self._by_layer.setdefault(place.layer, []).append((tier, place))
        self.nbytes = {tier: buffer_bytes(found) for tier, found in self._places.items()}
        self._memory = {
            Tier.device: torch.empty(self.nbytes[Tier.device], dtype=torch.uint8, device=device),
            Tier.host: torch.empty(self.nbytes[Tier.host], dtype=torch.uint8, pin_memory=device.type == "cuda"),
        }
        self._file = _File(folder, self.nbytes[Tier.nvme]) if self.nbytes[Tier.nvme] else None

    @property
    def memory(self) -> dict[Tier, torch.Tensor]:
        """The buffers in memory."""
        return self._memory

    def tiers(self, layer: int) -> set[Tier]:
        """Where this rank's bytes of a layer lie."""
        return {tier for tier, _ in self._by_layer.get(layer, [])}

    def write(self, layer: int, begin: int, data: torch.Tensor) -> None:
        """Keep what is this rank's of the bytes `data` (flat uint8, anywhere) that begin at `begin` of the layer."""
        for tier, place in self._by_layer.get(layer, []):
            first, last = max(begin, place.piece.begin), min(begin + data.numel(), place.piece.end)
            if last <= first:
                continue
            part, at = data[first - begin : last - begin], place.at + first - place.piece.begin
            if self._file is not None and tier is Tier.nvme:
                self._file.write(part.cpu(), at)
            else:
                self._memory[tier][at : at + last - first].copy_(part)

    def read(self, layer: int, begin: int, end: int, slot: torch.Tensor) -> None:
        """Copy this rank's bytes of [begin, end) to their places in `slot` (the whole extent's memory).

        On CPU they are there when this returns; on a GPU the current stream will bring them.
        """
        for tier, place in self._by_layer.get(layer, []):
            first, last = max(begin, place.piece.begin), min(end, place.piece.end)
            if last <= first:
                continue
            at, target = place.at + first - place.piece.begin, slot[first:last]
            if self._file is not None and tier is Tier.nvme:
                self._file.read(target, at)
            else:
                copy_bytes(self._memory[tier][at : at + last - first], target)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()


def copy_bytes(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy flat bytes; between host memories on this thread alone.

    torch would start a team of threads for a large copy, in each thread that copies, beside those that compute.
    """
    if source.device.type == target.device.type == "cpu":
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())  # lets other threads run meanwhile
    else:
        target.copy_(source, non_blocking=True)


class _File:
    """A file without a name."""

    def __init__(self, folder: Path | None, nbytes: int) -> None:
        if folder is None:
            remedy = "Name a folder on the drive (engine.nvme_path)"
            raise UserError(Problem(where="NVMe tier", found="pieces of the base, and no folder", remedy=remedy))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._stream = tempfile.TemporaryFile(dir=folder, prefix="base-shard-", buffering=0)  # noqa: SIM115 - open until `close`
            os.posix_fallocate(self._stream.fileno(), 0, nbytes)
        except OSError as error:
            remedy = "Free space, or name another folder (engine.nvme_path)"
            problem = Problem(where=str(folder), found=f"no room for {nbytes:,} bytes: {error.strerror}", remedy=remedy)
            raise UserError(problem) from error
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="base-read")
        self._staging: torch.Tensor | None = None
        self._staged: torch.cuda.Event | None = None

    def write(self, data: torch.Tensor, at: int) -> None:
        memory = _memory(data)
        done = 0
        while done < len(memory):
            done += os.pwrite(self._stream.fileno(), memory[done:], at + done)

    def read(self, target: torch.Tensor, at: int) -> None:
        if target.device.type == "cpu":
            self._read(_memory(target), at)
            return
        staging = self._pinned(target.numel())
        self._read(_memory(staging), at)
        target.copy_(staging, non_blocking=True)
        self._staged = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._staged.record()

    def _pinned(self, nbytes: int) -> torch.Tensor:
        """Memory for one read, free again when the copy before has left it."""
        if self._staged is not None:
            self._staged.synchronize()
        if self._staging is None or self._staging.numel() < nbytes:
            self._staging = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return self._staging[:nbytes]

    def _read(self, memory: memoryview, at: int) -> None:
        """Read in several requests at once: a drive is as fast as its queue is long."""
        begins = range(0, len(memory), _REQUEST_BYTES)
        requests = [(memory[begin : begin + _REQUEST_BYTES], at + begin) for begin in begins]
        for reading in [self._readers.submit(self._read_one, *request) for request in requests]:
            reading.result()

    def _read_one(self, memory: memoryview, at: int) -> None:
        done = 0
        while done < len(memory):
            got = os.preadv(self._stream.fileno(), [memory[done:]], at + done)
            if not got:
                found = f"the file ends at byte {at + done}"
                raise RunFailed(Problem(where="NVMe tier", found=found, remedy="Check the drive, and start again"))
            done += got

    def close(self) -> None:
        self._readers.shutdown()
        with contextlib.suppress(OSError):
            self._stream.close()


def _memory(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array)
