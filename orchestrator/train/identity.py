"""What a run is tied to: the base's bytes across ranks, and base and data across a resume."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers.utils import cached_file

from orchestrator.config import BaseConfig, RunConfig
from orchestrator.dataset.cache import PartRows
from orchestrator.dataset.examples import Example
from orchestrator.engines.base import frozen_tensors
from orchestrator.train.sources import order_of

_NUM_SAMPLES = 32
_ROWS_PER_BEAT = 4096
_SAMPLE_BYTES = 1 << 16


def base_checksum(model: nn.Module) -> str:
    """Return a checksum of the frozen base, computed where the bytes are.

    Each tensor adds the sum of its bytes and of every seventh byte; it finds a wrong file or a
    damaged copy, not a forger.
    """
    digest = hashlib.sha256()
    if any(hasattr(parameter, "ds_tensor") for parameter in model.parameters()):
        return "partitioned on load"  # each rank holds other bytes, all read from one copy
    for tensor in frozen_tensors(model):
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        sums = (int(flat.sum(dtype=torch.int64)), int(flat[::7].sum(dtype=torch.int64)))
        digest.update(f"{tuple(tensor.shape)}{sums}".encode())
    return digest.hexdigest()[:16]


def resume_keys(
    config: RunConfig,
    rows: Sequence[Example],
    parts: Sequence[PartRows] = (),
    beat: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Return what a checkpoint must share with the run that continues it.

    Args:
        config: of the run.
        rows: to train on.
        parts: sources of a mixture.
        beat: told now and then: millions of rows take minutes.
    """
    digest = hashlib.sha256()
    for number, row in enumerate(rows):
        if number % _ROWS_PER_BEAT == 0:
            beat()
        digest.update(np.ascontiguousarray(row.input_ids).tobytes())
        digest.update(np.ascontiguousarray(row.labels).tobytes())
    order = (config.seed, config.batch.global_, config.data.group_by_length)
    mixture = {"data.sources": order_of(config, parts)} if parts else {}
    return {
        **mixture,
        "base": _base_key(config),
        "data": digest.hexdigest()[:16],
        "order": "seed {}, global batch {}, grouped {}".format(*order),
        "base.quant": _quant_key(config.base),
    }


def _quant_key(base: BaseConfig) -> str:
    told = f"{base.quant.value}, double {base.double_quant}"
    patterns = ",".join(f"{pattern}:{kind.value}" for pattern, kind in base.quant_pattern)
    return f"{told}, {patterns}" if patterns else told


def _samples(path: Path) -> Iterator[bytes]:
    """Yield pieces from all over a file: a 70B base is too long to read for a key."""
    size_bytes = path.stat().st_size
    with path.open("rb") as stream:
        for number in range(_NUM_SAMPLES):
            stream.seek(number * size_bytes // _NUM_SAMPLES)
            yield stream.read(_SAMPLE_BYTES)


def _base_key(config: RunConfig) -> str:
    revision = {"revision": config.model.revision} if config.model.revision else {}
    found = cached_file(config.model.path, "config.json", **revision)
    folder = Path(str(found)).parent
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()[:16]
