"""Calls of the unmodified `pynvml`, one by one: understood, failing, missing from an old library."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from topology.probe import assemble
from topology.probe.nvml import read_nvml
from topology.probe.readings import MachineReadings
from topology.units import GIB

Record = Callable[..., list[MachineReadings]]


HIDES: Final = ("GPU-00000002,GPU-00000000", "")
# What CUDA_VISIBLE_DEVICES says of two cards, the first cut in two, and what is left.
NAMES_SLICES: Final = {
    "MIG-bbbb0004-0000": ["MIG-bbbb0004-0000"],
    "GPU-00000001,MIG-aaaa": ["GPU-00000001", "MIG-aaaa0001-0000"],
    "MIG-GPU-00000000-0000-0000-0000-000000000000/5/2": ["MIG-bbbb0004-0000"],
    "0": ["MIG-aaaa0001-0000"],
    "1,0": ["GPU-00000001", "MIG-aaaa0001-0000"],
    "0,MIG-aaaa": [],
}
SUFFERS: Final = {"reasons": "0x48", "retired": 1, "rows": "3 1 1 0", "persistence": 1, "compute": 3}


def switched(described: Any, count: int) -> list[str]:
    ports = [f"link {at} {link} 1 4 2 00000000:C5:00.0" for at in range(count) for link in range(12)]
    return [*described.cards(count, described.a100), *ports, "levels 50"]


@pytest.fixture(scope="module")
def recorded(record: Record, described: Any) -> dict[str, MachineReadings]:
    cards, failing = described.cards, described.failing
    plain = cards(3, described.a100, links=0)
    lines = {
        "switched": switched(described, 8),
        "suffering": cards(1, described.a100, **SUFFERS),
        "failing": [
            *cards(2, described.a100, links=0),
            "fail nvmlSystemGetDriverVersion -1 4",
            *failing(999, "UUID", gpu=1),
            *failing(3, "MemoryInfo", "MigMode", gpu=1),
        ],
        "unnamed": [*plain, *failing(777, "EccMode")],
        "older": [*cards(1, described.gb200, links=0), "fail nvmlDeviceGetGpuFabricInfoV -1 13"],
        **{f"hides {text}": plain for text in HIDES},
        **{f"slices {text}": described.sliced_a100() for text in NAMES_SLICES},
    }
    words = [name.split(" ") for name in lines]
    environments = [{"CUDA_VISIBLE_DEVICES": rest[0]} if rest else {} for _, *rest in words]
    found = record(["\n".join(one) for one in lines.values()], environments=environments)
    return dict(zip(lines, found, strict=True))


def test_every_call_is_understood(recorded: dict[str, MachineReadings], described: Any) -> None:
    nvml = recorded["switched"].nvml
    assert (nvml.driver_version.value, nvml.cuda_version.value, nvml.unavailable) == ("570.00", 12080, None)
    first = nvml.gpus[0]
    assert (first.uuid.value, first.pci.value) == (described.uuid(0), "0000:10:00.0")
    assert (first.name.value, first.compute_capability.value) == ("NVIDIA A100-SXM4-80GB", (8, 0))
    assert (first.memory_total_bytes.value, first.memory_free_bytes.value) == (80 * GIB, 79 * GIB)
    assert (first.cpus.value, first.memory_nodes.value) == ((64, 66), (1,))
    assert (first.pcie_max_generation.value, first.pcie_max_width.value, first.pcie_generation.value) == (4, 16, 1)
    assert (first.pcie_device_max_generation.value, first.pcie_width.value) == (4, 16)
    assert (first.power_limit_milliwatts.value, first.mig_mode.value, first.nvlink_count.value) == (400_000, 0, 12)
    assert (first.ecc_mode.value, first.ecc_pending_mode.value, first.remapped_rows.value) == (1, 0, (0, 0, 0, 0))
    assert (first.clock_reasons.value, first.retired_pages_pending.value) == (0, 0)
    assert (first.persistence_mode.value, first.compute_mode.value) == (0, 0)
    assert (first.fabric_state.value, first.fabric_health.value) == (0, 0)
    readings = {name: getattr(first, name) for name in first.__slots__}
    errors = {name: reading.error for name, reading in readings.items() if getattr(reading, "error", None)}
    assert errors == {"numa": "NOT_SUPPORTED"}


def test_links_and_pairs_are_understood(recorded: dict[str, MachineReadings]) -> None:
    nvml = recorded["switched"].nvml
    port = nvml.gpus[0].nvlinks[0]
    assert (port.state.value, port.version.value, port.remote_type.value, port.p2p.value) == (1, 4, 2, 1)
    assert port.remote_pci.value == "0000:c5:00.0"
    assert (len(nvml.p2p), len(nvml.ancestors)) == (28, 28)
    row = nvml.p2p[0]
    assert [reading.value for reading in (row.read, row.write, row.nvlink, row.atomics)] == [0, 0, 0, 0]
    assert {row.level.value for row in nvml.ancestors} == {50}


def test_what_a_card_suffers_from_is_read(recorded: dict[str, MachineReadings]) -> None:
    first = recorded["suffering"].nvml.gpus[0]
    assert (first.clock_reasons.value, first.retired_pages_pending.value) == (0x48, 1)
    assert first.remapped_rows.value == (3, 1, 1, 0)
    assert (first.persistence_mode.value, first.compute_mode.value) == (1, 3)


def test_calls_fail_one_by_one(recorded: dict[str, MachineReadings]) -> None:
    readings = recorded["failing"]
    first, second = readings.nvml.gpus
    assert readings.nvml.driver_version.error == "NO_PERMISSION"
    assert (first.uuid.error, second.uuid.error, second.memory_total_bytes.error) == (None, "UNKNOWN", "NOT_SUPPORTED")
    assert (second.compute_capability.value, second.mig_pending_mode.error) == ((8, 0), "NOT_SUPPORTED")
    topology = assemble(readings)
    assert (topology.devices[1].id, topology.devices[1].memory_bytes) == ("0000:11:00.0", 80 * GIB)


def test_an_error_of_no_name_keeps_its_number(recorded: dict[str, MachineReadings]) -> None:
    assert recorded["unnamed"].nvml.gpus[0].ecc_mode.error == "NVML_ERROR_777"


def test_a_driver_without_newer_functions(record: Record, described: Any) -> None:
    # Two V100 joined by two links.
    card = {"name": "Tesla V100-SXM2-16GB", "mib": 16384, "capability": "7.0", "links": 2}
    lines = described.cards(2, card)
    lines += [f"link {at} {link} 1 2 0 {described.address(1 - at)}" for at in range(2) for link in range(2)]
    (readings,) = record(["\n".join(lines)], flags="-DOLD")
    first = readings.nvml.gpus[0]
    missing = (first.numa, first.memory_nodes, first.mig_mode, first.nvlink_count, first.fabric_health)
    assert {reading.error for reading in missing} == {"FUNCTION_NOT_FOUND"}
    # Older names serve where there are any.
    assert (readings.nvml.cuda_version.value, first.clock_reasons.value) == (12080, 0)
    assert first.clock_reasons.source == "nvmlDeviceGetCurrentClocksThrottleReasons"
    # Without their number, ports are asked until there is none.
    assert [port.remote_type.error for port in first.nvlinks] == ["FUNCTION_NOT_FOUND"] * 2
    topology = assemble(readings)
    assert [pair.kind for pair in topology.pairs] == ["NV2"]
    assert topology.warnings == ()


def test_the_older_form_of_the_fabric_serves(recorded: dict[str, MachineReadings]) -> None:
    readings = recorded["older"]
    first = readings.nvml.gpus[0]
    assert (first.fabric_state.value, first.fabric_health.error) == (3, "FUNCTION_NOT_FOUND")
    assert assemble(readings).gpus[0].fabric == "01234567-89ab-cdef-0123-456789abcdef/32766"


def test_the_environment_hides_cards(recorded: dict[str, MachineReadings], described: Any) -> None:
    one, none = (recorded[f"hides {text}"] for text in HIDES)
    assert [device.uuid for device in assemble(one).gpus] == [described.uuid(2), described.uuid(0)]
    assert (len(one.nvml.gpus), one.nvml.visible_devices) == (3, HIDES[0])
    assert assemble(none).gpus == ()


@pytest.mark.parametrize("text", NAMES_SLICES)
def test_the_environment_names_mig_devices(recorded: dict[str, MachineReadings], text: str) -> None:
    ids = [device.id for device in assemble(recorded[f"slices {text}"]).gpus]
    assert [name.removesuffix("-0000-0000-0000-000000000000") for name in ids] == NAMES_SLICES[text]


def test_the_kernels_paths_label_what_the_driver_does_not(record: Record, described: Any, tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for root, buses in (("0000:0f", ("10", "11")), ("0000:1f", ("12", "13"))):
        for at, bus in enumerate(buses):
            way = [f"pci{root}", f"{root}:01.0", f"{root}:02.0", f"{root}:0{3 + at}.0", f"0000:{bus}:00.0"]
            for end in range(2, len(way) + 1):
                folder = tmp_path.joinpath("sys/devices", *way[:end])
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "max_link_speed").write_text("16.0 GT/s PCIe\n")
                (folder / "max_link_width").write_text("16\n")
                link = tmp_path / "sys/bus/pci/devices" / way[end - 1]
                if not link.is_symlink():
                    link.symlink_to(folder)
    lines = [*described.cards(4, described.geforce), *described.failing(3, "TopologyCommonAncestor", "NvLinkState")]
    (readings,) = record(["\n".join(lines)], root=tmp_path)
    topology = assemble(readings)
    assert [pair.kind for pair in topology.pairs] == ["PIX", "NODE", "NODE", "NODE", "NODE", "PIX"]
    assert topology.warnings == ()
    switches = [switch.id for switch in topology.switches if switch.kind.value == "pcie"]
    assert switches == ["box/0000:0f:02.0", "box/0000:1f:02.0"]
    assert all(link.bytes_per_second for link in topology.links if link.kind == "PCIe")


def test_sixteen_gpus_are_read_fast(record: Record, described: Any) -> None:
    lines = switched(described, 16)
    start = time.perf_counter()
    (readings,) = record(["\n".join(lines)])
    # With the start of Python and of pynvml, and on a busy machine; the calls themselves take some 40 ms.
    assert time.perf_counter() - start < 5
    assert len(readings.nvml.p2p) == 120


def test_nothing_a_library_does_is_raised() -> None:
    def explode(*_: Any) -> None:
        raise RuntimeError

    broken = SimpleNamespace(nvmlInit=lambda: None, nvmlShutdown=explode, nvmlDeviceGetCount=explode)
    nvml = read_nvml({}, broken)
    assert nvml.unavailable == "the NVIDIA driver does not count its GPUs (RuntimeError)"
    assert nvml.driver_version.error == "AttributeError"
    opened = SimpleNamespace(nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=int)
    found = read_nvml({}, opened).gpus
    assert {(gpu.uuid.error, gpu.fabric_state.error) for gpu in found} == {("AttributeError", "FUNCTION_NOT_FOUND")}
