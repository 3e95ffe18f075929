"""The versions of what a run is made of, read from the packages' metadata: nothing heavy is imported."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any, Final

from orchestrator.doctor.read_packages import torch_cuda_of, version_of

VERSION: Final = "0.1.0"
SHOWN: Final = (
    *("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "deepspeed", "datasets"),
    *("hydra-core", "nvidia-ml-py"),
)
_OPTIONAL: Final = ("tensorboard", "wandb", "mlflow", "mlflow-skinny", "optuna", "submitit")
_DRIVER_FILES: Final = ("proc/driver/nvidia/version", "sys/module/nvidia/version")


def versions(root: Path = Path("/")) -> dict[str, Any]:
    """Return the versions as plain values; None for what is not there.

    Args:
        root: where the kernel's files are. The driver is not asked: a hanging one would hang this.
    """
    found = {name: version_of(name) for name in SHOWN}
    return {
        "schema": 1,
        "trainmaster": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "packages": found,
        "optional": {name: version for name in _OPTIONAL if (version := version_of(name)) is not None},
        "torch_cuda": torch_cuda_of(found["torch"]).value,
        "driver": _driver(root),
    }


def to_text(body: dict[str, Any]) -> str:
    """Return a line for each."""
    rows = [("python", f"{body['python']} on {body['platform']}")]
    for name, version in body["packages"].items():
        built = f" (CUDA {body['torch_cuda']})" if body["torch_cuda"] else " (CPU build)"
        rows.append((name, "not installed" if version is None else version + (built if name == "torch" else "")))
    rows.append(("NVIDIA driver", body["driver"] or "not found"))
    rows += body["optional"].items()
    width = max(len(name) for name, _ in rows)
    return "".join(f"{line}\n" for line in (f"trainmaster {VERSION}", *(f"  {name:{width}}  {v}" for name, v in rows)))


def _driver(root: Path) -> str | None:
    for name in _DRIVER_FILES:
        try:
            text = (root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if match := re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text):
            return match[0]
    return None
