"""Reads what a model folder says about itself: `config.json` and safetensors headers, never weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from pathlib import Path

from orchestrator.dataset.disk import expanded, is_file, is_folder, names_in, reading
from orchestrator.errors import Problem, UserError

# The format caps its header at 100 MB; more is a damaged file, not a model.
_MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_MOST_COMPARED = 1000
_NEAREST = 3
_LEAST_ALIKE = 0.6
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of a safetensors file: its shape and dtype (`BF16`, `F32`, `U8`, ...)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def hub_cache_dir(environment: Mapping[str, str], home: Path) -> Path:
    """Folder of the local Hugging Face cache, as huggingface_hub finds it.

    In this order: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, the home.
    """
    if environment.get("HF_HUB_CACHE"):
        return expanded(environment["HF_HUB_CACHE"])
    if environment.get("HF_HOME"):
        return expanded(environment["HF_HOME"]) / "hub"
    return expanded(environment.get("XDG_CACHE_HOME") or str(home / ".cache")) / "huggingface" / "hub"


def is_hub_id(path: str) -> bool:
    """Whether `path` has the form `org/name`."""
    return _HUB_ID.fullmatch(path) is not None


def resolve(path: str, hub_cache: Path, revision: str = "") -> Path | None:
    """Local folder of a model: a folder as it stands, or a hub id's snapshot in the cache.

    Returns None when a hub id has not been downloaded. Nothing is fetched.

    Raises:
        UserError: the system does not let this user look.
    """
    folder = expanded(path)
    if is_folder(folder):
        return folder
    if not is_hub_id(path):
        return None
    repository = hub_cache / f"models--{path.replace('/', '--')}"
    reference = repository / "refs" / (revision or "main")
    with reading(reference):
        commit = reference.read_text(encoding="utf-8", errors="replace").strip() if is_file(reference) else revision
    snapshot = repository / "snapshots" / commit
    return snapshot if commit and is_file(snapshot / "config.json") else None


def require_folder(path: str, hub_cache: Path, revision: str = "") -> Path:
    """Like `resolve`, but says what to do when there is nothing.

    Raises:
        UserError: no such folder, or a hub id that is not in the cache.
    """
    folder = resolve(path, hub_cache, revision)
    if folder is not None:
        return folder
    if is_hub_id(path):
        found = f"{path} is no folder and is not in the hub cache {hub_cache}"
        remedy = f"Download it first: hf download {path}."
    else:
        found, remedy = f"there is no folder {path}", "Give a folder with a config.json, or a hub id (org/name)."
    raise UserError(Problem(where="model", found=found, remedy=remedy))


def nearest_folders(path: str) -> tuple[str, ...]:
    """Folders beside `path`, with a config.json, whose names are much like its own; nearest first."""
    wanted = expanded(path)
    parent = wanted.parent
    if not is_folder(parent):
        return ()
    close = get_close_matches(wanted.name, names_in(parent)[:_MOST_COMPARED], n=_NEAREST, cutoff=_LEAST_ALIKE)
    return tuple(str(parent / name) for name in close if is_file(parent / name / "config.json"))


def read_config(folder: Path) -> Mapping[str, object]:
    """Parse `folder/config.json`.

    Raises:
        UserError: the file is missing or is no JSON object.
    """
    return _read_object(folder / "config.json", "Give a folder made by save_pretrained.")


def read_headers(folder: Path) -> Mapping[str, TensorInfo]:
    """All tensors of the folder's safetensors files by name; empty when it has none.

    Raises:
        UserError: a shard named by the index is missing, or a header is damaged.
    """
    tensors: dict[str, TensorInfo] = {}
    for path in _weight_files(folder):
        tensors.update(read_header(path))
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    # In the order in which transformers looks.
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if is_file(single):
        return [single]
    if not is_file(index):
        return []
    weight_map = _read_object(index, "Download the model again.").get("weight_map")
    if not isinstance(weight_map, dict):
        raise _damaged(index, "it has no weight_map")
    if not weight_map:
        raise _damaged(index, "its weight_map names no tensors")
    files = [folder / name for name in sorted({str(name) for name in weight_map.values()})]
    missing = [path for path in files if not is_file(path)]
    if missing:
        raise UserError(
            *(
                Problem(where=str(path), found=f"{index.name} names it, but it is missing", remedy="Download it again.")
                for path in missing
            )
        )
    return files


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors of one safetensors file by name.

    Raises:
        UserError: its header is damaged, or the file is cut.
    """
    with reading(path), path.open("rb") as file:
        size_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < size_bytes <= _MAX_HEADER_BYTES:
            raise _damaged(path, f"its header claims {size_bytes} bytes")
        raw = file.read(size_bytes)
        file_bytes = file.seek(0, os.SEEK_END)
    try:
        header = json.loads(raw)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = {
            name: TensorInfo(shape=tuple(int(size) for size in entry["shape"]), dtype=str(entry["dtype"]))
            for name, entry in entries.items()
        }
        data_bytes = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _damaged(path, f"its header does not parse ({error})") from error
    _check_size(path, file_bytes, _LENGTH_BYTES + size_bytes + data_bytes)
    return tensors


def _check_size(path: Path, file_bytes: int, described_bytes: int) -> None:
    if file_bytes == described_bytes:
        return
    cause = "the download was cut" if file_bytes < described_bytes else "something was added to it"
    raise _damaged(path, f"the file is {file_bytes} bytes, its header describes {described_bytes}: {cause}")


def _read_object(path: Path, remedy: str) -> Mapping[str, object]:
    if not is_file(path):
        raise UserError(Problem(where=str(path), found="there is no such file", remedy=remedy))
    try:
        with reading(path):
            value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(value, dict):
        raise _damaged(path, "it holds no JSON object")
    return value


def _damaged(path: Path, found: str) -> UserError:
    return UserError(Problem(where=str(path), found=found.rstrip(". "), remedy="Download or save the file again."))
