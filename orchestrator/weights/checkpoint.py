"""Where each tensor of a checkpoint lies on disk, and reading it: each byte once, counted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from orchestrator.errors import Problem, UserError
from orchestrator.workload.files import read_headers

_LENGTH_BYTES: Final = 8  # of the header's length, at the start of a safetensors file
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096
_MOST_BYTES: Final = 2**30  # the kernel reads little more at once


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a checkpoint.

    Attributes:
        name: as the file has it.
        file: which of the checkpoint's files.
        begin: its first byte in the file.
        nbytes: all of its bytes.
        dtype: as safetensors names it (`BF16`, `F32`, `U8`, ...).
        shape: elements along each dimension.
    """

    name: str
    file: int
    begin: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The safetensors files of a model folder.

    Attributes:
        folder: where they are.
        files: in the order of their names.
        tensors: by name.
        fingerprint: of the files' names, sizes, times, headers and some samples of their bytes; another checkpoint,
            or a changed one, has another.
    """

    folder: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    fingerprint: str

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find all tensors of a folder.

    Raises:
        UserError: no safetensors, files missing, or headers damaged.
    """
    if not read_headers(folder):  # tells all that can be wrong with them
        raise _no_safetensors(folder)
    files = _files(folder)
    tensors: dict[str, StoredTensor] = {}
    seal = hashlib.sha256()
    for at, path in enumerate(files):
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header = file.read(header_bytes)
        seal.update(_traits(path, header))
        for name, entry in json.loads(header).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = StoredTensor(
                    name=name,
                    file=at,
                    begin=_LENGTH_BYTES + header_bytes + begin,
                    nbytes=end - begin,
                    dtype=str(entry["dtype"]),
                    shape=tuple(entry["shape"]),
                )
    return Checkpoint(folder=folder, files=files, tensors=tensors, fingerprint=seal.hexdigest())


def _traits(path: Path, header: bytes) -> bytes:
    """What tells a file from another one, without reading all of it."""
    stat = path.stat()
    seal = hashlib.sha256(repr((path.name, stat.st_size, stat.st_mtime_ns)).encode() + header)
    with path.open("rb") as file:
        for sample in range(_SAMPLES):  # a copy may keep the time of another file
            file.seek(max(0, (stat.st_size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1)))
            seal.update(file.read(_SAMPLE_BYTES))
    return seal.digest()


def _files(folder: Path) -> tuple[Path, ...]:
    single = folder / _SINGLE  # transformers looks for it first
    if single.is_file():
        return (single,)
    weight_map = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
    return tuple(folder / name for name in sorted(set(weight_map.values())))


def _no_safetensors(folder: Path) -> UserError:
    pickles = [name for name in _PICKLES if (folder / name).is_file()]
    if pickles:
        found = f"only {pickles[0]}: a pickled checkpoint cannot be read one tensor at a time"
        remedy = (
            "Save it as safetensors once: `AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)` on a "
            "machine that holds the model, or use engine=ddp."
        )
    else:
        found, remedy = f"neither {_SINGLE} nor {_INDEX}", "Download the model again, or save it with save_pretrained."
    return UserError(Problem(where=str(folder), found=found, remedy=remedy))


class ByteReader:
    """Reads spans of files into memory that the caller provides, and counts the bytes.

    Nothing is mapped: a mapped file counts as this process's memory, and how much of it depends on the kernel.
    """

    def __init__(self, files: tuple[Path, ...]) -> None:
        """Open nothing yet."""
        self._files = files
        self._open: dict[int, int] = {}
        self.read_bytes = 0

    def read_into(self, file: int, begin: int, target: memoryview) -> None:
        """Fill `target` with the bytes from `begin` on.

        Raises:
            UserError: the file is shorter, or the disk fails.
        """
        path = self._files[file]
        done = 0
        try:
            if file not in self._open:
                self._open[file] = os.open(path, os.O_RDONLY)
            while done < len(target):
                count = os.preadv(self._open[file], [target[done : done + _MOST_BYTES]], begin + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise _unreadable(path, f"reading it failed ({error.strerror or error})") from error
        if done < len(target):
            raise _unreadable(path, f"it ends before byte {begin + len(target)}")
        self.read_bytes += done

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __enter__(self) -> Self:
        """Return the reader itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close all files."""
        self.close()


def _unreadable(path: Path, found: str) -> UserError:
    remedy = "Check the disk, and download or save the file again."
    return UserError(Problem(where=str(path), found=found, remedy=remedy))
