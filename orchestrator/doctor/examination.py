"""One examination: reads everything, puts load on the GPUs where asked, and judges."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

from orchestrator.doctor.adapt import bus_gpus, machine_evidence
from orchestrator.doctor.checks_container import check_container
from orchestrator.doctor.checks_health import check_health
from orchestrator.doctor.checks_limits import check_limits
from orchestrator.doctor.checks_load import check_load
from orchestrator.doctor.checks_numa import check_numa
from orchestrator.doctor.checks_nvlink import check_nvlink
from orchestrator.doctor.checks_p2p import check_p2p
from orchestrator.doctor.checks_pcie import check_pcie
from orchestrator.doctor.checks_versions import check_versions
from orchestrator.doctor.evidence import Evidence
from orchestrator.doctor.finding import Finding
from orchestrator.doctor.loads import Watcher, take_loads
from orchestrator.doctor.merge import merged
from orchestrator.doctor.progress import Progress
from orchestrator.doctor.read_limits import read_container, read_limits
from orchestrator.doctor.read_packages import read_packages
from orchestrator.doctor.read_pci import read_fabric_manager, read_pci
from orchestrator.doctor.watch import watch
from topology.probe import MachineReadings, read_machine
from topology.reading import Reading

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
        *check_load(machine, loads),
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
    watcher: Watcher = watch,
    progress: TextIO | None = None,
) -> Evidence:
    """Read all that the checks look at.

    Args:
        load: whether to put load on the visible GPUs.
        load_seconds: for how long, per GPU.
        root: where /proc, /sys and /dev are.
        environment: the process's own unless given.
        readings: of the machine, taken here unless given.
        watcher: puts load on a GPU and watches it.
        progress: where lines about the load go, standard error unless given.
    """
    variables = os.environ if environment is None else environment
    readings = read_machine(root, variables) if readings is None else readings
    machine = machine_evidence(readings)
    packages = read_packages(variables)
    addresses = [gpu.pci for gpu in machine.gpus if gpu.pci is not None]
    bridges = [bridge for gpu in machine.gpus for bridge in gpu.bridges.value or ()]

    return Evidence(
        machine=machine,
        limits=read_limits(root),
        container=read_container(root, variables, Reading(source="/sys/bus/pci/devices", value=bus_gpus(readings))),
        packages=packages,
        pci=read_pci(root, addresses, bridges),
        fabric_manager=read_fabric_manager(root, wanted=bool(machine.gpus)),
        loads=take_loads(
            machine.gpus,
            packages,
            wanted=load,
            seconds=load_seconds,
            watcher=watcher,
            progress=Progress(sys.stderr if progress is None else progress),
        ),
    )
