"""Drivers in a bad way: what cannot be is not believed, one cause is one line, and no place is made up."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from topology.codec import from_json, to_json
from topology.judge import judged
from topology.model import Topology
from topology.pcie_tree import pcie_labels
from topology.probe import assemble
from topology.probe.readings import NicReadings, NumaReadings, NvmlReadings, PciReadings
from topology.units import GIB

LOST = ("uuid", "name", "pci", "memory_total_bytes")


def silent(nvml: NvmlReadings, made: Any, *pairs: tuple[int, int]) -> NvmlReadings:
    """Without the levels of these pairs, or of all."""
    rows = tuple(
        replace(row, level=made.bad("NOT_SUPPORTED")) if not pairs or (row.a_index, row.b_index) in pairs else row
        for row in nvml.ancestors
    )
    return replace(nvml, ancestors=rows)


def kinds(topology: Topology) -> dict[tuple[int | None, int | None], str]:
    at = {device.id: device.index for device in topology.devices}
    return {(at[pair.a], at[pair.b]): pair.kind for pair in topology.pairs}


def test_one_cause_of_many_unknown_pairs_is_one_line_and_no_tree(made: Any) -> None:
    nvml = silent(made.nvml(*(made.gpu(at) for at in range(8))), made)
    topology = assemble(made.machine(nvml))
    assert topology.warnings == ("all 28 GPU pairs: topology level unreadable (NOT_SUPPORTED)",)
    assert (topology.pairs, pcie_labels(topology), topology.links) == ((), {}, ())


def test_a_gpu_whose_pairs_are_unknown_leaves_the_others_their_tree(made: Any) -> None:
    nvml = silent(made.nvml(*(made.gpu(at) for at in range(4)), level=20), made, (0, 3), (1, 3), (2, 3))
    topology = assemble(made.machine(nvml))
    known = {(0, 1): "PXB", (0, 2): "PXB", (1, 2): "PXB"}
    assert kinds(topology) == known
    assert {frozenset(ends) for ends in pcie_labels(topology)} == {frozenset((p.a, p.b)) for p in topology.pairs}
    told = "GPU 0 - GPU 3, GPU 1 - GPU 3, GPU 2 - GPU 3: topology level unreadable (NOT_SUPPORTED)"
    assert topology.warnings == (told,)


def test_gpus_of_different_numa_nodes_are_known_to_be_apart(made: Any) -> None:
    nodes = tuple(NumaReadings(node=at, cpus=made.ok((at,))) for at in range(2))
    nvml = silent(made.nvml(*(made.gpu(at, cpus=made.ok((at,))) for at in range(2))), made)
    topology = assemble(made.machine(nvml, numa_nodes=nodes))
    assert kinds(topology) == {(0, 1): "SYS"}
    assert topology.warnings == ()


def test_the_kernels_paths_label_the_pairs_they_place_and_no_others(made: Any) -> None:
    functions = tuple(
        PciReadings(address=made.pci(at), numa=made.ok(0), above=made.ok(("pci0000:0f", f"0000:0f:0{at}.0")))
        for at in range(2)
    )
    nvml = silent(made.nvml(*(made.gpu(at) for at in range(3))), made)
    topology = assemble(made.machine(nvml, pci_functions=functions))
    assert kinds(topology) == {(0, 1): "PHB"}
    assert len(pcie_labels(topology)) == 1
    assert topology.warnings == ("GPU 0 - GPU 2, GPU 1 - GPU 2: topology level unreadable (NOT_SUPPORTED)",)


@pytest.mark.parametrize("total", [0, -1, 2**64 - 1])
def test_a_memory_that_cannot_be_is_taken_from_the_table_or_unknown(made: Any, total: int) -> None:
    changes = {"memory_total_bytes": made.ok(total), "memory_free_bytes": made.ok(2**63)}
    gpus = (made.gpu(0, **changes), made.gpu(1, name=made.ok("NVIDIA Mystery"), **changes))
    topology = assemble(made.machine(made.nvml(*gpus)))
    assert [(gpu.memory_bytes, gpu.free_memory_bytes) for gpu in topology.gpus] == [(80 * GIB, None), (None, None)]
    told = f"a memory of {total} bytes is not believed"
    assert sum(text.endswith(told) for text in topology.warnings) == 2
    assert "taken from the" in topology.warnings[1]


@pytest.mark.parametrize("free", [-1, 80 * GIB + 1, 2**64 - 1])
def test_free_memory_above_the_total_is_unknown(made: Any, free: int) -> None:
    mig = made.mig(0, memory_free_bytes=made.ok(free))
    gpus = (
        made.gpu(0, memory_free_bytes=made.ok(free)),
        made.gpu(1, mig_mode=made.ok(1), mig_devices=(mig,)),
    )
    topology = assemble(made.machine(made.nvml(*gpus)))
    assert [(gpu.memory_bytes, gpu.free_memory_bytes) for gpu in topology.gpus] == [(80 * GIB, None), (10 * GIB, None)]
    assert topology.warnings == (
        f"GPU 0 (NVIDIA A100-SXM4-80GB): free memory of {free} bytes is not believed",
        f"GPU 1, MIG device 0: free memory of {free} bytes is not believed",
    )


def test_other_numbers_no_card_has_are_unknown(made: Any) -> None:
    odd = {
        "power_limit_milliwatts": made.ok(2**32 - 1),
        "compute_capability": made.ok((-1, 0)),
        "numa": made.ok(2**32 - 1),
        "cpus": made.bad("NOT_SUPPORTED"),
        "pcie_max_generation": made.ok(2**32 - 1),
    }
    (device,) = assemble(made.machine(made.nvml(made.gpu(0, **odd)))).gpus
    assert (device.power_limit_watts, device.compute_capability, device.numa, device.pcie) == (None, None, None, None)


def test_two_gpus_at_one_address_are_told(made: Any) -> None:
    gpus = (made.gpu(0), made.gpu(1, pci=made.ok(made.pci(0))), made.gpu(2))
    topology = judged(assemble(made.machine(made.nvml(*gpus))))
    assert sum(made.pci(0) in text for text in topology.warnings) == 1
    assert len(topology.pairs) == 3


def test_levels_that_no_tree_has_are_told_where_nvlink_hides_them(made: Any) -> None:
    gpus = [made.gpu(at, nvlinks=(made.link(0, "0000:05:00.0", to_switch=True),)) for at in range(3)]
    nvml = made.nvml(*gpus, level=0)
    rows = tuple(replace(row, level=made.ok(50)) if row.b_index == 1 else row for row in nvml.ancestors)
    topology = assemble(made.machine(replace(nvml, ancestors=rows)))
    assert set(kinds(topology).values()) == {"NV1"}
    (told,) = topology.warnings
    assert told.startswith("GPU 0 - GPU 1 (SYS): farther apart than a way round")


def test_many_gpus_that_cannot_be_opened_are_one_line(made: Any) -> None:
    gone = dict.fromkeys(LOST, made.bad("INVALID_ARGUMENT"))
    closed = [made.gpu(at, **gone) for at in range(2, 256)]
    nvml = made.nvml(made.gpu(0), made.gpu(1), count=made.ok(2**32 - 1))
    topology = assemble(made.machine(replace(nvml, gpus=(*nvml.gpus, *closed))))
    assert topology.warnings == (
        "the driver counts 4294967295 GPUs: 256 are read",
        "GPUs 2-255: left out, they cannot be opened (INVALID_ARGUMENT)",
    )


def test_a_driver_that_does_not_answer_is_there_all_the_same(made: Any) -> None:
    functions = (
        PciReadings(address=made.pci(0), numa=made.ok(0), vendor_id=made.ok(0x10DE), class_code=made.ok(0x030200)),
    )
    for code, remedy in (("TIMEOUT", False), ("NO_DRIVER", True)):
        nvml = NvmlReadings(driver_version=made.bad(code), unavailable="the NVIDIA driver does not answer")
        (told,) = assemble(made.machine(nvml, pci_functions=functions)).warnings
        assert ("load the driver" in told) == remedy


def nic(made: Any, name: str) -> NicReadings:
    return NicReadings(
        name=name, kind="ethernet", bytes_per_second=made.ok(1e9), numa=made.ok(0), pci=made.bad("NO_PCI")
    )


def test_names_can_be_printed_and_told_apart(made: Any) -> None:
    nvml = made.nvml(made.gpu(0, name=made.ok("\x1b[31mX\x1b[0m\udce9"), uuid=made.ok("GPU-\x07")))
    names = ("a\x01", "a\\x01", "nvswitch", "node0", "gpu0")
    host = {"name": made.ok("box\n\x1b[2J"), "nics": tuple(nic(made, name) for name in names)}
    topology = assemble(made.machine(nvml, **host))
    assert (topology.hosts[0].name, topology.gpus[0].name, topology.gpus[0].id) == (
        r"box\n\x1b[2J",
        r"\x1b[31mX\x1b[0m\udce9",
        r"GPU-\x07",
    )
    assert [one.name for one in topology.nics] == [
        "a\\x01",
        "a\\x01 (2)",
        "nvswitch (NIC)",
        "node0 (NIC)",
        "gpu0 (NIC)",
    ]
    assert from_json(to_json(topology)) == topology
    odd = replace(nvml, gpus=(), unavailable="\x1b]0;title\x07")
    assert all(text.isprintable() for text in assemble(made.machine(odd, **host)).warnings)


def test_no_more_devices_than_a_snapshot_may_have(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["topology.probe.assemble"], "MAX_DEVICES", 20)
    gpus = []
    for at in range(3):
        slices = tuple(made.mig(slot, uuid=made.ok(f"MIG-{at}-{slot}")) for slot in range(8))
        gpus.append(made.gpu(at, uuid=made.ok(f"GPU-{at}"), mig_mode=made.ok(1), mig_devices=slices))
    topology = assemble(made.machine(NvmlReadings(driver_version=made.ok("1"), gpus=tuple(gpus))))
    assert len(topology.gpus) == 20
    assert "more than 20 devices: the others are left out" in topology.warnings
