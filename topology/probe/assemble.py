"""Raw readings -> Topology. Pure: the same readings give the same topology, on any machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from topology.model import Topology
from topology.pcie_tree import pcie_labels
from topology.probe.fabric import join, level_labels
from topology.probe.gpu_devices import address_of, find_gpu, find_mig, has_mig, is_open
from topology.probe.host_parts import cpu_slots, host_of, host_warnings, is_virtual
from topology.probe.host_readings import DISPLAY, NVIDIA, NVSWITCH
from topology.probe.p2p import p2p_warnings
from topology.probe.pci_places import Bus, pcie_tree
from topology.probe.visible import Slice, select_visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.model import Device, Host
    from topology.pcie_tree import PcieTree
    from topology.probe.fabric import Fabric
    from topology.probe.gpu_devices import Found
    from topology.probe.readings import GpuReadings, HostReadings, MachineReadings, MigReadings, NvmlReadings

_MAX_NAMED: Final = 16


def assemble(readings: MachineReadings, source: str = "probe") -> Topology:
    """Build the topology of one host: its visible GPUs, or without any a CPU slot per usable core."""
    host, nvml = readings.host, readings.nvml
    name = host.name.value or "localhost"
    bus = Bus(host, is_virtual=is_virtual(host) is True)
    warnings = host_warnings(host)
    chosen, notes = _visible(nvml)
    found = [_found(gpu, mig, host, name, bus) for gpu, mig in chosen]
    warnings += [*notes, *(text for one in found for text in one.warnings)]
    kept, notes = _kept(found)
    warnings += notes
    devices = tuple(kept) or cpu_slots(host, name)
    whole = host_of(host, name, devices)
    tree = pcie_tree(name, host, bus, tuple(kept), level_labels(nvml.gpus, nvml.ancestors))
    placed = [device.id for device in kept if bus.is_placed(device.pci)]
    fabric = _fabric(kept, readings, _kernel_labels(placed, nvml, whole, tree), name)
    warnings += [*tree.warnings, *fabric.warnings]
    warnings += p2p_warnings({gpu.index for gpu in kept.values() if not has_mig(gpu)}, nvml.p2p)
    warnings += _unseen(host, nvml)
    if not kept:
        warnings.append(_no_gpu(readings, len(chosen), len(devices)))
    return Topology(
        hosts=(whole,),
        links=(*fabric.links, *tree.links),
        pairs=fabric.pairs,
        switches=(*fabric.switches, *tree.switches),
        warnings=tuple(dict.fromkeys(warnings)),
        source=source,
    )


def _visible(nvml: NvmlReadings) -> tuple[list[tuple[GpuReadings, MigReadings | None]], list[str]]:
    # CUDA counts the GPUs it can open.
    gpus = [gpu for gpu in nvml.gpus if is_open(gpu)]
    notes = [
        f"GPU {gpu.index}: left out, it cannot be opened ({gpu.uuid.error})" for gpu in nvml.gpus if not is_open(gpu)
    ]
    slices = [[_names(mig) for mig in gpu.mig_devices] if has_mig(gpu) else [] for gpu in gpus]
    visible = select_visible([gpu.uuid.value for gpu in gpus], nvml.visible_devices, slices)
    notes += visible.notes
    by_index = nvml.visible_devices is not None and nvml.visible_devices[:1].isdecimal()
    if by_index and len({gpu.name.value for gpu in gpus}) > 1 and nvml.device_order != "PCI_BUS_ID":
        # NVML counts by PCI address, CUDA by default from the fastest card.
        notes.append(
            "CUDA_VISIBLE_DEVICES holds indices and the cards differ: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs",
        )
    chosen = [(gpus[at], None if mig is None else gpus[at].mig_devices[mig]) for at, mig in visible.chosen]
    return chosen, notes


def _names(mig: MigReadings) -> Slice:
    ids = (mig.gpu_instance.value, mig.compute_instance.value)
    return Slice(uuid=mig.uuid.value, instances=None if None in ids else f"{ids[0]}/{ids[1]}")


def _found(gpu: GpuReadings, mig: MigReadings | None, host: HostReadings, name: str, bus: Bus) -> Found:
    return find_gpu(gpu, host, name, bus) if mig is None else find_mig(gpu, mig, host, name, bus)


def _kept(found: Sequence[Found]) -> tuple[dict[Device, GpuReadings], list[str]]:
    kept: dict[Device, GpuReadings] = {}
    taken: set[str] = set()
    notes = []
    for one in found:
        device = one.device
        if device is None:
            continue
        if device.id in taken:
            # Copied virtual machines may show one UUID for all: then the address tells the GPUs apart.
            notes.append(f"GPU {one.gpu.index}: its UUID {device.id} is another GPU's too")
            others = (device.pci, f"{device.host}/gpu{one.gpu.index}")
            device = replace(device, id=next((name for name in others if name and name not in taken), device.id))
        taken.add(device.id)
        kept[device] = one.gpu
    return kept, notes


def _kernel_labels(
    placed: Sequence[str], nvml: NvmlReadings, host: Host, tree: PcieTree
) -> Mapping[frozenset[str], str]:
    # What the driver does not tell of these devices, the kernel's device paths do.
    if not placed or all(row.level.value is not None for row in nvml.ancestors):
        return {}
    labels = pcie_labels(Topology(hosts=(host,), links=tree.links, switches=tree.switches))
    return {ends: label for ends, label in labels.items() if ends <= set(placed)}


def _fabric(
    kept: Mapping[Device, GpuReadings], readings: MachineReadings, labels: Mapping[frozenset[str], str], name: str
) -> Fabric:
    nvml, host = readings.nvml, readings.host
    shown = {address for gpu in nvml.gpus if (address := address_of(gpu)) is not None}
    on_bus = (function for function in host.pci_functions if function.vendor_id.value == NVIDIA)
    switches = (function.address for function in on_bus if (function.class_code.value or 0) >> 8 == NVSWITCH)
    gpus = {device.id: gpu for device, gpu in kept.items()}
    return join(gpus, nvml.ancestors, name, frozenset(shown.union(_bus_gpus(host))), labels, frozenset(switches))


def _bus_gpus(host: HostReadings) -> list[str]:
    return [
        function.address
        for function in host.pci_functions
        if function.vendor_id.value == NVIDIA and (function.class_code.value or 0) >> 16 == DISPLAY
    ]


def _unseen(host: HostReadings, nvml: NvmlReadings) -> list[str]:
    on_bus = _bus_gpus(host)
    shown = {address_of(gpu) for gpu in nvml.gpus}
    unseen = [address for address in on_bus if address not in shown]
    if not unseen or not nvml.gpus or None in shown:
        return []
    why = "they belong to other containers or jobs, or have no driver"
    return [f"{len(unseen)} of {len(on_bus)} NVIDIA GPUs on the PCI bus are not shown by the driver: {why}"]


def _no_gpu(readings: MachineReadings, num_visible: int, num_slots: int) -> str:
    nvml, on_bus = readings.nvml, _bus_gpus(readings.host)
    reason = nvml.unavailable or "no usable GPU"
    if nvml.unavailable is None and not nvml.gpus:
        reason = "the NVIDIA driver shows no GPU"
    elif nvml.gpus and not num_visible and any(is_open(gpu) for gpu in nvml.gpus):
        reason = "no GPU visible: CUDA_VISIBLE_DEVICES hides them"
    if on_bus and not nvml.gpus:
        named = ", ".join(on_bus[:_MAX_NAMED])
        reason += f", while {len(on_bus)} NVIDIA GPU(s) are on the PCI bus ({named}): load the driver, or give this "
        reason += "container the devices"
    return f"{reason}; {num_slots} CPU slot(s) stand in for GPUs"
