"""Tensors of a file that are read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open


class Lazy(Mapping[str, torch.Tensor]):
    """Tensors of a file, each read when it is asked for: those of all ranks together may not fit a rank's memory."""

    def __init__(self, path: Path) -> None:
        """Take a safetensors file."""
        opened: Any = safe_open  # untyped
        self._file = opened(path, framework="pt")
        self._names = tuple(self._file.keys())

    def __getitem__(self, name: str) -> torch.Tensor:
        """Read one."""
        if name not in self._names:
            raise KeyError(name)
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        """Names, in the order of the file."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many."""
        return len(self._names)
