"""From raw readings to evidence."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from orchestrator.doctor.adapt import bus_gpus, machine_evidence
from topology.probe.readings import (
    AncestorReadings,
    GpuReadings,
    HostReadings,
    MachineReadings,
    MigReadings,
    NvlinkReadings,
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
        memory_total_bytes=ok(40 * 2**30),
        memory_free_bytes=ok(39 * 2**30),
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


def mig(slot: int) -> MigReadings:
    return MigReadings(
        slot=slot,
        uuid=ok(f"MIG-{slot}"),
        name=ok("NVIDIA A100 MIG 3g.20gb"),
        memory_total_bytes=ok(20 * 2**30),
        memory_free_bytes=ok(20 * 2**30),
        gpu_instance=ok(slot + 1),
        compute_instance=ok(0),
        num_multiprocessors=ok(42),
    )


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        (None, ("MIG-0", "MIG-1")),
        ("MIG-1", ("MIG-1",)),
        ("MIG-GPU-0/1/0", ("MIG-0",)),
        ("0", ("MIG-0",)),
        ("GPU-1", ()),
    ],
)
def test_mig_devices_are_seen_as_probe_sees_them(text: str | None, slices: tuple[str, ...]) -> None:
    cards = (gpu(0, mig_mode=ok(1), mig_devices=(mig(0), mig(1))), gpu(1))
    first, second = machine_evidence(MachineReadings(host=host(), nvml=nvml(*cards, visible_devices=text))).gpus
    assert (first.mig, first.slices, first.is_visible) == (True, slices, bool(slices))
    assert (second.mig, second.is_visible) == (False, text in {None, "GPU-1"})


def test_cuda_does_not_count_a_lost_card() -> None:
    dead: Reading[Any] = Reading(source="nvmlDeviceGetHandleByIndex", error="GPU_IS_LOST")
    lost = gpu(1, uuid=dead, name=dead, memory_total_bytes=dead, pci=dead)
    found = machine_evidence(MachineReadings(host=host(), nvml=nvml(gpu(0), lost, gpu(2), visible_devices="1")))
    assert [item.is_visible for item in found.gpus] == [False, False, True]
    assert found.visibility


@pytest.mark.parametrize(
    ("total", "free", "is_fault"),
    [
        (0, 0, True),
        (2**64 - 1, 1, True),
        (40 * 2**30, 2**64 - 2**30, True),
        (40 * 2**30, 40 * 2**30 + 1, True),
        (40 * 2**30, 40 * 2**30, False),
        (None, 1, False),
        (40 * 2**30, None, False),
    ],
)
def test_memory_that_no_card_has(total: int | None, free: int | None, is_fault: bool) -> None:
    card = gpu(
        0, memory_total_bytes=BAD if total is None else ok(total), memory_free_bytes=BAD if free is None else ok(free)
    )
    (found,) = machine_evidence(MachineReadings(host=host(), nvml=nvml(card))).gpus
    assert (found.memory_fault is not None) == is_fault


def test_impossible_link_readings_are_errors() -> None:
    card = gpu(0, pcie_device_max_generation=ok(2**32 - 1), pcie_max_generation=ok(0), pcie_max_width=ok(2**32 - 1))
    pcie = machine_evidence(MachineReadings(host=host(), nvml=nvml(card))).gpus[0].pcie
    assert pcie.card_generation.error == f"IMPOSSIBLE_VALUE {2**32 - 1}"
    assert (pcie.card_width.value, pcie.slot_width.value) == (None, None)


def port(link: int, remote: str | None, kind: int | None, state: int = 1) -> NvlinkReadings:
    return NvlinkReadings(
        link=link,
        state=ok(state),
        version=ok(4),
        remote_pci=BAD if remote is None else ok(remote),
        remote_type=BAD if kind is None else ok(kind),
    )


@pytest.mark.parametrize(
    ("first", "second", "linked"),
    [
        ((), (), False),
        ((port(0, "0000:11:00.0", 0),), (port(0, "0000:10:00.0", 0),), True),
        ((port(0, "0000:11:00.0", None),), (port(0, None, None),), True),
        ((port(0, "0000:12:00.0", 0),), (port(0, "0000:13:00.0", 0),), False),
        ((port(0, "0000:05:00.0", 2),), (port(0, "0000:05:00.0", 2),), True),
        ((port(0, None, 2),), (port(0, None, 2, state=0),), False),
        ((port(0, None, None),), (port(0, None, None),), None),
    ],
)
def test_who_is_joined_by_nvlink(first: Any, second: Any, linked: bool | None) -> None:
    row = P2pReadings(a_index=0, b_index=1, read=ok(0), write=ok(0), nvlink=BAD, atomics=BAD)
    readings = nvml(gpu(0, nvlinks=first), gpu(1, nvlinks=second), p2p=(row,))
    (pair,) = machine_evidence(MachineReadings(host=host(), nvml=readings)).pairs
    assert pair.is_linked is linked
