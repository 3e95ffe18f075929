"""The checkpoint format: gathered adapters and moments, independent of engine and world size.

    checkpoints/step-00000050/
        parameters.safetensors   name -> adapter tensor (fp32 master where the engine keeps one)
        moments.safetensors      name + "@" + moment -> tensor
        rng.safetensors          generator states of each rank
        residuals.safetensors    rank + "." + name -> gradients that were not sent yet; only where they travel sparse
        state.json               step, samples, scheduler, sizes of the files; written last

A checkpoint is written under a temporary name and renamed, so one that exists under its own name
is whole unless the disk lied; sizes are checked all the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from orchestrator.errors import Problem, UserError
from orchestrator.train.lazy import Lazy

SCHEMA = 1
_NAME = re.compile(r"^step-(\d+)$")
_TEMPORARY = "incomplete-"
_STATE = "state.json"
_TENSOR_FILES = ("parameters", "moments", "rng")
_RESIDUALS = "residuals"


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


class CheckpointStore:
    """Reads and writes the checkpoints of one run directory (rank 0 writes, all may read)."""

    def __init__(self, root: Path, keep: int) -> None:
        """Use the folder `root`, and keep this many newest checkpoints."""
        self._root = root
        self._keep = keep

    def list_complete(self) -> tuple[list[Path], list[str]]:
        """Return whole checkpoints, oldest first, and a message for each one ignored."""
        whole: list[tuple[int, Path]] = []
        ignored: list[str] = []
        for path in sorted(self._root.iterdir()) if self._root.is_dir() else []:
            match = _NAME.match(path.name)
            reason = _why_incomplete(path) if match else "it was being written when the run ended"
            if match and reason is None:
                whole.append((int(match.group(1)), path))
            elif match or path.name.startswith(_TEMPORARY):
                ignored.append(f"ignoring incomplete checkpoint {path.name}: {reason}")
        return [path for _, path in sorted(whole)], ignored

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write one checkpoint and drop the oldest beyond `keep`.

        Raises:
            UserError: when the disk refuses; earlier checkpoints stay as they are.
        """
        final = self._root / f"step-{checkpoint.step:08d}"
        temporary = self._root / f"{_TEMPORARY}{final.name}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            _write_files(temporary, checkpoint)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
            _sync(self._root)
        except Exception as error:
            # safetensors reports a full disk as an error type of its own, hence no narrower clause
            shutil.rmtree(temporary, ignore_errors=True)
            raise UserError(self._write_problem(final, error)) from error
        self._drop_old()
        return final

    def read(self, path: Path) -> Checkpoint:
        """Read a checkpoint that `list_complete` named."""
        state = json.loads((path / _STATE).read_text(encoding="utf-8"))
        tensors = {name: load_file(path / f"{name}.safetensors") for name in _TENSOR_FILES}
        path = path / f"{_RESIDUALS}.safetensors"
        residuals = Lazy(path) if path.name in state["sizes"] else {}
        return Checkpoint(step=state["step"], state=state["state"], residuals=residuals, **tensors)

    def _drop_old(self) -> None:
        whole, _ = self.list_complete()
        for path in whole[: -self._keep]:
            shutil.rmtree(path, ignore_errors=True)
        for path in self._root.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _write_problem(self, final: Path, error: Exception) -> Problem:
        whole, _ = self.list_complete()
        kept = f"The last good checkpoint is kept: {whole[-1]}" if whole else "No checkpoint yet"
        return Problem(
            where=str(final),
            found=f"could not write the checkpoint: {_reason(error, self._root)}",
            remedy=f"Free space or change the permissions, then run again with resume=true. {kept}",
        )


def _reason(error: Exception, root: Path) -> str:
    free_bytes = shutil.disk_usage(root if root.is_dir() else root.parent).free
    cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{cause} ({free_bytes / 2**20:.1f} MiB free)"


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    sizes: dict[str, int] = {}
    for name in (*_TENSOR_FILES, *([_RESIDUALS] if checkpoint.residuals else [])):
        path = folder / f"{name}.safetensors"
        tensors: Mapping[str, torch.Tensor] = getattr(checkpoint, name)
        save_file({key: value.contiguous() for key, value in tensors.items()}, path)
        _sync(path)
        sizes[path.name] = path.stat().st_size
    body = {"schema": SCHEMA, "step": checkpoint.step, "sizes": sizes, "state": checkpoint.state}
    state = folder / _STATE
    state.write_text(json.dumps(body), encoding="utf-8")
    _sync(state)
    _sync(folder)


def _sync(path: Path) -> None:
    """Bring a file or folder to the disk: a rename alone does not survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why_incomplete(path: Path) -> str | None:
    try:
        body = json.loads((path / _STATE).read_text(encoding="utf-8"))
        if body["schema"] != SCHEMA:
            return f"schema {body['schema']} is not the known {SCHEMA}"
        for name, size_bytes in body["sizes"].items():
            found = (path / name).stat().st_size
            if found != size_bytes:
                return f"{name} has {found} bytes instead of {size_bytes}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
