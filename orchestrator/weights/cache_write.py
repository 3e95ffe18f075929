"""Writes packed layers for the next start while they are loaded; see `cache`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from orchestrator.dataset.disk import reason_of
from orchestrator.errors import UserError
from orchestrator.weights.cache import (
    BLOCK_BYTES,
    CRC_BYTES,
    CRCS,
    INDEX,
    LAYERS,
    PORTION_BYTES,
    SCHEMA,
    BaseCache,
    Say,
    bases_of,
    blocks_of,
    checksums,
    portions,
)
from orchestrator.weights.checkpoint import ByteReader
from orchestrator.weights.exchange import Team
from orchestrator.weights.layout import BaseLayout

_LOCK: Final = "lock"  # held by the run that writes a folder
_SPARE: Final = 1.02  # room that the disk must have, in sizes of the copy


class CacheWriter:
    """Writes a copy while a base is loaded; a full disk ends the copy, never the run."""

    def __init__(self, cache: BaseCache, layout: BaseLayout, team: Team, device: torch.device, say: Say) -> None:
        """Begin a folder, on the team's first rank, and open its file on all."""
        self._cache, self._layout, self._team, self._device, self._say = cache, layout, team, device, say
        self._bases = bases_of(layout)
        self._fault = ""
        self._file: int | None = None
        self._lock: int | None = None
        told = team.tell(self._make_folder() if team.me == 0 else "")
        self._folder = Path(str(told)) if told else None
        if self._folder is None:
            return
        try:
            self._file = os.open(self._folder / LAYERS, os.O_RDWR)
        except OSError as error:  # the team's ranks share no disk after all
            self._fault = reason_of(error)

    def _make_folder(self) -> str:
        nbytes, root = self._layout.total_bytes, self._cache.root
        folder = root / f".{self._cache.key}.{uuid.uuid4().hex}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            _sweep(root)
            free_bytes = shutil.disk_usage(root).free
            if free_bytes < nbytes * _SPARE:
                self._say(
                    f"the packed base is not kept for the next start: {root} has {free_bytes / 2**30:.2f} GiB free, "
                    f"it takes {nbytes / 2**30:.2f} GiB"
                )
                return ""
            folder.mkdir()
            self._lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            with (folder / LAYERS).open("wb") as file:
                file.truncate(nbytes)
        except OSError as error:
            self._say(f"the packed base is not kept for the next start: {reason_of(error)} ({root})")
            return ""
        return str(folder)

    def write(self, layer: int, begin: int, data: torch.Tensor) -> None:
        """Write flat bytes that begin at a byte of a layer."""
        if self._file is None or self._fault:
            return
        memory = data.cpu().numpy().data
        done, at = 0, self._bases[layer] + begin
        try:
            while done < len(memory):
                done += os.pwrite(self._file, memory[done : done + PORTION_BYTES], at + done)
        except OSError as error:
            self._fault = reason_of(error)

    def finish(self) -> None:
        """Check-sum the copy and put it in its place, or drop it; collective over the team."""
        if self._folder is None:
            return
        faults = [x for x in self._team.gather(self._fault) if x]
        parts = self._team.gather(b"" if faults else self._own_checksums())
        if self._team.me == 0:
            # A rank that failed while reading back says so by giving nothing.
            crcs = b"".join(parts)
            if not faults and len(crcs) != CRC_BYTES * blocks_of(self._layout.total_bytes):
                faults = ["it cannot be read back"]
            self._settle(crcs, faults)
        if self._file is not None:
            os.close(self._file)
        if self._lock is not None:
            os.close(self._lock)
        self._team.agree(None, self._device)  # nobody goes on before it is in its place

    def _own_checksums(self) -> bytes:
        """Of this rank's share of the blocks, read back."""
        blocks = blocks_of(self._layout.total_bytes)
        first, last = (blocks * at // self._team.size for at in (self._team.me, self._team.me + 1))
        buffer = memoryview(bytearray(PORTION_BYTES))
        found = b""
        try:
            with ByteReader((Path(self._folder or "") / LAYERS,)) as reader:
                end = min(last * BLOCK_BYTES, self._layout.total_bytes)
                for begin, until in portions(first * BLOCK_BYTES, end, self._layout.total_bytes):
                    reader.read_into(0, begin, buffer[: until - begin])
                    found += checksums(buffer[: until - begin])
        except UserError:
            return b""
        return found

    def _settle(self, crcs: bytes, faults: list[str]) -> None:
        folder, cache = self._folder, self._cache
        if folder is None:
            return
        if faults:
            self._drop(faults[0])
            return
        try:
            (folder / CRCS).write_bytes(crcs)
            index = {
                "schema": SCHEMA,
                "key": cache.key,
                "model": cache.model,
                "checkpoint": cache.fingerprint,
                "layout": self._layout.fingerprint,
                "block_bytes": BLOCK_BYTES,
            }
            (folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
            (folder / _LOCK).unlink(missing_ok=True)  # nothing to sweep any more
            _replace(folder, cache.folder)
        except OSError as error:
            self._drop(reason_of(error))
            return
        for stale in _stale(cache):
            shutil.rmtree(stale, ignore_errors=True)
            self._say(f"removed the packed base in {stale}: the files of {cache.model} have changed")
        self._say(
            f"the packed base is kept for the next start: {cache.folder} "
            f"({self._layout.total_bytes / 2**30:.2f} GiB; remove the folder to free them)"
        )

    def _drop(self, reason: str) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._say(f"the packed base is not kept for the next start: {reason} ({self._cache.root})")


def _replace(folder: Path, place: Path) -> None:
    """Rename a folder into its place, and what was there away first; readers keep the files they have open."""
    old = folder.with_name(f"{folder.name}.old")
    with contextlib.suppress(FileNotFoundError):
        place.rename(old)
    try:
        folder.rename(place)
    except OSError:  # another run was faster: its copy is as good
        if not (place / INDEX).exists():
            raise
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _stale(cache: BaseCache) -> Iterator[Path]:
    """Packed bases of an earlier state of the same checkpoint."""
    for path in sorted(cache.root.glob(f"*/{INDEX}")):
        with contextlib.suppress(OSError, ValueError):
            index = json.loads(path.read_text(encoding="utf-8"))
            if index.get("model") == cache.model and index.get("checkpoint") != cache.fingerprint:
                yield path.parent


def _sweep(root: Path) -> None:
    """Remove what runs left that ended half-way: nobody holds its lock."""
    for lock in root.glob(f".*/{_LOCK}"):
        with contextlib.suppress(OSError):
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)
