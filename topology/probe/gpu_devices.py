"""Devices out of the readings of GPUs: a card, or each MIG device of one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from topology.checks import normal_pci
from topology.hardware import peak
from topology.model import Device, DeviceKind, Pcie
from topology.probe.host_parts import kernel_list
from topology.probe.host_readings import MAX_NODE, NOT_READ
from topology.probe.pci_places import pcie_or_none
from topology.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.probe.pci_places import Bus
    from topology.probe.readings import GpuReadings, HostReadings, MigReadings
    from topology.reading import Reading

_ENABLED: Final = 1
_JOINED: Final = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_MAX_MEMORY_BYTES: Final = 2**50
_MAX_MILLIWATTS: Final = 10**8
_NO_CLUSTER: Final = frozenset("0-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A device with the readings of its GPU, or none where it is left out; and what is worth telling."""

    device: Device | None
    gpu: GpuReadings
    warnings: tuple[str, ...] = ()


def is_open(gpu: GpuReadings) -> bool:
    """Whether the driver lets this process at the GPU at all: one that is lost or hidden fails every call."""
    named: tuple[Reading[object], ...] = (gpu.uuid, gpu.name, gpu.pci, gpu.memory_total_bytes)
    return any(reading.error is None for reading in named)


def has_mig(gpu: GpuReadings) -> bool:
    """Whether the GPU is cut into MIG devices, and so is none itself."""
    return gpu.mig_mode.value == _ENABLED


def address_of(gpu: GpuReadings) -> str | None:
    """Return the GPU's PCI address as sysfs writes it."""
    return normal_pci(gpu.pci.value or "")


def find_gpu(gpu: GpuReadings, host: HostReadings, host_name: str, bus: Bus) -> Found:
    """Build the device of a whole GPU."""
    label = f"GPU {gpu.index}" + (f" ({gpu.name.value})" if gpu.name.value else "")
    if has_mig(gpu):
        told = "MIG is on without a MIG device: left out (`nvidia-smi mig -cgi PROFILE -C` creates one)"
        return Found(device=None, gpu=gpu, warnings=(f"{label}: {told}",))
    named: Mapping[str, Reading[object]] = {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "pci": gpu.pci,
        "memory": gpu.memory_total_bytes,
        "compute capability": gpu.compute_capability,
    }
    faults = [f"{what} ({reading.error})" for what, reading in named.items() if reading.error is not None]
    warnings = [f"{label}: unreadable: {', '.join(faults)}"] if faults else []
    memory_bytes, free_bytes, notes = _memory(gpu, label)
    warnings += notes
    if memory_bytes is None and (known := peak(gpu.name.value or "")) is not None:
        memory_bytes = known.memory_bytes
        warnings.append(f"{label}: memory {format_bytes(memory_bytes)} taken from the {known.source}")
    device = replace(
        _common(gpu, host, host_name, bus),
        id=gpu.uuid.value or address_of(gpu) or f"{host_name}/gpu{gpu.index}",
        memory_bytes=memory_bytes,
        uuid=gpu.uuid.value or None,
        index=gpu.index,
        free_memory_bytes=free_bytes,
        power_limit_watts=_watts(gpu.power_limit_milliwatts.value),
        mig=None if gpu.mig_mode.value is None else False,
        fabric=_fabric(gpu),
        unread=("nvlink",) if _hides_links(gpu) else (),
    )
    return Found(device=device, gpu=gpu, warnings=tuple(warnings))


def find_mig(gpu: GpuReadings, mig: MigReadings, host: HostReadings, host_name: str, bus: Bus) -> Found:
    """Build the device of a MIG device of a GPU. NVLink and peer-to-peer are off in MIG mode."""
    label = f"GPU {gpu.index}, MIG device {mig.slot}"
    readings: Mapping[str, Reading[object]] = {"uuid": mig.uuid, "name": mig.name, "memory": mig.memory_total_bytes}
    faults = [f"{what} ({reading.error})" for what, reading in readings.items() if reading.error is not None]
    bare = replace(gpu, nvlinks=())
    if len(faults) == len(readings):
        told = f"{label}: left out, it cannot be opened ({mig.uuid.error})"
        return Found(device=None, gpu=bare, warnings=(told,))
    memory_bytes, free_bytes, notes = _memory(mig, label)
    parent = gpu.uuid.value or address_of(gpu) or f"{host_name}/gpu{gpu.index}"
    device = replace(
        _common(gpu, host, host_name, bus),
        id=mig.uuid.value or f"{parent}/mig{mig.slot}",
        name=mig.name.value or f"{gpu.name.value or 'unknown GPU'} MIG",
        memory_bytes=memory_bytes,
        uuid=mig.uuid.value or None,
        index=gpu.index,
        free_memory_bytes=free_bytes,
        mig=True,
        parent=parent,
    )
    warnings = (f"{label}: unreadable: {', '.join(faults)}",) if faults else ()
    return Found(device=device, gpu=bare, warnings=(*warnings, *notes))


def _hides_links(gpu: GpuReadings) -> bool:
    """Whether ports may be up that the driver does not tell of: a state that failed, or neither count nor state."""
    if any(port.state.error is not None for port in gpu.nvlinks):
        return True
    return not gpu.nvlinks and gpu.nvlink_count.error not in {None, NOT_READ.error}


def _memory(readings: GpuReadings | MigReadings, label: str) -> tuple[int | None, int | None, list[str]]:
    # Total, free, and what to tell: a driver in a bad way fills in zeros or all ones without an error.
    total, free = readings.memory_total_bytes.value, readings.memory_free_bytes.value
    if total is not None and not 0 < total < _MAX_MEMORY_BYTES:
        return None, None, [f"{label}: a memory of {total} bytes is not believed"]
    if free is not None and not 0 <= free <= (_MAX_MEMORY_BYTES if total is None else total):
        return total, None, [f"{label}: free memory of {free} bytes is not believed"]
    return total, free, []


def _common(gpu: GpuReadings, host: HostReadings, host_name: str, bus: Bus) -> Device:
    address = address_of(gpu)
    numa = _numa(gpu, host, bus)
    near = gpu.cpus.value or next((node.cpus.value for node in host.numa_nodes if node.node == numa), None)
    return Device(
        id="unnamed",
        host=host_name,
        kind=DeviceKind.gpu,
        name=gpu.name.value or "unknown GPU",
        memory_bytes=None,
        numa=numa,
        pci=address,
        compute_capability=_capability(gpu),
        pcie=_pcie(gpu, bus),
        cpus=kernel_list(near or ()),
    )


def _capability(gpu: GpuReadings) -> tuple[int, int] | None:
    found = gpu.compute_capability.value
    return None if found is None or min(found) < 0 else found


def _numa(gpu: GpuReadings, host: HostReadings, bus: Bus) -> int | None:
    # The kernel's word first. NVML's own node id is last: on coherent platforms it is the GPU's memory.
    told = bus.numa(address_of(gpu))
    if told is not None:
        return told
    near = set(gpu.cpus.value or ())
    nodes = [node.node for node in host.numa_nodes if near and near <= set(node.cpus.value or ())]
    if nodes:
        return nodes[0]
    memory = gpu.memory_nodes.value or ()
    if len(memory) == 1 and 0 <= memory[0] <= MAX_NODE:
        return memory[0]
    return gpu.numa.value if gpu.numa.value is not None and 0 <= gpu.numa.value <= MAX_NODE else None


def _pcie(gpu: GpuReadings, bus: Bus) -> Pcie | None:
    # Each figure from the driver, else from the kernel.
    driver = pcie_or_none(
        max_generation=gpu.pcie_max_generation.value,
        max_width=gpu.pcie_max_width.value,
        generation=gpu.pcie_generation.value,
        width=gpu.pcie_width.value,
        device_max_generation=gpu.pcie_device_max_generation.value,
    )
    kernel = bus.link_above(address_of(gpu))
    if driver is None or kernel is None:
        return driver or kernel
    named = ((item.name, getattr(driver, item.name), getattr(kernel, item.name)) for item in fields(Pcie))
    return Pcie(**{name: first if first is not None else second for name, first, second in named})


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts and 0 < milliwatts < _MAX_MILLIWATTS else None


def _fabric(gpu: GpuReadings) -> str | None:
    # A host that is its own NVLink domain (HGX) may report itself joined, without a cluster.
    cluster, clique = gpu.fabric_cluster.value, gpu.fabric_clique.value
    if gpu.fabric_state.value != _JOINED or not cluster or clique is None or set(cluster) <= _NO_CLUSTER:
        return None
    return f"{cluster}/{clique}"
