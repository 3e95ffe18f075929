"""One examination: reads everything, puts load on the GPUs where asked, and judges."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from orchestrator.doctor.adapt import bus_gpus, machine_evidence
from orchestrator.doctor.checks_container import check_container
from orchestrator.doctor.checks_health import check_health
from orchestrator.doctor.checks_limits import check_limits
from orchestrator.doctor.checks_numa import check_numa
from orchestrator.doctor.checks_nvlink import check_nvlink
from orchestrator.doctor.checks_p2p import check_p2p
from orchestrator.doctor.checks_pcie import check_pcie
from orchestrator.doctor.checks_versions import check_versions
from orchestrator.doctor.evidence import Evidence, GpuEvidence, LoadEvidence, PackageEvidence
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.merge import merged
from orchestrator.doctor.read_limits import read_container, read_limits
from orchestrator.doctor.read_packages import read_packages
from orchestrator.doctor.read_pci import read_fabric_manager, read_pci
from orchestrator.doctor.watch import watch
from topology.probe import MachineReadings, read_machine
from topology.reading import Reading
from topology.units import MIB, format_bytes

# The load process allocates 256 MiB on the GPU, and a CUDA context takes about as much again.
_LOAD_BYTES: Final = 1024 * MIB
LOAD_SECONDS: Final = 1.0
_MOST_SECONDS: Final = 60.0


def examine(*, load: bool = True, load_seconds: float = LOAD_SECONDS) -> tuple[Finding, ...]:
    """Examine this host, this process and this installation.

    What cannot be read becomes a note: nothing is raised for it.

    Args:
        load: whether to copy data to each visible GPU while its PCIe link is watched.
        load_seconds: for how long, per GPU; at most a minute, since the GPUs may be in use.
    """
    return judge(read_evidence(load=load, load_seconds=min(load_seconds, _MOST_SECONDS)))


def judge(evidence: Evidence) -> tuple[Finding, ...]:
    """Apply every check. Pure: the same evidence gives the same findings."""
    machine, loads = evidence.machine, evidence.loads
    findings = (
        *check_container(evidence.container, machine),
        *check_versions(evidence.packages, machine, loads),
        *check_health(machine, loads),
        *check_pcie(machine, loads),
        *check_nvlink(machine, evidence.fabric_manager),
        *check_p2p(machine, evidence.pci),
        *check_numa(machine),
        *check_limits(evidence.limits, machine),
    )
    return merged(findings, [gpu.label for gpu in machine.gpus])


def read_evidence(
    *,
    load: bool,
    load_seconds: float = LOAD_SECONDS,
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    readings: MachineReadings | None = None,
    watcher: Callable[[str, float], LoadEvidence] = watch,
) -> Evidence:
    """Read all that the checks look at.

    Args:
        load: whether to put load on the visible GPUs.
        load_seconds: for how long, per GPU.
        root: where /proc, /sys and /dev are.
        environment: the process's own unless given.
        readings: of the machine, taken here unless given.
        watcher: puts load on a GPU and watches it.
    """
    variables = os.environ if environment is None else environment
    readings = read_machine(root, variables) if readings is None else readings
    machine = machine_evidence(readings)
    packages = read_packages(variables)
    addresses = [gpu.pci for gpu in machine.gpus if gpu.pci is not None]
    bridges = [bridge for gpu in machine.gpus for bridge in gpu.bridges.value or ()]

    def why_not(gpu: GpuEvidence) -> str | None:
        return _why_not(gpu, packages) if load else "load=false"

    return Evidence(
        machine=machine,
        limits=read_limits(root),
        container=read_container(root, variables, Reading(source="/sys/bus/pci/devices", value=bus_gpus(readings))),
        packages=packages,
        pci=read_pci(root, addresses, bridges),
        fabric_manager=read_fabric_manager(root, wanted=bool(machine.gpus)),
        loads=tuple(_loaded(gpu, why_not(gpu), load_seconds, watcher) for gpu in machine.gpus),
    )


def _loaded(
    gpu: GpuEvidence, why_not: str | None, seconds: float, watcher: Callable[[str, float], LoadEvidence]
) -> LoadEvidence:
    """One GPU after the other: several at once would share the ports above them."""
    return watcher(gpu.id, seconds) if why_not is None else LoadEvidence(gpu=gpu.id, failure=why_not)


def _why_not(gpu: GpuEvidence, packages: PackageEvidence) -> str | None:
    """Why no load can be put on this GPU, or None."""
    free = gpu.memory_free_bytes.value
    reasons = (
        (not gpu.is_visible, "CUDA_VISIBLE_DEVICES hides it"),
        (gpu.lost is not None, gpu.lost or ""),
        (not gpu.id.startswith("GPU-"), "its UUID is unknown"),
        (packages.torch_cuda.value is None, f"no torch with CUDA ({packages.torch_cuda.error})"),
        (
            free is not None and free < _LOAD_BYTES,
            f"{format_bytes(free or 0)} of its memory are free, {format_bytes(_LOAD_BYTES)} are needed",
        ),
    )
    return next((reason for applies, reason in reasons if applies), None)
