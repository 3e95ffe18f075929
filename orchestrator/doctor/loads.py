"""Puts load on one GPU after the other, and stops where more of it would only take more time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orchestrator.doctor.evidence import GpuEvidence, LoadEvidence, NoLoad, PackageEvidence
from orchestrator.doctor.progress import Progress
from orchestrator.doctor.watch import FIRST_SECONDS, LATER_SECONDS
from topology.units import MIB, format_bytes

# The load process allocates 256 MiB on the GPU, and a CUDA context takes about as much again.
_LOAD_BYTES: Final = 1024 * MIB
# Failures of the installation or the driver: the next GPU would wait as long for the same.
_LASTING: Final = frozenset({NoLoad.TORCH_FAILED, NoLoad.CUDA_FAILED, NoLoad.LATE})

Watcher = Callable[..., LoadEvidence]
"""Called as `orchestrator.doctor.watch.watch`."""


def take_loads(
    gpus: tuple[GpuEvidence, ...],
    packages: PackageEvidence,
    *,
    wanted: bool,
    seconds: float,
    watcher: Watcher,
    progress: Progress,
) -> tuple[LoadEvidence, ...]:
    """Measure each GPU that may be used: one by one, since several at once would share the ports above them.

    The first may take FIRST_SECONDS to start, the others LATER_SECONDS. After a failure to start nothing more is tried.
    """
    reasons = {gpu.id: why_not(gpu, packages, wanted=wanted) for gpu in gpus}
    usable = [gpu for gpu in gpus if reasons[gpu.id] is None]
    found = {gpu: LoadEvidence(gpu=gpu, kind=why[0], failure=why[1]) for gpu, why in reasons.items() if why is not None}
    failed: GpuEvidence | None = None
    for at, gpu in enumerate(usable):
        if failed is not None:
            told = f"not tried, since it failed on {failed.label}"
            found[gpu.id] = LoadEvidence(gpu=gpu.id, kind=NoLoad.NOT_TRIED, failure=told)
            continue
        progress.step(f"measuring the PCIe link of {gpu.label} ({at + 1} of {len(usable)})")
        found[gpu.id] = watcher(
            gpu.id,
            seconds,
            cuda_name=gpu.slices[0] if gpu.slices else None,
            patience_seconds=LATER_SECONDS if at else FIRST_SECONDS,
            tick=progress.tick,
        )
        failed = gpu if found[gpu.id].kind in _LASTING else None
    return tuple(found[gpu.id] for gpu in gpus)


def why_not(gpu: GpuEvidence, packages: PackageEvidence, *, wanted: bool) -> tuple[NoLoad, str] | None:
    """Why no load can be put on this GPU, or None."""
    free = gpu.memory_free_bytes.value if gpu.memory_fault is None else None
    short = f"{format_bytes(free or 0)} of its memory are free, {format_bytes(_LOAD_BYTES)} are needed"
    reasons = (
        (not wanted, NoLoad.SWITCHED_OFF, "load=false"),
        (gpu.lost is not None, NoLoad.LOST, gpu.lost or ""),
        (gpu.mig and not gpu.slices and gpu.is_visible, NoLoad.UNCUT, "MIG is on, without a MIG device"),
        (not gpu.is_visible, NoLoad.HIDDEN, "CUDA_VISIBLE_DEVICES hides it"),
        (not gpu.id.startswith("GPU-"), NoLoad.UNNAMED, "its UUID is unknown"),
        (packages.torch_cuda.value is None, NoLoad.NO_TORCH, f"no torch with CUDA ({packages.torch_cuda.error})"),
        (free is not None and free < _LOAD_BYTES, NoLoad.BUSY, short),
    )
    return next(((kind, text) for applies, kind, text in reasons if applies), None)
