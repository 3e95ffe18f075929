"""The files of one checkpoint: written, brought to the disk, read again and compared; checked before they are used.

    step-00000050/
        parameters.safetensors   name -> adapter tensor (fp32 master where the engine keeps one)
        moments.safetensors      name + "@" + moment -> tensor
        rng.safetensors          generator states of each rank
        residuals.safetensors    rank + "." + name -> gradients that were not sent yet; only where they travel sparse
        state.json               step, samples, scheduler; bytes and checksum of the files and of itself; written last

Checksums find bits that turned, not forgeries: XXH3 with 128 bits, which reads faster than a disk delivers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from orchestrator.train.lazy import Lazy

SCHEMA = 2
STATE = "state.json"
_UNCHECKED = 1  # the schema before there were checksums: sizes alone
_TENSOR_FILES = ("parameters", "moments", "rng")
_RESIDUALS = "residuals"
_SUFFIX = ".safetensors"
_CHUNK_BYTES = 4 * 2**20
_Found = TypeVar("_Found")


class DamagedError(Exception):
    """A checkpoint that must not be used; says what is wrong with it.

    Attributes:
        is_read_error: the system refused to read, so the files may be whole.
    """

    def __init__(self, why: str, *, is_read_error: bool = False) -> None:
        """Say why."""
        super().__init__(why)
        self.is_read_error = is_read_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A whole training state; tensors are on the host.

    Attributes:
        step: optimizer steps done; the position in the data is `step` times the global batch.
        state: everything that is not a tensor (scheduler, scaler, world size, keys).
    """

    step: int
    parameters: Mapping[str, torch.Tensor]
    moments: Mapping[str, torch.Tensor]
    rng: Mapping[str, torch.Tensor]
    state: Mapping[str, Any]
    residuals: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        parts = (self.parameters, self.moments, self.rng, self.residuals)
        return sum(tensor.nbytes for part in parts for tensor in part.values())


def write_files(folder: Path, checkpoint: Checkpoint) -> int:
    """Write all files into an empty folder and read them again.

    Returns:
        Bytes of the files.

    Raises:
        DamagedError: the disk gives back something else.
        OSError: the disk refuses (safetensors has an error of its own for that).
    """
    files: dict[str, dict[str, Any]] = {}
    for name in (*_TENSOR_FILES, *([_RESIDUALS] if checkpoint.residuals else [])):
        path = folder / (name + _SUFFIX)
        tensors = {key: value.contiguous() for key, value in getattr(checkpoint, name).items()}
        save_file(tensors, path)
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "xxh3_128": _checksum(path)}
        _compare(path, tensors)
    body = sealed({"schema": SCHEMA, "step": checkpoint.step, "files": files, "state": checkpoint.state})
    state = folder / STATE
    state.write_text(json.dumps(body), encoding="utf-8")
    sync(state)
    sync(folder)
    check_sizes(folder)
    return sum(file.stat().st_size for file in folder.iterdir())


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of `state.json` with the checksum of all the rest of it."""
    rest = {key: value for key, value in body.items() if key != "xxh3_128"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return {**rest, "xxh3_128": xxhash.xxh3_128_hexdigest(text.encode())}


def check_sizes(folder: Path) -> None:
    """Check what takes no time: `state.json`, and that the files it names are there in full.

    Raises:
        DamagedError: saying the first thing that is wrong.
    """
    _guarded(folder, _check_sizes)


def check_whole(folder: Path) -> None:
    """Read all files and check them against their checksums (of schema 1: sizes, and that tensors can be read).

    Raises:
        DamagedError: saying the first thing that is wrong.
    """
    _guarded(folder, _check_whole)


def read_files(folder: Path) -> Checkpoint:
    """Read a checkpoint; residuals stay on the disk until they are asked for.

    Raises:
        DamagedError: files are missing, cannot be read or hold something else.
    """
    return _guarded(folder, _read)


def sync(path: Path) -> None:
    """Bring a file or folder to the disk: a rename alone does not survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _guarded(folder: Path, work: Callable[[Path], _Found]) -> _Found:
    try:
        return work(folder)
    except FileNotFoundError as error:
        name = Path(error.filename).name if error.filename else error
        raise DamagedError(f"{name} is missing") from error
    except OSError as error:
        why = f"{Path(error.filename or folder).name} cannot be read: {error.strerror or error}"
        raise DamagedError(why, is_read_error=True) from error
    except SafetensorError as error:
        raise DamagedError(f"it holds no whole tensors: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{STATE} makes no sense: {type(error).__name__}: {error}") from error


def _state(folder: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    if body["schema"] not in {SCHEMA, _UNCHECKED}:
        raise DamagedError(f"its schema {body['schema']} is not the known {SCHEMA}")
    if body["schema"] == SCHEMA and sealed(body)["xxh3_128"] != body["xxh3_128"]:
        raise DamagedError(f"{STATE} does not match its checksum")
    return body


def _listed(body: Mapping[str, Any]) -> dict[str, tuple[int, str | None]]:
    """Bytes and checksum by the name of the file; of schema 1 there are none."""
    if body["schema"] == _UNCHECKED:
        return {name: (int(size), None) for name, size in body["sizes"].items()}
    return {name: (int(held["bytes"]), str(held["xxh3_128"])) for name, held in body["files"].items()}


def _check_sizes(folder: Path) -> dict[str, Any]:
    body = _state(folder)
    listed = _listed(body)
    for name in (name + _SUFFIX for name in _TENSOR_FILES):
        if name not in listed:
            raise DamagedError(f"{STATE} does not name {name}")
    for name, (size_bytes, _) in listed.items():
        found = (folder / name).stat().st_size
        if found != size_bytes:
            raise DamagedError(f"{name} has {found} bytes instead of {size_bytes}")
    return body


def _check_whole(folder: Path) -> None:
    for name, (_, checksum) in _listed(_check_sizes(folder)).items():
        if checksum is None:
            load_file(folder / name)
        elif _checksum(folder / name) != checksum:
            raise DamagedError(f"{name} does not match its checksum")


def _read(folder: Path) -> Checkpoint:
    body = _check_sizes(folder)
    tensors = {name: load_file(folder / (name + _SUFFIX)) for name in _TENSOR_FILES}
    path = folder / (_RESIDUALS + _SUFFIX)
    residuals: Mapping[str, torch.Tensor] = Lazy(path) if path.name in _listed(body) else {}
    return Checkpoint(step=int(body["step"]), state=dict(body["state"]), residuals=residuals, **tensors)


def _checksum(path: Path) -> str:
    """Read a file from the disk; what the system remembers of it would prove nothing."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _compare(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    opened: Any = safe_open  # untyped
    with opened(path, framework="pt") as held:
        for name, tensor in tensors.items():
            found: torch.Tensor = held.get_tensor(name)
            if found.dtype != tensor.dtype or not torch.equal(_as_bytes(found), _as_bytes(tensor)):
                raise DamagedError(f"{path.name} was read back with another {name}")


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Compare bits: NaN is not equal to itself."""
    return tensor.reshape(-1).view(torch.uint8)
