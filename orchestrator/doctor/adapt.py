"""Raw readings of a machine -> the evidence of the checks: the one place that knows how the readings are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from orchestrator.doctor.evidence import (
    MOST_GENERATION,
    MOST_LANES,
    GpuEvidence,
    HealthEvidence,
    MachineEvidence,
    NicEvidence,
    NvlinkEvidence,
    PairEvidence,
    PcieEvidence,
    unknown,
)
from topology.probe import visible_gpus
from topology.probe.gpu_devices import has_mig
from topology.probe.readings import (
    GpuReadings,
    HostReadings,
    MachineReadings,
    MigReadings,
    NvlinkReadings,
    NvmlReadings,
    PciReadings,
)
from topology.reading import Reading

_NVIDIA: Final = 0x10DE
_DISPLAY: Final = 0x03
_ANY_MEMORY_BYTES: Final = 2**47
_TO_GPU, _TO_SWITCH = 0, 2  # NVML_NVLINK_DEVICE_TYPE_GPU and _SWITCH
# GT/s of one lane to PCIe generation (PCI Express base specification 6.0).
_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def machine_evidence(readings: MachineReadings) -> MachineEvidence:
    """Pick out what the checks look at."""
    nvml, host = readings.nvml, readings.host
    chosen, notes = visible_gpus(nvml)
    shown = _shown(chosen)
    functions = {function.address: function for function in host.pci_functions}
    gpus = tuple(_gpu(gpu, functions, shown.get(gpu.index)) for gpu in nvml.gpus)
    return MachineEvidence(
        driver=nvml.driver_version,
        unavailable=nvml.unavailable,
        visible_devices=nvml.visible_devices,
        visibility=notes,
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


def _shown(chosen: Iterable[tuple[GpuReadings, MigReadings | None]]) -> dict[int, tuple[str, ...]]:
    """The GPUs that CUDA may use, by NVML index, with the UUIDs of the MIG devices it may use of each."""
    shown: dict[int, tuple[str, ...]] = {}
    for gpu, mig in chosen:
        uuid = None if mig is None else mig.uuid.value
        shown[gpu.index] = (*shown.get(gpu.index, ()), *(() if uuid is None else (uuid,)))
    return shown


def _gpu(gpu: GpuReadings, functions: dict[str, PciReadings], slices: tuple[str, ...] | None) -> GpuEvidence:
    function = functions.get(gpu.pci.value or "")
    return GpuEvidence(
        id=gpu.uuid.value or gpu.pci.value or f"NVML index {gpu.index}",
        name=gpu.name.value or "unnamed GPU",
        pci=gpu.pci.value,
        is_visible=slices is not None,
        capability=gpu.compute_capability,
        memory_free_bytes=gpu.memory_free_bytes,
        numa=unknown("PCI function", "NOT_FOUND") if function is None else function.numa,
        cpus=gpu.cpus,
        lost=_lost(gpu),
        mig=has_mig(gpu),
        slices=slices or (),
        memory_fault=_memory_fault(gpu),
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


def _memory_fault(gpu: GpuReadings) -> str | None:
    """What no card can have: no memory, more than all cards of a rack together, or more free than there is."""
    total, free = gpu.memory_total_bytes, gpu.memory_free_bytes
    if total.value is None:
        return None
    told = f"{total.source}: {total.value} bytes"
    if not 0 < total.value < _ANY_MEMORY_BYTES:
        return told
    return f"{told}, {free.value} of them free" if free.value is not None and free.value > total.value else None


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
        card_generation=_first(MOST_GENERATION, gpu.pcie_device_max_generation, gpu.pcie_max_generation, own_speed),
        card_width=_first(MOST_LANES, own_width, gpu.pcie_max_width),
        slot_generation=_first(MOST_GENERATION, port_speed, gpu.pcie_max_generation),
        slot_width=_first(MOST_LANES, port_width, gpu.pcie_max_width),
    )


def _capability(function: PciReadings | None) -> tuple[Reading[int], Reading[int]]:
    if function is None:
        return unknown("PCI port above", "NOT_FOUND"), unknown("PCI port above", "NOT_FOUND")
    speed = function.max_speed_gt
    generation = _GENERATIONS.get(speed.value) if speed.value is not None else None
    code = None if generation is not None else speed.error or "UNKNOWN_SPEED"
    return Reading(source=speed.source, value=generation, error=code), function.max_width


def _first(most: int, *readings: Reading[int]) -> Reading[int]:
    """The first that can be true: a broken driver may tell zero or all bits set."""
    for reading in readings:
        if reading.value is not None and 0 < reading.value <= most:
            return reading
    first = readings[0]
    return Reading(source=first.source, error=first.error or f"IMPOSSIBLE_VALUE {first.value}")


def _part(reading: Reading[Any], at: int) -> Reading[int]:
    if reading.value is None:
        return Reading(source=reading.source, error=reading.error)
    return Reading(source=reading.source, value=int(reading.value[at]))


def _pairs(nvml: NvmlReadings, gpus: tuple[GpuEvidence, ...]) -> tuple[PairEvidence, ...]:
    raw = {gpu.index: gpu for gpu in nvml.gpus}
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
                    is_linked=_are_linked(*(raw[index] for index in sorted(key))),
                )
            )
    return tuple(found)


def _are_linked(a: GpuReadings, b: GpuReadings) -> bool | None:
    """Whether active NVLink ports join two GPUs; None where a far end is not told."""
    if has_mig(a) or has_mig(b):  # NVLink is off in MIG mode
        return False
    active = [[port for port in gpu.nvlinks if port.state.value == 1] for gpu in (a, b)]
    towards = [{port.remote_pci.value for port in ports} for ports in active]
    kinds = [{port.remote_type.value for port in ports} for ports in active]
    if (b.pci.value and b.pci.value in towards[0]) or (a.pci.value and a.pci.value in towards[1]):
        return True
    if all(_TO_SWITCH in own for own in kinds):
        return True
    untold = [gpu for gpu in (a, b) for port in gpu.nvlinks if port.state.value == 1 and _is_untold(port)]
    return None if untold else False


def _is_untold(port: NvlinkReadings) -> bool:
    return port.remote_type.value is None or (port.remote_type.value == _TO_GPU and port.remote_pci.value is None)


def _is_virtual(host: HostReadings) -> Reading[bool]:
    if host.hypervisor.value is not None:
        return Reading(source=host.hypervisor.source, value=True)
    if host.cpu_flags.value is None:
        return Reading(source=host.cpu_flags.source, error=host.cpu_flags.error)
    return Reading(source=host.cpu_flags.source, value="hypervisor" in host.cpu_flags.value)
