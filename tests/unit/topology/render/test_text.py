from __future__ import annotations

from dataclasses import replace

from topology.model import Topology
from topology.presets import cpu_host, preset, preset_names
from topology.render import render
from topology.units import GIB

V100 = """\
host p3: 32 cores on 1 socket, 244.0 GiB

device  name                  memory    free  numa  arch   pci           uuid
GPU0    Tesla V100-SXM2-16GB  16.0 GiB  ?     0     sm_70  0000:10:00.0  GPU-00000000
GPU1    Tesla V100-SXM2-16GB  16.0 GiB  ?     0     sm_70  0000:11:00.0  GPU-00000001
GPU2    Tesla V100-SXM2-16GB  16.0 GiB  ?     0     sm_70  0000:12:00.0  GPU-00000002
GPU3    Tesla V100-SXM2-16GB  16.0 GiB  ?     0     sm_70  0000:13:00.0  GPU-00000003

      GPU0  GPU1  GPU2  GPU3
GPU0  X     NV1   NV1   NV2
GPU1  NV1   X     NV2   NV1
GPU2  NV1   NV2   X     NV2
GPU3  NV2   NV1   NV2   X

island 0: GPU0 GPU1 GPU2 GPU3 (NV1, NV2)"""

CPU = """\
host cpuhost: 2 cores on 1 socket, 16.0 GiB

device  name        memory   free  numa  arch  pci  uuid
CPU0    x86-64 CPU  8.0 GiB  ?     0     avx2  -    -
CPU1    x86-64 CPU  8.0 GiB  ?     0     avx2  -    -

warnings
  - no NVIDIA driver: drawn without one; 2 CPU slot(s) stand in for GPUs"""


def test_an_nvlink_host_is_drawn_whole() -> None:
    assert render(preset("4xv100-16gb")) == V100


def test_a_cpu_host_is_drawn_whole() -> None:
    assert render(cpu_host()) == CPU


def test_every_preset_keeps_to_the_width() -> None:
    assert max(len(line) for name in preset_names() for line in render(preset(name)).splitlines()) <= 100


def test_a_pair_that_is_not_known_shows_as_unknown() -> None:
    topology = replace(preset("2x24gb-pcie"), pairs=())
    assert "GPU0  X     ?" in render(topology)
    assert "islands: none" in render(topology)


def test_limits_and_rates_are_shown() -> None:
    topology = preset("2xa100-40gb+2xt4")
    host = replace(topology.hosts[0], memory_limit_bytes=256 * GIB, available_memory_bytes=GIB, cpu_name="Test CPU")
    text = render(replace(topology, hosts=(host, topology.hosts[1])))
    assert "48 cores on 1 socket, 256.0 GiB (control-group limit), 1.0 GiB available, Test CPU" in text
    assert "eth0  ethernet  3.1 GB/s" in text


def test_long_warnings_are_wrapped() -> None:
    topology = Topology(hosts=preset("1x24gb").hosts, warnings=("word " * 60,))
    assert max(map(len, render(topology).splitlines())) <= 100
