"""NVLink that should be there and is not: dead ports, an unfinished fabric, the fabric manager."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from orchestrator.doctor.evidence import FabricManagerEvidence, GpuEvidence, MachineEvidence
from orchestrator.doctor.finding import Finding, error, note, passed, unread, warning
from topology.reading import Reading

# Cards whose module carries NVLink by itself. PCIe cards get it by a bridge that may be missing on purpose.
# Product names as the driver prints them, NVIDIA data sheets (2026-01).
_NVLINK_MODULE: Final = re.compile(
    r"P100-SXM|V100-SXM|A100-SXM|A800-SXM|H100 80GB HBM3|H100 SXM|H800(?! PCIe)|H200(?! NVL)|H20\b|GH200|"
    r"\bB[123]00\b|GB[23]00"
)
_COMPLETED: Final = 3
_FABRIC_STATES: Final = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_CHECK: Final = "nvlink"
_START: Final = (
    "Install nvidia-fabricmanager in exactly the driver's version, start it (`systemctl enable --now "
    "nvidia-fabricmanager`), then `nvidia-smi nvlink -s` and `nvidia-smi -q | grep -A3 Fabric`. In a container or "
    "virtual machine this is the host's affair."
)


_ONE_CARD: Final = (
    "Its peers have NVLink, so the fabric manager and the switches work: look at this card. `nvidia-smi nvlink -s -i "
    "UUID`, `Xid 74` and `SXid` in dmesg; reset it (`nvidia-smi -r -i UUID` as root) or reboot; if it stays, have card "
    "or board replaced. Until then leave it out by CUDA_VISIBLE_DEVICES."
)


def check_nvlink(machine: MachineEvidence, manager: FabricManagerEvidence) -> tuple[Finding, ...]:
    """Judge the NVLink ports of each GPU against its kind and its equals, and the fabric manager.

    GPUs in MIG mode are left out: NVLink is off in it.
    """
    gpus = tuple(gpu for gpu in machine.gpus if gpu.lost is None and not gpu.mig)
    groups: dict[str, list[GpuEvidence]] = defaultdict(list)
    for gpu in gpus:
        groups[gpu.name].append(gpu)
    # With a working equal beside it, a silent or dark GPU is at fault by itself; without, what all share is.
    single = [item for group in groups.values() if any(map(_active, group)) for item in _odd_ones(group)]
    carriers = tuple(gpu for gpu in gpus if _NVLINK_MODULE.search(gpu.name) and not any(map(_active, groups[gpu.name])))
    found = [*_fabric(gpus, manager), *single, *_dead(carriers, len(gpus), manager), *_degraded(groups)]
    found += _manager_version(machine, manager)
    if not found and any(_active(gpu) for gpu in gpus):
        ports = sorted({_active(gpu) for gpu in gpus})
        found.append(passed(_CHECK, f"NVLink: {' or '.join(map(str, ports))} active port(s) a GPU"))
    return tuple(found)


def _active(gpu: GpuEvidence) -> int:
    return sum(port.value == 1 for port in gpu.nvlink.ports)


def _fabric(gpus: tuple[GpuEvidence, ...], manager: FabricManagerEvidence) -> Iterator[Finding]:
    check, states = "fabric-manager", [(gpu, gpu.nvlink.fabric_state.value) for gpu in gpus]
    waiting = [(gpu, state) for gpu, state in states if state is not None and 0 < state < _COMPLETED]
    if not waiting:
        return
    evidence = "; ".join(f"{gpu.label}: fabric {_FABRIC_STATES.get(state, state)}" for gpu, state in waiting)
    joined = sum(state == _COMPLETED for _, state in states)
    if joined:
        title = f"{len(waiting)} GPU(s) have not joined the NVLink fabric that {joined} other(s) are in"
        ids = ",".join(gpu.id for gpu, _ in waiting)
        yield error(check, title, f"{evidence}; {_manager(manager)}", _ONE_CARD.replace("UUID", ids))
    else:
        title = "the NVLink fabric is not set up: CUDA fails with error 802, system not yet initialized"
        yield error(check, title, f"{evidence}; {_manager(manager)}", _START)


def _odd_ones(group: list[GpuEvidence]) -> Iterator[Finding]:
    """GPUs without any active port, or with ports that do not tell, among equals whose ports are active."""
    working = [gpu for gpu in group if _active(gpu) and not _unread_ports(gpu)]
    if not working:  # none tells of all its ports
        yield unread(_CHECK, "the state of some NVLink ports", [port for gpu in group for port in _unread_ports(gpu)])
        return
    beside = f"{len(working)} equal GPU(s) have up to {max(map(_active, working))} active ports"
    for gpu in group:
        unread_ports, remedy = _unread_ports(gpu), _ONE_CARD.replace("UUID", gpu.id)
        if not _NVLINK_MODULE.search(gpu.name):  # its bridge may be missing on purpose
            yield from [unread(_CHECK, f"{gpu.label}: its NVLink ports", unread_ports)] if unread_ports else []
        elif unread_ports or not gpu.nvlink.ports:
            codes = ", ".join(sorted({f"{port.source}: {port.error}" for port in unread_ports})) or "no port is told of"
            title = f"{gpu.label}: the state of its NVLink ports cannot be read, while its equals tell theirs"
            yield warning(_CHECK, title, f"{codes}; {beside}", remedy)
        elif not _active(gpu):
            evidence = f"0 of {len(gpu.nvlink.ports)} ports active; {beside}"
            yield error(
                _CHECK, f"{gpu.label}: all its NVLinks are down, while its equals have theirs", evidence, remedy
            )


def _unread_ports(gpu: GpuEvidence) -> list[Reading[int]]:
    return [port for port in gpu.nvlink.ports if port.error is not None]


def _dead(carriers: tuple[GpuEvidence, ...], num_gpus: int, manager: FabricManagerEvidence) -> Iterator[Finding]:
    """Modules with NVLink of which no port is active, where there is somebody to talk to."""
    silent = [gpu for gpu in carriers if not gpu.nvlink.ports]
    down = [gpu for gpu in carriers if gpu.nvlink.ports]
    unread_ports = [port for gpu in down for port in _unread_ports(gpu)]
    if num_gpus < 2:  # noqa: PLR2004 - a link takes two
        return
    if silent:
        names = ", ".join(gpu.label for gpu in silent)
        title = f"{len(silent)} GPU(s) of a kind that has NVLink tell nothing about it"
        yield note(_CHECK, title, names, "Usual in virtual machines: see `nvidia-smi nvlink -s` on the host.")
    if unread_ports:
        yield unread(_CHECK, "the state of NVLink ports", unread_ports)
    elif down:
        evidence = "; ".join(f"{gpu.label}: 0 of {len(gpu.nvlink.ports)} ports active" for gpu in down)
        switches = manager.switches.value
        seen = "" if not switches else f"; {len(switches)} NVSwitch(es) on the PCI bus"
        title = "NVLink is down: GPUs built for it talk over PCIe"
        yield error(_CHECK, title, f"{evidence}{seen}; {_manager(manager)}", _START)


def _degraded(groups: Mapping[str, list[GpuEvidence]]) -> Iterator[Finding]:
    for group in groups.values():
        most = max(_active(gpu) for gpu in group)
        fewer = [gpu for gpu in group if 0 < _active(gpu) < most and not _unread_ports(gpu)]
        if fewer:
            evidence = "; ".join(f"{gpu.label}: {_active(gpu)} of {most} ports" for gpu in fewer)
            remedy = (
                "`nvidia-smi nvlink -e` shows errors of a port, dmesg `Xid 74`. Reset the GPU, then reseat it or its "
                "bridge; if it stays, have the card replaced. Collectives run at the weakest card's rate."
            )
            yield warning(_CHECK, "some GPUs have fewer active NVLink ports than their equals", evidence, remedy)


def _manager(manager: FabricManagerEvidence) -> str:
    if manager.running.value is None:
        return f"whether the fabric manager runs is unknown ({manager.running.error})"
    return "the fabric manager runs" if manager.running.value else "no nv-fabricmanager process is visible here"


def _manager_version(machine: MachineEvidence, manager: FabricManagerEvidence) -> Iterator[Finding]:
    driver, version = machine.driver.value, manager.version.value
    if driver is None or version is None or not machine.gpus:
        return
    if driver != version:
        title = "fabric manager and driver are of different versions: it refuses to start"
        yield error("fabric-manager", title, f"fabric manager {version}, driver {driver}", _START)
