"""From raw readings to evidence."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from orchestrator.doctor.adapt import bus_gpus, machine_evidence
from topology.probe.readings import (
    AncestorReadings,
    GpuReadings,
    HostReadings,
    MachineReadings,
    NvmlReadings,
    P2pReadings,
    PciReadings,
)
from topology.reading import Reading


def ok(value: Any) -> Reading[Any]:
    return Reading(source="made up", value=value)


BAD: Reading[Any] = Reading(source="made up", error="NOT_SUPPORTED")


def host(*functions: PciReadings, **changes: Any) -> HostReadings:
    empty = {item.name: BAD for item in fields(HostReadings) if str(item.type).startswith("Reading")}
    return replace(HostReadings(**empty, pci_functions=functions), **changes)


def gpu(index: int, **changes: Any) -> GpuReadings:
    made = GpuReadings(
        index=index,
        uuid=ok(f"GPU-{index}"),
        name=ok("NVIDIA A100-PCIE-40GB"),
        pci=ok(f"0000:1{index}:00.0"),
        memory_total_bytes=ok(1),
        memory_free_bytes=ok(1),
        compute_capability=ok((8, 0)),
        numa=BAD,
        cpus=ok((0,)),
    )
    return replace(made, **changes)


def function(address: str, *above: str, **changes: Any) -> PciReadings:
    made = PciReadings(
        address=address,
        numa=ok(1),
        above=ok(("pci0000:00", *above)),
        vendor_id=ok(0x10DE),
        class_code=ok(0x030200),
        max_speed_gt=ok(16.0),
        max_width=ok(16),
    )
    return replace(made, **changes)


def nvml(*gpus: GpuReadings, **changes: Any) -> NvmlReadings:
    return replace(NvmlReadings(driver_version=ok("580.95.05"), gpus=gpus), **changes)


def test_the_slot_is_the_port_right_above() -> None:
    bridges = (
        function("0000:00:01.0", class_code=ok(0x060400), max_speed_gt=ok(32.0)),
        function("0000:01:00.0", class_code=ok(0x060400), max_speed_gt=ok(8.0), max_width=ok(8)),
    )
    place = function("0000:10:00.0", "0000:00:01.0", "0000:01:00.0")
    readings = MachineReadings(host=host(place, *bridges), nvml=nvml(gpu(0)))
    (found,) = machine_evidence(readings).gpus
    assert found.bridges.value == ("0000:01:00.0", "0000:00:01.0")
    assert (found.pcie.slot_generation.value, found.pcie.slot_width.value) == (3, 8)
    assert (found.pcie.card_generation.value, found.pcie.card_width.value) == (4, 16)
    assert found.numa.value == 1
    assert bus_gpus(readings) == ("0000:10:00.0",)


def test_nvml_s_word_on_the_card_comes_first_and_stands_in_for_the_slot() -> None:
    card = gpu(0, pcie_device_max_generation=ok(5), pcie_max_generation=ok(4), pcie_max_width=ok(16))
    readings = MachineReadings(host=host(function("0000:10:00.0", max_speed_gt=ok(2.5))), nvml=nvml(card))
    pcie = machine_evidence(readings).gpus[0].pcie
    assert (pcie.card_generation.value, pcie.slot_generation.value, pcie.slot_width.value) == (5, 4, 16)


def test_rows_pairs_and_visibility() -> None:
    first, second, third = gpu(0, remapped_rows=ok((3, 1, 1, 0))), gpu(1), gpu(2)
    pairs = {
        "ancestors": (AncestorReadings(a_index=0, b_index=1, level=ok(10)),),
        "p2p": (
            P2pReadings(a_index=1, b_index=0, read=ok(4), write=ok(4), nvlink=BAD, atomics=BAD),
            P2pReadings(a_index=0, b_index=2, read=ok(0), write=ok(0), nvlink=BAD, atomics=BAD),
        ),
    }
    found = machine_evidence(
        MachineReadings(host=host(), nvml=nvml(first, second, third, visible_devices="GPU-0,GPU-1", **pairs))
    )
    assert [item.is_visible for item in found.gpus] == [True, True, False]
    assert [(item.a, item.b, item.level.value, item.p2p.value) for item in found.pairs] == [("GPU-0", "GPU-1", 10, 4)]
    health = found.gpus[0].health
    assert (health.remap_pending.value, health.remap_failed.value) == (1, 0)
    assert found.gpus[1].health.remap_pending.error == "NOT_READ"


def test_lost_cards() -> None:
    gone: Reading[Any] = Reading(source="nvmlDeviceGetName", error="GPU_IS_LOST")
    dead: Reading[Any] = Reading(source="nvmlDeviceGetHandleByIndex", error="UNKNOWN")
    cards = (gpu(0), gpu(1, name=gone), gpu(2, uuid=dead, name=dead, memory_total_bytes=dead, pci=dead))
    found = machine_evidence(MachineReadings(host=host(), nvml=nvml(*cards))).gpus
    assert [item.lost for item in found] == [
        None,
        "nvmlDeviceGetName: GPU_IS_LOST",
        "nvmlDeviceGetHandleByIndex: UNKNOWN",
    ]
    assert found[2].label == "unnamed GPU NVML index 2"


def test_a_hypervisor_is_known_by_its_flag() -> None:
    for flags, virtual in ((("fpu", "hypervisor"), True), (("fpu",), False)):
        readings = MachineReadings(host=host(cpu_flags=ok(flags)), nvml=nvml())
        assert machine_evidence(readings).is_virtual.value is virtual
    assert machine_evidence(MachineReadings(host=host(), nvml=nvml())).is_virtual.error == "NOT_SUPPORTED"
