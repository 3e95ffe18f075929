from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from topology.link_rates import nvlink_rate
from topology.model import DeviceKind, Link, SwitchKind, Topology
from topology.pcie_tree import pcie_labels
from topology.probe import assemble
from topology.probe.readings import NvmlReadings, PciReadings
from topology.units import GIB


def no_driver(made: Any, **changes: Any) -> NvmlReadings:
    empty = NvmlReadings(driver_version=made.bad("NO_DRIVER"), unavailable="no NVIDIA driver: not found")
    return replace(empty, **changes)


def nvlinks(topology: Topology) -> list[Link]:
    return [link for link in topology.links if link.kind.startswith("NV")]


def test_without_a_driver_every_usable_core_is_a_slot(made: Any) -> None:
    topology = assemble(made.machine(no_driver(made)))
    assert [device.id for device in topology.devices] == [f"box/cpu{slot}" for slot in range(4)]
    first = topology.devices[0]
    assert (first.kind, first.cores, first.memory_bytes) == (DeviceKind.cpu, 1, 16 * GIB)
    assert (first.features, first.free_memory_bytes) == (("avx2", "fma"), 15 * GIB)
    assert [device.numa for device in topology.devices] == [0, 0, 1, 1]
    assert topology.warnings == ("no NVIDIA driver: not found; 4 CPU slot(s) stand in for GPUs",)
    assert topology.pairs == ()


@pytest.mark.parametrize(("quota", "slots"), [(2.0, 2), (2.9, 2), (0.5, 1), (64.0, 4)])
def test_a_quota_cuts_the_slots(made: Any, quota: float, slots: int) -> None:
    host = assemble(made.machine(no_driver(made), cpu_quota_cores=made.ok(quota))).hosts[0]
    assert (host.cores, len(host.devices)) == (slots, slots)


def test_a_memory_limit_is_the_hosts_memory_and_is_told(made: Any) -> None:
    limits = {"memory_limit_bytes": made.ok(8 * GIB), "memory_headroom_bytes": made.ok(6 * GIB)}
    topology = assemble(made.machine(no_driver(made), **limits))
    host = topology.hosts[0]
    assert (host.memory_bytes, host.memory_limit_bytes, host.available_memory_bytes) == (8 * GIB, 8 * GIB, 6 * GIB)
    assert topology.devices[0].memory_bytes == 2 * GIB
    assert "limited to 8.0 GiB of 64.0 GiB" in topology.warnings[0]


def test_a_limit_above_the_memory_is_none(made: Any) -> None:
    host = assemble(made.machine(no_driver(made), memory_limit_bytes=made.ok(99 * GIB))).hosts[0]
    assert (host.memory_bytes, host.memory_limit_bytes) == (64 * GIB, None)


def test_a_host_that_tells_nothing_still_has_a_slot(made: Any) -> None:
    nothing = {name: made.bad("ENOENT") for name in ("name", "cpus", "memory_total_bytes", "sockets", "cpu_name")}
    topology = assemble(made.machine(no_driver(made), **nothing))
    assert [device.id for device in topology.devices] == ["localhost/cpu0"]
    assert topology.warnings[:2] == ("usable CPUs unreadable (ENOENT)", "host memory unreadable (ENOENT)")


@pytest.mark.parametrize(
    ("level", "kind"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_levels_are_labelled_as_nvidia_smi_does(made: Any, level: int, kind: str) -> None:
    topology = assemble(made.machine(made.nvml(made.gpu(0), made.gpu(1), level=level)))
    assert [pair.kind for pair in topology.pairs] == [kind]
    assert topology.warnings == ()
    # Without the kernel's device paths the tree comes from the same labels.
    assert pcie_labels(topology) == {frozenset((topology.pairs[0].a, topology.pairs[0].b)): kind}


def test_a_gpu_keeps_what_was_read(made: Any) -> None:
    (device,) = assemble(made.machine(made.nvml(made.gpu(0)))).devices
    assert device.id == device.uuid == "GPU-0aaaaaaa-0000-0000-0000-000000000000"
    assert (device.kind, device.pci, device.memory_bytes) == (DeviceKind.gpu, "0000:10:00.0", 80 * GIB)
    assert (device.free_memory_bytes, device.compute_capability, device.index) == (79 * GIB, (8, 0), 0)
    # No PCI reading here: the node whose CPUs the driver names.
    assert device.numa == 1


def test_the_kernels_node_comes_before_the_drivers(made: Any) -> None:
    function = PciReadings(address=made.pci(0), numa=made.ok(0))
    machine = made.machine(made.nvml(made.gpu(0)), pci_functions=(function,))
    assert assemble(machine).devices[0].numa == 0


def test_direct_nvlinks_are_bundled_with_their_rate(made: Any) -> None:
    one = made.gpu(0, nvlinks=tuple(made.link(at, made.pci(1)) for at in range(4)))
    other = made.gpu(1, nvlinks=tuple(made.link(at, made.pci(0)) for at in range(4)))
    topology = assemble(made.machine(made.nvml(one, other, made.gpu(2))))
    assert [pair.kind for pair in topology.pairs] == ["NV4", "NODE", "NODE"]
    (link,) = nvlinks(topology)
    assert (link.kind, link.bytes_per_second) == ("NV4", 100e9)
    assert "driver" in link.source
    assert topology.islands == ((one.uuid.value, other.uuid.value), (topology.devices[2].id,))


def test_an_nvswitch_is_a_node_every_gpu_is_linked_to(made: Any) -> None:
    gpus = [
        made.gpu(at, nvlinks=tuple(made.link(n, "0000:05:00.0", to_switch=True, version=6) for n in range(18)))
        for at in range(3)
    ]
    topology = assemble(made.machine(made.nvml(*gpus)))
    assert {pair.kind for pair in topology.pairs} == {"NV18"}
    assert [switch.id for switch in topology.switches if switch.kind is SwitchKind.nvswitch] == ["box/nvswitch"]
    assert [link.b for link in nvlinks(topology)] == ["box/nvswitch"] * 3
    assert len(topology.islands) == 1


@pytest.mark.parametrize(
    ("capability", "versions"), [((8, 0), (4, 4)), ((8, 6), (99, 99)), (None, (4, 4)), (None, (4, 1))]
)
def test_the_rate_of_a_bundle_is_the_tables(
    made: Any, capability: tuple[int, int] | None, versions: tuple[int, int]
) -> None:
    chip = {"compute_capability": made.bad("NOT_SUPPORTED") if capability is None else made.ok(capability)}
    one, other = (
        made.gpu(at, nvlinks=(made.link(0, made.pci(1 - at), version=version),), name=made.bad("UNKNOWN"), **chip)
        for at, version in enumerate(versions)
    )
    (link,) = nvlinks(assemble(made.machine(made.nvml(one, other))))
    rates = [nvlink_rate(compute_capability=capability, version=version) for version in versions]
    assert link.bytes_per_second == min(rate.bytes_per_second for rate in rates if rate)
    assert link.source.startswith("driver: active NVLink count; table: ")


def test_a_link_in_no_table_has_no_rate(made: Any) -> None:
    bad = made.bad("NOT_SUPPORTED")
    one, other = (
        made.gpu(at, nvlinks=(made.link(0, made.pci(1 - at), version=99),), name=bad, compute_capability=bad)
        for at in range(2)
    )
    (link,) = nvlinks(assemble(made.machine(made.nvml(one, other))))
    assert (link.bytes_per_second, link.kind) == (None, "NV1")
    assert "unknown" in link.source


def test_ends_that_disagree_count_the_smaller_and_are_told(made: Any) -> None:
    one = made.gpu(0, nvlinks=(made.link(0, made.pci(1)), made.link(1, made.pci(1))))
    other = made.gpu(1, nvlinks=(made.link(0, made.pci(0)), made.link(1, made.pci(0), state=made.bad("GPU_IS_LOST"))))
    topology = assemble(made.machine(made.nvml(one, other)))
    assert topology.pairs[0].kind == "NV1"
    assert topology.warnings == (
        "GPU 1: the state of 1 NVLink(s) could not be read; they count as inactive",
        "GPU 0 and GPU 1: 2 and 1 active NVLinks towards each other",
    )


def test_old_drivers_without_the_type_of_the_far_end(made: Any) -> None:
    bad = made.bad("NOT_SUPPORTED")
    unsaid = {"remote_type": made.bad("FUNCTION_NOT_FOUND")}
    one = made.gpu(0, nvlinks=(made.link(0, made.pci(1), **unsaid),))
    other = made.gpu(1, nvlinks=(made.link(0, made.pci(0), **unsaid),))
    blind = made.gpu(2, nvlinks=(made.link(0, "0000:05:00.0", **unsaid), made.link(1, "", remote_pci=bad, **unsaid)))
    topology = assemble(made.machine(made.nvml(one, other, blind)))
    assert [pair.kind for pair in topology.pairs] == ["NV1", "NODE", "NODE"]
    assert topology.warnings == ("GPU 2: 2 active NVLink(s) with an unknown far end; they are not counted",)


def test_a_pair_without_a_level_is_unknown_and_told(made: Any) -> None:
    nvml = made.nvml(made.gpu(0), made.gpu(1))
    nvml = replace(nvml, ancestors=(replace(nvml.ancestors[0], level=made.bad("NOT_SUPPORTED")),))
    topology = assemble(made.machine(nvml))
    assert topology.pairs == ()
    assert topology.warnings == ("GPU 0 - GPU 1: topology level unreadable (NOT_SUPPORTED)",)


def test_calls_that_fail_leave_the_rest_of_the_card(made: Any) -> None:
    bad = made.bad("NOT_SUPPORTED")
    gpu = made.gpu(0, uuid=bad, compute_capability=bad, memory_free_bytes=bad)
    topology = assemble(made.machine(made.nvml(gpu)))
    device = topology.devices[0]
    assert (device.id, device.uuid, device.compute_capability) == ("0000:10:00.0", None, None)
    assert device.memory_bytes == 80 * GIB
    expected = "unreadable: uuid (NOT_SUPPORTED), compute capability (NOT_SUPPORTED)"
    assert topology.warnings == (f"GPU 0 (NVIDIA A100-SXM4-80GB): {expected}",)


def test_memory_that_is_not_told_comes_from_the_table_or_is_unknown(made: Any) -> None:
    bad = made.bad("NOT_SUPPORTED")
    known = made.gpu(0, memory_total_bytes=bad)
    strange = made.gpu(1, memory_total_bytes=bad, name=made.ok("NVIDIA Mystery"))
    topology = assemble(made.machine(made.nvml(known, strange)))
    assert [device.memory_bytes for device in topology.devices] == [80 * GIB, None]
    assert "taken from the" in topology.warnings[1]
    assert "unreadable: memory (NOT_SUPPORTED)" in topology.warnings[2]


def test_visible_devices_choose_and_order(made: Any) -> None:
    nvml = made.nvml(made.gpu(0), made.gpu(1), made.gpu(2), visible_devices="2,0")
    topology = assemble(made.machine(nvml))
    assert [device.index for device in topology.devices] == [2, 0]
    assert [(pair.a[:5], pair.b[:5], pair.kind) for pair in topology.pairs] == [("GPU-2", "GPU-0", "NODE")]
    assert topology.warnings == ()


@pytest.mark.parametrize("text", ["", "-1"])
def test_hiding_every_gpu_leaves_cpu_slots_and_says_why(made: Any, text: str) -> None:
    topology = assemble(made.machine(made.nvml(made.gpu(0), made.gpu(1), visible_devices=text)))
    assert topology.gpus == ()
    assert topology.warnings == (
        f"CUDA_VISIBLE_DEVICES={text!r} hides all 2 GPU(s) of this host",
        "no GPU visible: CUDA_VISIBLE_DEVICES hides them; 4 CPU slot(s) stand in for GPUs",
    )


def test_indices_over_unlike_cards_need_the_bus_order(made: Any) -> None:
    nvml = made.nvml(made.gpu(0), made.gpu(1, name=made.ok("Tesla T4")), visible_devices="1")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in assemble(made.machine(nvml)).warnings[0]
    assert assemble(made.machine(replace(nvml, device_order="PCI_BUS_ID"))).warnings == ()


def test_a_driver_without_gpus(made: Any) -> None:
    assert "the NVIDIA driver shows no GPU" in assemble(made.machine(made.nvml())).warnings[0]
