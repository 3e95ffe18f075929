"""Recorded readings: they come back equal, older ones still load, and what does not fit is refused by its path."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.codec import from_json, to_json
from topology.errors import TopologyError
from topology.model import Topology
from topology.probe import assemble, readings_from_json, readings_to_json
from topology.probe.readings import (
    NOT_READ,
    GpuReadings,
    HostReadings,
    MachineReadings,
    MigReadings,
    NicReadings,
    NumaReadings,
    NvlinkReadings,
    NvmlReadings,
    P2pReadings,
    PciReadings,
)
from topology.reading import Reading


def ok(value: Any) -> Reading[Any]:
    return Reading(source="made up", value=value)


def a_machine() -> MachineReadings:
    """One of everything, so that every field of every part is in the recording."""
    away: Reading[Any] = Reading(source="made up", error="NOT_SUPPORTED")
    mig = MigReadings(
        slot=0,
        uuid=ok("MIG-1"),
        name=ok("MIG 1g.10gb"),
        memory_total_bytes=ok(10),
        memory_free_bytes=ok(9),
        gpu_instance=ok(1),
        compute_instance=ok(0),
        num_multiprocessors=ok(14),
    )
    port = NvlinkReadings(link=0, state=ok(1), version=ok(4), remote_pci=ok("0000:10:00.0"), remote_type=ok(0))
    gpus = tuple(
        GpuReadings(
            index=at,
            uuid=ok(f"GPU-{at}"),
            name=ok("NVIDIA A100-SXM4-80GB"),
            pci=ok(f"0000:1{at}:00.0"),
            memory_total_bytes=ok(80),
            memory_free_bytes=away,
            compute_capability=ok((8, 0)),
            numa=away,
            cpus=ok((0, 1)),
            nvlinks=(port,),
            mig_mode=ok(at),
            mig_devices=(mig,) if at else (),
            remapped_rows=ok((0, 0, 1, 0)),
            fabric_state=ok(3),
            fabric_cluster=ok("01234567-89ab-cdef-0123-456789abcdef"),
            fabric_clique=ok(1),
            pcie_max_generation=ok(4),
            pcie_max_width=ok(16),
            power_limit_milliwatts=ok(400_000),
        )
        for at in range(2)
    )
    functions = (
        PciReadings(address="0000:10:00.0", numa=ok(0), above=ok(("pci0000:0f", "0000:0f:01.0"))),
        PciReadings(address="0000:0f:01.0", numa=ok(0), max_speed_gt=ok(16.0), max_width=ok(16)),
    )
    nic = NicReadings(name="eth0", kind="ethernet", bytes_per_second=ok(1e9), numa=ok(0), pci=ok("0000:11:00.0"))
    host = HostReadings(
        name=ok("box"),
        cpus=ok((0, 1)),
        cpu_quota_cores=away,
        memory_total_bytes=ok(1000),
        memory_available_bytes=ok(900),
        memory_limit_bytes=away,
        memory_headroom_bytes=away,
        cpu_name=ok("Test CPU"),
        cpu_flags=ok(("fpu", "hypervisor")),
        clock_hz=ok(1e9),
        sockets=ok(1),
        threads_per_core=ok(1),
        numa_nodes=(NumaReadings(node=0, cpus=ok((0, 1))),),
        nics=(nic,),
        pci_functions=functions,
    )
    p2p = P2pReadings(a_index=0, b_index=1, read=ok(0), write=ok(1), nvlink=away, atomics=away)
    return MachineReadings(host=host, nvml=NvmlReadings(driver_version=ok("570"), gpus=gpus, p2p=(p2p,)))


MACHINE = a_machine()
RECORDED = readings_to_json(MACHINE)


def test_readings_replay_from_text() -> None:
    again = readings_from_json(json.loads(json.dumps(RECORDED)))
    assert again == MACHINE
    assert from_json(to_json(assemble(again))) == assemble(MACHINE)


def test_a_recording_from_before_a_reading_existed_still_loads(made: Any) -> None:
    data = readings_to_json(made.machine(made.nvml(made.gpu(0), made.gpu(1))))
    old_gpu = {"index", "uuid", "name", "pci", "memory_total_bytes", "memory_free_bytes", "compute_capability"}
    old_gpu |= {"numa", "cpus", "nvlinks"}
    data["nvml"]["gpus"] = [{key: gpu[key] for key in old_gpu} for gpu in data["nvml"]["gpus"]]
    for key in ("p2p", "cuda_version"):
        del data["nvml"][key]
    for key in ("system_vendor", "product_name", "hypervisor"):
        del data["host"][key]
    readings = readings_from_json(json.loads(json.dumps(data)))
    assert readings.nvml.gpus[0].mig_mode == readings.host.product_name == NOT_READ
    assert [pair.kind for pair in assemble(readings).pairs] == ["NODE"]


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(RECORDED)
    part: Any = data
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return data


GPU = ("nvml", "gpus", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((*GPU, "colour"), "green", r"\$\.nvml\.gpus\[0\]: unknown key 'colour'"),
        ((*GPU, "index"), "0", r"\$\.nvml\.gpus\[0\]\.index: '0' does not fit int"),
        ((*GPU, "index"), True, r"index: True does not fit int"),
        ((*GPU, "uuid"), "GPU-1", r"gpus\[0\]\.uuid: 'GPU-1' is no reading"),
        ((*GPU, "nvlinks"), {}, r"gpus\[0\]\.nvlinks: a JSON object of 0 is no list"),
        ((*GPU, "nvlinks", 0, "state"), {"source": "s", "value": []}, r"nvlinks\[0\]\.state: a JSON list of 0 does"),
        ((*GPU, "nvlinks"), [{}] * 65, "65 entries, more than 64"),
        ((*GPU, "cpus"), {"source": "s", "value": [1, "2"]}, r"cpus\[1\]: '2' does not fit int"),
        ((*GPU, "cpus"), {"source": "s", "value": [[1]]}, r"cpus\[0\]: a JSON list of 1 does not fit int"),
        ((*GPU, "compute_capability"), {"source": "s", "value": [8]}, "1 entries instead of 2"),
        (("nvml", "gpus"), [RECORDED["nvml"]["gpus"][0]] * 257, "257 entries, more than 256"),
        (("nvml", "visible_devices"), 3, "visible_devices: 3 does not fit str"),
        (("host", "memory_total_bytes"), {"source": "s", "value": "64"}, r"memory_total_bytes: '64' does not fit"),
        (("host", "memory_total_bytes"), {"source": "s", "value": 2**70}, "out of range"),
        (("host", "clock_hz"), {"source": "s", "value": float("nan")}, "out of range"),
        (("host", "cpu_name"), {"source": "s", "value": "x" * 70000}, "70000 characters"),
        (("host", "name"), {"value": "box"}, r"\$\.host\.name"),
        (("host", "name"), {"source": "s"}, "neither a value nor an error"),
        (("host", "name"), {"source": "s", "value": "a", "error": "b"}, "a value and an error"),
        (("host", "name"), {"source": "s", "error": 5}, r"name\.error: 5 does not fit str"),
        (("host",), None, r"\$\.host: None is no object"),
        (("schema",), "else", "no schema"),
    ],
)
def test_readings_that_do_not_fit_are_refused(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        readings_from_json(changed(path, value))


def test_all_faults_come_at_once() -> None:
    data = changed((*GPU, "index"), "0")
    data["host"]["name"] = 7
    del data["nvml"]["driver_version"]
    with pytest.raises(TopologyError) as caught:
        readings_from_json(data)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("data", [[], None, "text", 3, {"schema": ["trainmaster.readings/1"]}])
def test_readings_are_an_object(data: object) -> None:
    with pytest.raises(TopologyError, match="recorded readings"):
        readings_from_json(data)


def spots(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in the recording."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(spot for key, value in items for spot in spots(value, (*path, key)))]


SPOTS = [spot for spot in spots(RECORDED) if spot]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS | st.sampled_from(["0000:10:00.0", "box/node0", "GPU-0", 0, -1, 255]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
READING = st.fixed_dictionaries({"source": st.just("s"), "value": JSON})


@given(st.lists(st.tuples(st.sampled_from(SPOTS), JSON | READING), min_size=1, max_size=4))
def test_a_damaged_recording_is_refused_or_a_machine(damage: list[tuple[tuple[Any, ...], Any]]) -> None:
    data = copy.deepcopy(RECORDED)
    for path, value in damage:
        part: Any = data
        for key in path[:-1]:
            part = part[key] if isinstance(part, dict | list) and _has(part, key) else None
        if isinstance(part, dict | list) and _has(part, path[-1]):
            part[path[-1]] = value
    try:
        topology = assemble(readings_from_json(data))
    except TopologyError:
        return
    assert isinstance(topology, Topology)
    assert from_json(to_json(topology)) == topology


def _has(part: Any, key: Any) -> bool:
    return key in part if isinstance(part, dict) else isinstance(key, int) and key < len(part)
