"""Reads the versions of installed packages from their metadata: nothing is imported, torch least of all."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from orchestrator.doctor.evidence import PackageEvidence
from orchestrator.doctor.read_limits import AbsentError, attempt
from topology.reading import Reading

# What a run imports, and what these import in turn; only their requirements on each other are looked at.
_STACK: Final = (
    "trainmaster",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "bitsandbytes",
    "deepspeed",
    "datasets",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "hydra-core",
    "omegaconf",
    "numpy",
    "pyarrow",
    "triton",
    "nvidia-ml-py",
    "nvidia-nccl-cu11",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
_BUILD: Final = re.compile(r"\+cu(\d{2})(\d+)")
_CUDA_LINE: Final = re.compile(r"^cuda(?:\s*:[^=]+)?\s*=\s*(?:'([\d.]+)'|None)", re.MULTILINE)
_BNB_LIBRARY: Final = re.compile(r"libbitsandbytes_cuda(\d{2})(\d+)\.(?:so|dll)$")


def read_packages(environment: Mapping[str, str]) -> PackageEvidence:
    """Read versions, stated requirements, and which CUDA torch and bitsandbytes were built for."""
    found = {name: version for name in _STACK if (version := version_of(name)) is not None}
    requirements = [(name, line) for name in found for line in _requires(name) if "extra ==" not in line]
    return PackageEvidence(
        versions=tuple(found.items()),
        requirements=tuple((name, line) for name, line in requirements if _names(line) in found),
        torch_cuda=torch_cuda_of(found.get("torch")),
        bnb_cuda=attempt("files of bitsandbytes", _bnb_cuda),
        bnb_override=environment.get("BNB_CUDA_VERSION"),
        machine=platform.machine(),
    )


def version_of(name: str) -> str | None:
    """Return the version of an installed package; None where it is absent, or its metadata damaged."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, KeyError, OSError, ValueError):
        return None


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return []


def _names(line: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", line)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def torch_cuda_of(version: str | None) -> Reading[str]:
    """From the version's suffix (`+cu128`, `+cpu`), else from the text of torch/version.py (wheels of PyPI)."""
    source = "version of torch"
    if version is None:
        return Reading(source=source, error="NOT_INSTALLED")
    if (match := _BUILD.search(version)) is not None:
        return Reading(source=source, value=f"{match[1]}.{match[2]}")
    if version.endswith("+cpu"):
        return Reading(source=source, error="CPU_BUILD")
    return attempt("torch/version.py", _cuda_line)


def _cuda_line() -> str:
    path = Path(str(importlib.metadata.distribution("torch").locate_file("torch/version.py")))
    match = _CUDA_LINE.search(path.read_text(encoding="utf-8", errors="replace"))
    if match is None:
        raise AbsentError("NO_CUDA_LINE")
    if match[1] is None:
        raise AbsentError("CPU_BUILD")
    return match[1]


def _bnb_cuda() -> tuple[str, ...]:
    try:
        folder = Path(str(importlib.metadata.distribution("bitsandbytes").locate_file("bitsandbytes")))
    except importlib.metadata.PackageNotFoundError as absent:
        raise AbsentError("NOT_INSTALLED") from absent
    matches = (_BNB_LIBRARY.search(path.name) for path in sorted(folder.iterdir()))
    return tuple(f"{match[1]}.{match[2]}" for match in matches if match is not None)
