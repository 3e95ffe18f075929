"""Raw readings -> Topology. Pure: the same readings give the same topology, on any machine."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.checks import printable
from topology.model import Topology
from topology.pcie_tree import pcie_labels
from topology.probe.fabric import join, level_labels
from topology.probe.gpu_devices import address_of, find_gpu, find_mig, has_mig, is_open
from topology.probe.gpu_notes import left_out, level_notes
from topology.probe.host_parts import MAX_DEVICES, cpu_slots, host_of, host_warnings, is_virtual
from topology.probe.host_readings import DISPLAY, NVIDIA, NVSWITCH
from topology.probe.p2p import p2p_warnings
from topology.probe.pci_places import Bus, pcie_tree
from topology.probe.printable import printable_readings
from topology.probe.visible import visible_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.model import Device, Host
    from topology.pcie_tree import PcieTree
    from topology.probe.fabric import Fabric
    from topology.probe.gpu_devices import Found
    from topology.probe.readings import GpuReadings, HostReadings, MachineReadings, MigReadings, NvmlReadings

_MAX_NAMED: Final = 16
_BROKEN: Final = frozenset({"TIMEOUT", "CRASHED", "NOT_STARTED"})  # there is a driver, in a bad way


def assemble(readings: MachineReadings, source: str = "probe") -> Topology:
    """Build the topology of one host: its visible GPUs, or without any a CPU slot per usable core."""
    readings = printable_readings(readings)
    host, nvml = readings.host, readings.nvml
    name = host.name.value or "localhost"
    bus = Bus(host, is_virtual=is_virtual(host) is True)
    warnings = host_warnings(host)
    chosen, told = visible_gpus(nvml)
    found = [_found(gpu, mig, host, name, bus) for gpu, mig in chosen]
    warnings += [*left_out(nvml), *told, *(text for one in found for text in one.warnings)]
    kept, notes = _kept(found)
    warnings += notes
    devices = tuple(kept) or cpu_slots(host, name)
    whole = host_of(host, name, devices)
    levels = level_labels(nvml.gpus, nvml.ancestors)
    tree = pcie_tree(name, host, bus, tuple(kept), levels)
    fabric = _fabric(kept, readings, _tree_labels(tuple(kept), levels, whole, tree), name)
    warnings += [*level_notes(kept.values(), levels, _nvlinked(kept, fabric)), *tree.warnings, *fabric.warnings]
    warnings += p2p_warnings({gpu.index for gpu in kept.values() if not has_mig(gpu)}, nvml.p2p)
    warnings += _unseen(host, nvml)
    if not kept:
        warnings.append(_no_gpu(readings, len(chosen), len(devices)))
    return Topology(
        hosts=(whole,),
        links=(*fabric.links, *tree.links),
        pairs=fabric.pairs,
        switches=(*fabric.switches, *tree.switches),
        warnings=tuple(dict.fromkeys(printable(text) for text in warnings)),
        source=source,
    )


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
        if len(kept) == MAX_DEVICES:
            notes.append(f"more than {MAX_DEVICES} devices: the others are left out")
            break
        taken.add(device.id)
        kept[device] = one.gpu
    return kept, notes


def _tree_labels(
    kept: Sequence[Device], levels: Mapping[frozenset[str], str], host: Host, tree: PcieTree
) -> Mapping[frozenset[str], str]:
    # What the driver does not tell of two GPUs, the kernel's device paths or NUMA nodes may.
    addresses = dict.fromkeys(device.pci or "?" for device in kept)
    if all(frozenset(ends) in levels for ends in combinations(addresses, 2)):
        return {}
    return pcie_labels(Topology(hosts=(host,), links=tree.links, switches=tree.switches))


def _nvlinked(kept: Mapping[Device, GpuReadings], fabric: Fabric) -> set[frozenset[str]]:
    address = {device.id: device.pci or "?" for device in kept}
    return {frozenset((address[pair.a], address[pair.b])) for pair in fabric.pairs if pair.is_nvlink}


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
        reason += f", while {len(on_bus)} NVIDIA GPU(s) are on the PCI bus ({named})"
        is_broken = nvml.driver_version.error in _BROKEN
        reason += "" if is_broken else ": load the driver, or give this container the devices"
    return f"{reason}; {num_slots} CPU slot(s) stand in for GPUs"
