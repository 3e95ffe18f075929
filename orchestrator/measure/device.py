"""The parts that are measured on a device: `python -m orchestrator.measure.device REQUEST` (see `serve`)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from orchestrator.measure.serve import Entry, Request, serve

_PACKAGES = ("torch", "bitsandbytes", "transformers", "peft", "trl")


def main(arguments: list[str]) -> int:
    """Measure; returns the exit code."""
    # Asked before CUDA starts: what others use is not this process's.
    before = _used_before(arguments[0])
    import torch

    from orchestrator.measure import kernels
    from orchestrator.measure.context import context

    request = json.loads(arguments[0])
    if request["device"] == "cpu":
        torch.set_num_threads(request["threads"])

    def in_context(asked: Request) -> list[Entry]:
        return context(asked, before)

    measures = {
        "context": in_context,
        "gemm": kernels.gemm,
        "memory": kernels.copies,
        "dequantise": kernels.dequantise,
        "transfer": kernels.transfers,
        "overhead": _overhead,
        "layer": _layer,
    }
    return serve(arguments, measures, versions)


def _overhead(request: Request) -> list[Entry]:
    from orchestrator.measure import layers

    return layers.overhead(request)


def _layer(request: Request) -> list[Entry]:
    from orchestrator.measure import layers

    return layers.layer(request)


def versions() -> Mapping[str, str]:
    """Versions of the libraries that were measured."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _used_before(request: str) -> int:
    if "context" not in json.loads(request)["parts"] or "CUDA_VISIBLE_DEVICES" not in os.environ:
        return 0
    from orchestrator.measure.context import used_bytes

    return used_bytes()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
