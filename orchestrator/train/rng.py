"""Generator states of one rank, as tensors that a checkpoint can hold."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch

_PYTHON = "python"
_NUMPY = "numpy"
_TORCH = "torch"
_CUDA = "cuda"


def capture() -> dict[str, torch.Tensor]:
    """Return the states of Python's, numpy's and torch's generators."""
    _, words, _ = random.getstate()
    _, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - state of the global one
    states = {
        _PYTHON: torch.tensor(words, dtype=torch.int64),
        _NUMPY: torch.tensor([*map(int, keys), int(position)], dtype=torch.int64),
        f"{_NUMPY}.gauss": torch.tensor([float(has_gauss), float(gauss)], dtype=torch.float64),
        _TORCH: torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states[_CUDA] = torch.cuda.get_rng_state()
    return states


def restore(states: Mapping[str, torch.Tensor]) -> None:
    """Put captured states back; a state this machine has no generator for is left out."""
    words = tuple(int(word) for word in states[_PYTHON])
    random.setstate((3, words, None))
    *keys, position = (int(word) for word in states[_NUMPY])
    has_gauss, gauss = (float(value) for value in states[f"{_NUMPY}.gauss"])
    np.random.set_state(  # noqa: NPY002
        ("MT19937", np.array(keys, dtype=np.uint32), position, int(has_gauss), gauss)
    )
    torch.set_rng_state(states[_TORCH])
    if _CUDA in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[_CUDA])


def seed_rank(seed: int, rank: int, step: int = 0) -> None:
    """Seed all generators of a rank that has no saved state."""
    mixed = (seed * 1_000_003 + rank * 7_919 + step) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002 - libraries draw from the global one
    torch.manual_seed(mixed)
