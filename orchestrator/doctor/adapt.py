"""Raw readings of a machine -> the evidence of the checks: the one place that knows how the readings are named."""

from __future__ import annotations

from typing import Any, Final

from orchestrator.doctor.evidence import (
    GpuEvidence,
    HealthEvidence,
    MachineEvidence,
    NicEvidence,
    NvlinkEvidence,
    PairEvidence,
    PcieEvidence,
    unknown,
)
from topology.probe.readings import GpuReadings, HostReadings, MachineReadings, NvmlReadings, PciReadings
from topology.probe.visible import select_visible
from topology.reading import Reading

_NVIDIA: Final = 0x10DE
_DISPLAY: Final = 0x03
# GT/s of one lane to PCIe generation (PCI Express base specification 6.0).
_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def machine_evidence(readings: MachineReadings) -> MachineEvidence:
    """Pick out what the checks look at."""
    nvml, host = readings.nvml, readings.host
    shown = select_visible([gpu.uuid.value for gpu in nvml.gpus], nvml.visible_devices).positions
    functions = {function.address: function for function in host.pci_functions}
    gpus = tuple(_gpu(gpu, functions, is_visible=at in shown) for at, gpu in enumerate(nvml.gpus))
    return MachineEvidence(
        driver=nvml.driver_version,
        unavailable=nvml.unavailable,
        visible_devices=nvml.visible_devices,
        gpus=gpus,
        pairs=_pairs(nvml, gpus),
        nics=tuple(NicEvidence(name=nic.name, kind=nic.kind, numa=nic.numa) for nic in host.nics),
        cpus=host.cpus,
        memory_limit_bytes=host.memory_limit_bytes,
        memory_headroom_bytes=host.memory_headroom_bytes,
        is_virtual=_is_virtual(host),
    )


def bus_gpus(readings: MachineReadings) -> tuple[str, ...]:
    """PCI addresses of NVIDIA GPUs on the bus, with or without a driver."""
    return tuple(
        function.address
        for function in readings.host.pci_functions
        if function.vendor_id.value == _NVIDIA and (function.class_code.value or 0) >> 16 == _DISPLAY
    )


def _gpu(gpu: GpuReadings, functions: dict[str, PciReadings], *, is_visible: bool) -> GpuEvidence:
    function = functions.get(gpu.pci.value or "")
    return GpuEvidence(
        id=gpu.uuid.value or gpu.pci.value or f"NVML index {gpu.index}",
        name=gpu.name.value or "unnamed GPU",
        pci=gpu.pci.value,
        is_visible=is_visible,
        capability=gpu.compute_capability,
        memory_free_bytes=gpu.memory_free_bytes,
        numa=unknown("PCI function", "NOT_FOUND") if function is None else function.numa,
        cpus=gpu.cpus,
        lost=_lost(gpu),
        bridges=_bridges(function),
        pcie=_pcie(gpu, function, functions),
        nvlink=NvlinkEvidence(ports=tuple(link.state for link in gpu.nvlinks), fabric_state=gpu.fabric_state),
        health=HealthEvidence(
            event_reasons=gpu.clock_reasons,
            remap_pending=_part(gpu.remapped_rows, 2),
            remap_failed=_part(gpu.remapped_rows, 3),
            retired_pending=gpu.retired_pages_pending,
            ecc_now=gpu.ecc_mode,
            ecc_pending=gpu.ecc_pending_mode,
        ),
    )


def _lost(gpu: GpuReadings) -> str | None:
    first = (gpu.uuid, gpu.name, gpu.memory_total_bytes)
    gone = next((reading for reading in first if reading.error == "GPU_IS_LOST"), None)
    if gone is None and all(reading.error is not None for reading in first):
        gone = gpu.uuid
    return None if gone is None else f"{gone.source}: {gone.error}"


def _bridges(function: PciReadings | None) -> Reading[tuple[str, ...]]:
    """The ports above, nearest first; the host bridge itself is none."""
    if function is None:
        return Reading(source="PCI function", error="NOT_FOUND")
    above = function.above
    ports = None if above.value is None else tuple(reversed(above.value[1:]))
    return Reading(source=above.source, value=ports, error=above.error)


def _pcie(gpu: GpuReadings, function: PciReadings | None, functions: dict[str, PciReadings]) -> PcieEvidence:
    # An idle card may announce 2.5 GT/s as its own maximum to the kernel, so NVML's word comes first.
    own_speed, own_width = _capability(function)
    bridges = _bridges(function).value
    port_speed, port_width = _capability(functions.get(bridges[0]) if bridges else None)
    return PcieEvidence(
        card_generation=_first(gpu.pcie_device_max_generation, gpu.pcie_max_generation, own_speed),
        card_width=_first(own_width, gpu.pcie_max_width),
        slot_generation=_first(port_speed, gpu.pcie_max_generation),
        slot_width=_first(port_width, gpu.pcie_max_width),
    )


def _capability(function: PciReadings | None) -> tuple[Reading[int], Reading[int]]:
    if function is None:
        return unknown("PCI port above", "NOT_FOUND"), unknown("PCI port above", "NOT_FOUND")
    speed = function.max_speed_gt
    generation = _GENERATIONS.get(speed.value) if speed.value is not None else None
    code = None if generation is not None else speed.error or "UNKNOWN_SPEED"
    return Reading(source=speed.source, value=generation, error=code), function.max_width


def _first(*readings: Reading[int]) -> Reading[int]:
    return next((reading for reading in readings if reading.value), readings[0])


def _part(reading: Reading[Any], at: int) -> Reading[int]:
    if reading.value is None:
        return Reading(source=reading.source, error=reading.error)
    return Reading(source=reading.source, value=int(reading.value[at]))


def _pairs(nvml: NvmlReadings, gpus: tuple[GpuEvidence, ...]) -> tuple[PairEvidence, ...]:
    by_index = {gpu.index: found for gpu, found in zip(nvml.gpus, gpus, strict=True)}
    levels = {frozenset((item.a_index, item.b_index)): item.level for item in nvml.ancestors}
    statuses = {frozenset((item.a_index, item.b_index)): item.read for item in nvml.p2p}
    found = []
    for key in {**levels, **statuses}:
        ends = [by_index[index] for index in sorted(key) if index in by_index]
        if len(ends) == 2 and all(end.is_visible and end.lost is None for end in ends):  # noqa: PLR2004 - a pair
            found.append(
                PairEvidence(
                    a=ends[0].id,
                    b=ends[1].id,
                    level=levels.get(key, unknown("nvmlDeviceGetTopologyCommonAncestor", "NOT_READ")),
                    p2p=statuses.get(key, unknown("nvmlDeviceGetP2PStatus", "NOT_READ")),
                )
            )
    return tuple(found)


def _is_virtual(host: HostReadings) -> Reading[bool]:
    if host.hypervisor.value is not None:
        return Reading(source=host.hypervisor.source, value=True)
    if host.cpu_flags.value is None:
        return Reading(source=host.cpu_flags.source, error=host.cpu_flags.error)
    return Reading(source=host.cpu_flags.source, value="hypervisor" in host.cpu_flags.value)
