from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from topology.codec import to_json
from topology.errors import TopologyError
from topology.judge import judged
from topology.model import DeviceKind
from topology.presets import preset
from topology.probe import assemble, probe_host, read_machine, read_topology, readings_to_json
from topology.probe.nvml_library import find_library

ROOT = Path(__file__).parents[4]


def test_this_host_can_be_probed() -> None:
    topology = probe_host()
    assert topology.devices
    assert topology.hosts[0].cores >= 1
    assert topology.hosts[0].memory_bytes > 0


def test_a_machine_may_be_a_made_up_root(tree: Any) -> None:
    root = tree({"proc/sys/kernel/hostname": "made-up\n"})
    topology = assemble(read_machine(root, {"CUDA_VISIBLE_DEVICES": ""}))
    assert topology.hosts[0].name == "made-up"
    assert {device.kind for device in topology.devices} == {DeviceKind.cpu}


def test_a_saved_topology_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(to_json(preset("8xa100-80gb"))))
    assert read_topology(path) == preset("8xa100-80gb")


def test_recorded_readings_are_assembled(tmp_path: Path, made: Any) -> None:
    machine = made.machine(made.nvml(made.gpu(0), made.gpu(1)))
    path = tmp_path / "readings.json"
    path.write_text(json.dumps(readings_to_json(machine)))
    assert read_topology(path) == judged(assemble(machine, source="readings readings.json"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<graphs version='1'/>", "XML"),
        ("<system version='1'>", "line"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX", "line 2"),
        ("{", "nor JSON"),
        ("{}", "schema None"),
        ("[1]", "a JSON list"),
    ],
)
def test_other_formats_are_refused_by_name(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(TopologyError) as caught:
        read_topology(path)
    assert found in caught.value.found
    assert str(path) in caught.value.asked
    assert caught.value.remedy.startswith(("give ", "correct "))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="No such file"):
        read_topology(tmp_path / "none.json")


LOADED = """
import sys, topology.render
from topology.probe import probe_host
probe_host()
print(*[name for name in sys.argv[1:] if name in sys.modules])
"""


def test_importing_and_probing_load_nothing_heavy() -> None:
    # The driver is asked in another process; without one there is nobody to ask.
    heavy = ["numpy", "scipy", "torch", "socket", "pynvml", "ctypes"]
    heavy += ["subprocess"] if find_library(os.environ) is None else []
    command = [sys.executable, "-c", LOADED, *heavy]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == ""


def test_a_matrix_and_a_tree_are_recognised(tmp_path: Path) -> None:
    matrix = tmp_path / "box 1.txt"
    matrix.write_text("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n")
    topology = read_topology(matrix)
    assert [pair.kind for pair in topology.pairs] == ["NV4"]
    assert topology.hosts[0].name == "box-1"
    tree = tmp_path / "tree.xml"
    tree.write_text(
        '<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">'
        '<pci busid="0000:01:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="0" sm="80"/></pci>'
        '<pci busid="0000:02:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"><gpu dev="1" sm="80"/></pci>'
        "</cpu></system>"
    )
    assert len(read_topology(tree).gpus) == 2
