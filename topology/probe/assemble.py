"""Raw readings -> Topology. Pure: the same readings give the same topology, on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topology.hardware import peak
from topology.model import Device, DeviceKind, Host, Nic, Topology
from topology.probe.fabric import join
from topology.probe.visible import select_visible
from topology.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.probe.readings import GpuReadings, HostReadings, MachineReadings, NicReadings, NvmlReadings
    from topology.reading import Reading

# Flags that decide a precision or a rate; a processor names some hundred more.
_FEATURES: Final = frozenset(
    {"avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
    | {"amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "sve", "sve2", "bf16"},
)


def assemble(readings: MachineReadings, source: str = "probe") -> Topology:
    """Build the topology of one host: its visible GPUs, or without any a CPU slot per usable core."""
    name = readings.host.name.value or "localhost"
    warnings = _host_warnings(readings.host)
    gpus, notes = _visible(readings.nvml)
    warnings += notes
    devices, kept = [], {}
    for gpu in gpus:
        device, faults = _gpu_device(gpu, readings.host, name)
        warnings += faults
        if device is not None:
            devices.append(device)
            kept[device.id] = gpu
    addresses = frozenset(gpu.pci.value for gpu in readings.nvml.gpus if gpu.pci.value is not None)
    fabric = join(kept, readings.nvml.ancestors, name, addresses)
    warnings += fabric.warnings
    if not devices:
        devices = list(_cpu_slots(readings.host, name))
        warnings.append(_no_gpu(readings.nvml, len(gpus), len(devices)))
    return Topology(
        hosts=(_host(readings.host, name, tuple(devices)),),
        links=fabric.links,
        pairs=fabric.pairs,
        switches=fabric.switches,
        warnings=tuple(warnings),
        source=source,
    )


def _visible(nvml: NvmlReadings) -> tuple[list[GpuReadings], list[str]]:
    chosen = select_visible([gpu.uuid.value for gpu in nvml.gpus], nvml.visible_devices)
    gpus, notes = [nvml.gpus[at] for at in chosen.positions], list(chosen.notes)
    by_index = nvml.visible_devices is not None and nvml.visible_devices[:1].isdecimal()
    if by_index and len({gpu.name.value for gpu in nvml.gpus}) > 1 and nvml.device_order != "PCI_BUS_ID":
        # NVML counts by PCI address, CUDA by default from the fastest card.
        notes.append(
            "CUDA_VISIBLE_DEVICES holds indices and the cards differ: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs",
        )
    return gpus, notes


def _no_gpu(nvml: NvmlReadings, visible: int, slots: int) -> str:
    reason = nvml.unavailable or "no usable GPU"
    if nvml.unavailable is None and not nvml.gpus:
        reason = "the NVIDIA driver shows no GPU"
    elif nvml.gpus and not visible:
        reason = "no GPU visible: CUDA_VISIBLE_DEVICES hides them"
    return f"{reason}; {slots} CPU slot(s) stand in for GPUs"


def _gpu_device(gpu: GpuReadings, host: HostReadings, host_name: str) -> tuple[Device | None, list[str]]:
    label = f"GPU {gpu.index}" + (f" ({gpu.name.value})" if gpu.name.value else "")
    named: Mapping[str, Reading[object]] = {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "pci": gpu.pci,
        "memory": gpu.memory_total_bytes,
        "compute capability": gpu.compute_capability,
    }
    faults = [f"{what} ({reading.error})" for what, reading in named.items() if reading.error is not None]
    warnings = [f"{label}: unreadable: {', '.join(faults)}"] if faults else []
    memory_bytes = gpu.memory_total_bytes.value
    if memory_bytes is None:
        known = peak(gpu.name.value or "")
        if known is None:
            return None, [*warnings, f"{label}: left out, since its memory is unknown"]
        memory_bytes = known.memory_bytes
        warnings.append(f"{label}: memory {format_bytes(memory_bytes)} taken from the {known.source}")
    device = Device(
        id=gpu.uuid.value or gpu.pci.value or f"{host_name}/gpu{gpu.index}",
        host=host_name,
        kind=DeviceKind.gpu,
        name=gpu.name.value or "unknown GPU",
        memory_bytes=memory_bytes,
        numa=_gpu_numa(gpu, host),
        pci=gpu.pci.value,
        uuid=gpu.uuid.value,
        index=gpu.index,
        compute_capability=gpu.compute_capability.value,
        free_memory_bytes=gpu.memory_free_bytes.value,
    )
    return device, warnings


def _gpu_numa(gpu: GpuReadings, host: HostReadings) -> int | None:
    # The kernel's word first. NVML's own node id is last: on coherent platforms it is the GPU's memory.
    for function in host.pci_functions:
        if function.address == gpu.pci.value and function.numa.value is not None:
            return function.numa.value
    near = set(gpu.cpus.value or ())
    nodes = [node.node for node in host.numa_nodes if near and near <= set(node.cpus.value or ())]
    if nodes:
        return nodes[0]
    return gpu.numa.value if gpu.numa.value is not None and gpu.numa.value >= 0 else None


def _cpu_slots(host: HostReadings, host_name: str) -> tuple[Device, ...]:
    cpus, cores = host.cpus.value or (), usable_cores(host)
    node_of = {cpu: node.node for node in host.numa_nodes for cpu in node.cpus.value or ()}
    features = tuple(sorted(_FEATURES.intersection(host.cpu_flags.value or ())))
    memory_bytes, free_bytes = _memory_bytes(host), _available_bytes(host)
    return tuple(
        Device(
            id=f"{host_name}/cpu{slot}",
            host=host_name,
            kind=DeviceKind.cpu,
            name=host.cpu_name.value or "unknown CPU",
            memory_bytes=None if memory_bytes is None else memory_bytes // cores,
            numa=node_of.get(cpus[slot]) if slot < len(cpus) else None,
            index=slot,
            cores=1,
            features=features,
            free_memory_bytes=None if free_bytes is None else free_bytes // cores,
        )
        for slot in range(cores)
    )


def usable_cores(host: HostReadings) -> int:
    """Return the logical CPUs this process may run on, cut to the whole cores of its quota; at least one."""
    allowed = len(host.cpus.value or (0,))
    quota = host.cpu_quota_cores.value
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def _memory_bytes(host: HostReadings) -> int | None:
    known = [host.memory_total_bytes.value, host.memory_limit_bytes.value]
    return min((value for value in known if value is not None), default=None)


def _available_bytes(host: HostReadings) -> int | None:
    known = [host.memory_available_bytes.value, host.memory_headroom_bytes.value]
    return min((value for value in known if value is not None), default=None)


def _host(host: HostReadings, name: str, devices: tuple[Device, ...]) -> Host:
    memory_bytes, total_bytes = _memory_bytes(host), host.memory_total_bytes.value
    return Host(
        name=name,
        memory_bytes=memory_bytes,
        cores=usable_cores(host),
        devices=devices,
        available_memory_bytes=_available_bytes(host),
        memory_limit_bytes=None if memory_bytes == total_bytes else memory_bytes,
        sockets=host.sockets.value,
        threads_per_core=host.threads_per_core.value or 1,
        nics=tuple(_nic(nic, name) for nic in host.nics),
        cpu_name=host.cpu_name.value,
        clock_hz=host.clock_hz.value,
    )


def _nic(nic: NicReadings, host_name: str) -> Nic:
    return Nic(
        id=f"{host_name}/{nic.name}",
        name=nic.name,
        kind=nic.kind,
        bytes_per_second=nic.bytes_per_second.value,
        numa=nic.numa.value,
        pci=nic.pci.value,
    )


def _host_warnings(host: HostReadings) -> list[str]:
    # Only what later stages lean on: a clock or a socket count that is missing changes no plan.
    named: Mapping[str, Reading[object]] = {"usable CPUs": host.cpus, "host memory": host.memory_total_bytes}
    warnings = [f"{what} unreadable ({reading.error})" for what, reading in named.items() if reading.error is not None]
    total, limit = host.memory_total_bytes.value, host.memory_limit_bytes.value
    if total is not None and limit is not None and limit < total:
        warnings.append(f"host memory limited to {format_bytes(limit)} of {format_bytes(total)} by a control group")
    down = [nic.name for nic in host.nics if nic.bytes_per_second.error == "PORT_DOWN"]
    return [*warnings, *(f"NIC {name}: the port is down" for name in down)]
