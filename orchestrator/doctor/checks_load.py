"""Whether torch can start CUDA at all: what the load process met on its way to the GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from orchestrator.doctor.evidence import GpuEvidence, LoadEvidence, MachineEvidence, NoLoad
from orchestrator.doctor.finding import Finding, error, passed, warning

_CHECK: Final = "cuda-start"
_REINSTALL: Final = (
    "Reinstall torch with its nvidia-* packages in a clean environment (https://pytorch.org/get-started); look for "
    "libraries of another CUDA in LD_LIBRARY_PATH and LD_PRELOAD. `python -X faulthandler -c 'import torch'` shows "
    "where it fails."
)
_LOOK: Final = (
    "`python -c 'import torch; torch.cuda.init()'` shows all of the message, `dmesg | grep -iE 'nvrm|xid'` the "
    "driver's side."
)
_NO_CUDA: Final = (
    "NVML sees it and CUDA does not: look for /dev/nvidia-uvm (`nvidia-modprobe -u -c=0`) and for a libcuda.so.1 of "
    f"the driver's version (`ldconfig -p | grep libcuda`). {_LOOK}"
)
# What CUDA says -> what helps, the first that fits.
_REMEDIES: Final = (
    (
        r"driver.*too old",
        "Install a newer driver, or a torch built for an older CUDA (https://pytorch.org/get-started).",
    ),
    (
        r"\b802\b|not yet initialized",
        "The NVLink fabric is not up: start nvidia-fabricmanager in the driver's version.",
    ),
    (
        r"\b804\b|forward compat",
        "Take NVIDIA's cuda-compat libraries out of LD_LIBRARY_PATH: this card cannot use them.",
    ),
    (r"not compiled with CUDA", "Install a torch for the driver's CUDA: https://pytorch.org/get-started."),
    (r"sees no GPU|no CUDA GPUs|no NVIDIA driver|unknown error|no CUDA-capable", _NO_CUDA),
    (r"ended by signal", f"Libraries that do not fit each other end like this. {_REINSTALL}"),
)
_SICK: Final = (
    "`dmesg | grep -iE 'nvrm|xid'` names the fault of the card; end all work on it and reset it (`nvidia-smi -r -i "
    "UUID` as root), and have it replaced if the fault comes back."
)
_SLOW: Final = (
    "Time `python -c 'import torch'` (a network disk?), look for processes that hang (`ps -eo stat,comm | grep ^D`) "
    "and for `Xid` in dmesg; then run it again."
)


def check_load(machine: MachineEvidence, loads: tuple[LoadEvidence, ...]) -> tuple[Finding, ...]:
    """Tell the failures that a training would meet, too; what kept the load away is for the check of the link."""
    gpus = {gpu.id: gpu for gpu in machine.gpus}
    started = sum(load.bytes_per_second is not None for load in loads)
    found = [item for load in loads if load.gpu in gpus for item in _failed(gpus[load.gpu], load)]
    if started:
        found.append(passed(_CHECK, f"torch starts CUDA and copies data on {started} GPU(s)"))
    return tuple(found)


def _failed(gpu: GpuEvidence, load: LoadEvidence) -> Iterator[Finding]:
    why = load.failure or "no reason known"
    if load.kind is NoLoad.TORCH_FAILED:
        yield error(_CHECK, "torch cannot be imported: every run fails", why, _REINSTALL)
    elif load.kind is NoLoad.CUDA_FAILED:
        remedy = next((text for said, text in _REMEDIES if re.search(said, why, re.IGNORECASE)), _LOOK)
        yield error(_CHECK, f"{gpu.label}: torch cannot start CUDA on it: runs fail", why, remedy)
    elif load.kind is NoLoad.COPY_FAILED:
        yield error(_CHECK, f"{gpu.label}: copying data to it fails", why, _SICK.replace("UUID", gpu.id))
    elif load.kind is NoLoad.LATE:
        yield warning(_CHECK, f"{gpu.label}: torch and CUDA did not get ready in time", why, _SLOW)
