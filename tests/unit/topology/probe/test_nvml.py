"""The unmodified `pynvml`, in a process of its own, over a stand-in for the driver's library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from topology.model import Topology
from topology.probe import assemble, readings_from_json
from topology.probe.nvml import read_nvml
from topology.probe.readings import MachineReadings
from topology.units import GIB

HERE = Path(__file__).parent
CODE = """
import json
from topology.probe import read_machine, readings_to_json
print(json.dumps(readings_to_json(read_machine())))
"""

Read = Callable[..., MachineReadings]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not sys.platform.startswith("linux") or shutil.which("gcc") is None:
        pytest.skip("needs gcc to build the stand-in library")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(target), str(HERE / "nvml_stand_in.c")], check=True, timeout=30
    )
    return target.parent


@pytest.fixture
def read(library: Path) -> Read:
    def run(**environment: str) -> MachineReadings:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_")}
        paths = {"LD_LIBRARY_PATH": str(library), "PYTHONPATH": str(HERE.parents[3])}
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            env={**kept, **paths, **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return readings_from_json(json.loads(done.stdout))

    return run


def kinds(topology: Topology) -> list[str]:
    return [pair.kind for pair in topology.pairs]


def test_every_call_is_understood(read: Read) -> None:
    nvml = read().nvml
    assert (nvml.driver_version.value, nvml.unavailable, nvml.visible_devices) == ("570.00", None, None)
    first = nvml.gpus[0]
    assert first.uuid.value == "GPU-aaaa0000-0000-0000-0000-000000000000"
    assert (first.pci.value, nvml.gpus[1].pci.value) == ("0000:18:00.0", "0000:3b:00.0")
    assert (first.memory_total_bytes.value, first.memory_free_bytes.value) == (80 * GIB, 79 * GIB)
    assert (first.compute_capability.value, first.cpus.value) == ((8, 0), (64, 66))
    # The stand-in does not have this function, as drivers of its age do not.
    assert first.numa.error == "FUNCTION_NOT_FOUND"
    assert [(link.version.value, link.remote_pci.value) for link in first.nvlinks] == [(4, "0000:3b:00.0")] * 2


def test_two_linked_cards_make_an_island(read: Read) -> None:
    topology = assemble(read())
    assert kinds(topology) == ["NV2"]
    assert [link.bytes_per_second for link in topology.links] == [50e9]
    assert topology.warnings == ()


def test_the_environment_hides_cards(read: Read) -> None:
    readings = read(CUDA_VISIBLE_DEVICES="GPU-bbbb")
    assert len(readings.nvml.gpus) == 2
    assert [gpu.index for gpu in assemble(readings).gpus] == [1]
    assert assemble(read(CUDA_VISIBLE_DEVICES="")).gpus == ()


def test_calls_fail_one_by_one(read: Read) -> None:
    fails = "nvmlDeviceGetMemoryInfo:3 nvmlDeviceGetNvLinkState:15 nvmlDeviceGetUUID:999 nvmlSystemGetDriverVersion:4"
    readings = read(STAND_IN_FAILS=fails)
    first, second = readings.nvml.gpus
    assert readings.nvml.driver_version.error == "NO_PERMISSION"
    assert first.uuid.error is None
    assert (second.uuid.error, second.memory_total_bytes.error) == ("UNKNOWN", "NOT_SUPPORTED")
    assert second.compute_capability.value == (8, 0)
    assert {link.state.error for link in second.nvlinks} == {"GPU_IS_LOST"}
    topology = assemble(readings)
    assert kinds(topology) == ["NODE"]
    assert topology.devices[1].id == "0000:3b:00.0"
    assert topology.devices[1].memory_bytes == 80 * GIB


def test_a_lost_card_does_not_hide_the_other(read: Read) -> None:
    readings = read(STAND_IN_FAILS="nvmlDeviceGetHandleByIndex_v2:15")
    lost = readings.nvml.gpus[1]
    assert {lost.uuid.error, lost.name.error, lost.memory_total_bytes.error} == {"GPU_IS_LOST"}
    topology = assemble(readings)
    assert [gpu.index for gpu in topology.gpus] == [0]
    assert "left out" in " ".join(topology.warnings)


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        ("nvmlInitWithFlags:9", "no NVIDIA driver: NVML does not start (DRIVER_NOT_LOADED)"),
        ("nvmlInitWithFlags:18", "no NVIDIA driver: NVML does not start (LIB_RM_VERSION_MISMATCH)"),
        ("nvmlDeviceGetCount_v2:999", "the NVIDIA driver does not count its GPUs (UNKNOWN)"),
    ],
)
def test_a_driver_that_does_not_start_is_one_line(read: Read, fails: str, reason: str) -> None:
    nvml = read(STAND_IN_FAILS=fails).nvml
    assert (nvml.gpus, nvml.unavailable) == ((), reason)


def test_nothing_a_library_does_is_raised() -> None:
    def explode(*_: Any) -> None:
        raise RuntimeError

    broken = SimpleNamespace(nvmlInit=lambda: None, nvmlShutdown=explode, nvmlDeviceGetCount=explode)
    nvml = read_nvml({}, broken)
    assert nvml.unavailable == "the NVIDIA driver does not count its GPUs (RuntimeError)"
    assert nvml.driver_version.error == "AttributeError"
