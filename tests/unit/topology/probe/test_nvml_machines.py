"""Whole machines through the unmodified `pynvml`: what each kind of GPU, driver and container becomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from typing import Any, Final

import pytest

from topology.codec import fingerprint, from_json, to_json
from topology.model import Topology
from topology.probe import assemble, readings_from_json, readings_to_json
from topology.probe.readings import MachineReadings

Record = Callable[..., list[MachineReadings]]
Machine = Callable[[str], Topology]

CUBE: Final = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}
GEFORCE_LACKS: Final = (
    *("FieldValues", "MigMode", "EccMode", "MemoryAffinity", "RemappedRows", "RetiredPagesPendingStatus"),
    *("GpuFabricInfoV", "NvLinkState"),
)
WSL_LACKS: Final = (
    *("FieldValues", "NvLinkState", "TopologyCommonAncestor", "P2PStatus", "CpuAffinity", "MemoryAffinity"),
    *("MigMode", "GpuFabricInfoV", "EnforcedPowerLimit", "CurrentClocksEventReasons", "PersistenceMode"),
)
VGPU_LACKS: Final = ("FieldValues", "NvLinkState", "MaxPcieLinkGeneration", "EnforcedPowerLimit", "RemappedRows")


def switched_a100(described: Any) -> list[str]:
    # The eighth link of GPU 5 is down.
    ports = [
        f"link {at} {link} {int((at, link) != (5, 7))} 4 2 00000000:C5:00.0" for at in range(8) for link in range(12)
    ]
    return [*described.cards(8, described.a100), *ports, "levels 50"]


def cube_v100(described: Any) -> list[str]:
    card = {"name": "Tesla V100-SXM2-16GB", "mib": 16384, "capability": "7.0", "links": 6, "max_gen": 3}
    lines = described.cards(8, card, max_width=16)
    used = [0] * 8
    for (a, b), count in CUBE.items():
        for one, other in ((a, b), (b, a)) * count:
            lines.append(f"link {one} {used[one]} 1 2 0 {described.address(other)}")
            used[one] += 1
    return lines


def machines(described: Any) -> dict[str, list[str]]:
    cards, a100, geforce, gb200 = described.cards, described.a100, described.geforce, described.gb200
    failing = described.failing
    rack = [f"link {at} {link} 1 7 2 FFFFFFFF:FF:FF.0" for at in range(4) for link in range(18)]
    off = [f"p2p {a} {b} 4 0 4 4" for a, b in combinations(range(6), 2)]
    return {
        "a100": switched_a100(described),
        "v100": cube_v100(described),
        "geforce": [*cards(2, geforce), *failing(3, *GEFORCE_LACKS), "p2p 0 1 1 1 5 5", "levels 30"],
        "wsl": [*cards(2, geforce), *failing(999, *WSL_LACKS)],
        "vgpu": [*cards(1, a100, name="GRID A100-20C", mib=20480), *failing(3, *VGPU_LACKS)],
        "hidden": [*cards(3, a100, links=0), "fail nvmlDeviceGetHandleByIndex_v2 1 17"],
        "mig": described.sliced_a100(),
        "gb200": [*cards(4, gb200), *rack],
        "alone": cards(1, gb200, links=0, fabric=f"3 {'0' * 32} 0 0"),
        "lost": [*cards(3, a100, links=0), "fail * 1 15"],
        "mismatch": [*cards(1, a100), "fail nvmlInitWithFlags -1 18"],
        "unloaded": ["fail nvmlInitWithFlags -1 9"],
        "uncounted": ["fail nvmlDeviceGetCount_v2 -1 999"],
        "empty": ["driver 570.00"],
        "twins": [*cards(2, geforce), f"gpu 1 uuid {described.uuid(0)}"],
        "uncut": [*cards(2, a100, links=0), "gpu 1 mig 1"],
        "off": [*cards(6, geforce), *off],
    }


NAMES: Final = (
    *("a100", "v100", "geforce", "wsl", "vgpu", "hidden", "mig", "gb200", "alone", "lost", "mismatch", "unloaded"),
    *("uncounted", "empty", "twins", "uncut", "off"),
)


@pytest.fixture(scope="module")
def recorded(record: Record, described: Any) -> dict[str, MachineReadings]:
    texts = machines(described)
    assert tuple(texts) == NAMES
    return dict(zip(NAMES, record(["\n".join(lines) for lines in texts.values()]), strict=True))


@pytest.fixture(scope="module")
def machine(recorded: dict[str, MachineReadings]) -> Machine:
    return lambda name: assemble(recorded[name])


def kinds(topology: Topology) -> list[str]:
    return [pair.kind for pair in topology.pairs]


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_survives_text_and_assembles_to_the_same(recorded: dict[str, MachineReadings], name: str) -> None:
    again = readings_from_json(json.loads(json.dumps(readings_to_json(recorded[name]))))
    assert again == recorded[name]
    topology = assemble(again)
    assert topology == assemble(recorded[name])
    saved = from_json(json.loads(json.dumps(to_json(topology))))
    assert (saved, fingerprint(saved)) == (topology, fingerprint(topology))


def test_a_link_that_is_down_counts_less(machine: Machine, described: Any) -> None:
    topology, degraded = machine("a100"), described.uuid(5)
    by_ends = {frozenset((pair.a, pair.b)): pair.kind for pair in topology.pairs}
    assert {kind for ends, kind in by_ends.items() if degraded in ends} == {"NV11"}
    assert kinds(topology).count("NV12") == 21
    links = {link.a: link for link in topology.links if link.kind.startswith("NV")}
    assert (links[degraded].kind, links[described.uuid(0)].bytes_per_second) == ("NV11", 300e9)
    assert "driver: active NVLink count" in links[degraded].source
    device = topology.devices[0]
    assert (device.power_limit_watts, device.mig, device.cpus, device.fabric) == (400.0, False, "64,66", None)
    assert (device.pcie.max_generation, device.pcie.generation, device.numa) == (4, 1, 1)


def test_a_cube_mesh_keeps_its_counts(machine: Machine, described: Any) -> None:
    topology = machine("v100")
    at = {described.uuid(index): index for index in range(8)}
    nvlinks = {tuple(sorted((at[p.a], at[p.b]))): int(p.kind[2:]) for p in topology.pairs if p.is_nvlink}
    assert nvlinks == CUBE
    assert kinds(topology).count("NODE") == 12
    assert topology.warnings == ()


def test_a_geforce_answers_what_it_can(recorded: dict[str, MachineReadings], machine: Machine) -> None:
    first = recorded["geforce"].nvml.gpus[0]
    assert (first.nvlinks, first.ecc_mode.error, first.mig_mode.error) == ((), "NOT_SUPPORTED", "NOT_SUPPORTED")
    topology = machine("geforce")
    assert kinds(topology) == ["PHB"]
    device = topology.devices[0]
    assert (device.memory_bytes, device.mig, device.pcie.max_width) == (24564 << 20, None, 16)
    told = "GPU 0 - GPU 1: no peer-to-peer: reads chipset not supported, writes chipset not supported"
    assert topology.warnings == (told,)


def test_wsl_says_unknown_to_many_calls(recorded: dict[str, MachineReadings], machine: Machine) -> None:
    first = recorded["wsl"].nvml.gpus[0]
    # One port is asked, not all that a card may have.
    assert [port.state.error for port in first.nvlinks] == ["UNKNOWN"]
    assert first.fabric_state.error == first.cpus.error == "UNKNOWN"
    topology = machine("wsl")
    assert [device.memory_bytes for device in topology.gpus] == [24564 << 20] * 2
    assert topology.pairs == ()
    assert "GPU 0 - GPU 1: topology level unreadable (UNKNOWN)" in topology.warnings


def test_a_virtual_gpu_has_its_own_memory(machine: Machine) -> None:
    (device,) = machine("vgpu").gpus
    assert (device.name, device.memory_bytes, device.power_limit_watts) == ("GRID A100-20C", 20480 << 20, None)
    assert (device.pcie.max_generation, device.pcie.max_width) == (None, 16)


@pytest.mark.parametrize(("name", "code"), [("hidden", "OPERATING_SYSTEM"), ("lost", "GPU_IS_LOST")])
def test_a_gpu_that_cannot_be_opened_is_left_out(
    recorded: dict[str, MachineReadings], machine: Machine, described: Any, name: str, code: str
) -> None:
    gone = recorded[name].nvml.gpus[1]
    assert {gone.uuid.error, gone.name.error, gone.power_limit_milliwatts.error} == {code}
    topology = machine(name)
    assert [device.uuid for device in topology.gpus] == [described.uuid(0), described.uuid(2)]
    assert topology.warnings == (f"GPU 1: left out, it cannot be opened ({code})",)


def test_mig_devices_stand_for_their_gpu(
    recorded: dict[str, MachineReadings], machine: Machine, described: Any
) -> None:
    slices = recorded["mig"].nvml.gpus[0].mig_devices
    found = [(mig.slot, mig.gpu_instance.value, mig.num_multiprocessors.value) for mig in slices]
    assert found == [(1, 1, 42), (4, 5, 28)]
    topology = machine("mig")
    assert [device.id for device in topology.gpus] == ["MIG-aaaa0001-0000", "MIG-bbbb0004-0000", described.uuid(1)]
    small = topology.gpus[1]
    assert (small.parent, small.mig, small.memory_bytes) == (described.uuid(0), True, 19968 << 20)
    assert (small.pci, small.name) == ("0000:10:00.0", "NVIDIA A100-SXM4-80GB MIG 2g.20gb")
    # Neither NVLink nor peer-to-peer in MIG mode.
    assert kinds(topology) == ["PIX", "NODE", "NODE"]
    assert topology.warnings == ()


def test_a_rack_of_one_nvlink_domain_names_its_clique(machine: Machine) -> None:
    topology = machine("gb200")
    assert {device.fabric for device in topology.gpus} == {"01234567-89ab-cdef-0123-456789abcdef/32766"}
    assert set(kinds(topology)) == {"NV18"}
    assert machine("alone").gpus[0].fabric is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unloaded", "no NVIDIA driver: NVML does not start (DRIVER_NOT_LOADED)"),
        ("mismatch", "no NVIDIA driver: NVML does not start (LIB_RM_VERSION_MISMATCH)"),
        ("uncounted", "the NVIDIA driver does not count its GPUs (UNKNOWN)"),
        ("empty", "the NVIDIA driver shows no GPU"),
    ],
)
def test_a_driver_that_does_not_start_is_one_line(machine: Machine, name: str, reason: str) -> None:
    assert machine(name).warnings == (f"{reason}; 1 CPU slot(s) stand in for GPUs",)


def test_one_uuid_for_two_gpus_does_not_end_the_probe(machine: Machine, described: Any) -> None:
    topology = machine("twins")
    assert [device.id for device in topology.gpus] == [described.uuid(0), "0000:11:00.0"]
    assert f"GPU 1: its UUID {described.uuid(0)} is another GPU's too" in topology.warnings


def test_a_gpu_cut_into_nothing_is_told(machine: Machine, described: Any) -> None:
    topology = machine("uncut")
    assert [device.id for device in topology.gpus] == [described.uuid(0)]
    assert "MIG is on without a MIG device" in topology.warnings[0]


def test_peers_that_are_off_everywhere_are_one_line(machine: Machine) -> None:
    why = "reads disabled by a driver setting (registry key)"
    assert f"all 15 GPU pairs: no peer-to-peer: {why}" in machine("off").warnings
