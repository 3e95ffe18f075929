from __future__ import annotations

from dataclasses import replace

from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, SwitchKind, Topology
from topology.network import NetworkSpec, merge
from topology.pcie_tree import Member, tree_from_labels
from topology.presets import cpu_host, preset, preset_names
from topology.render import render
from topology.units import GIB

BOX = """\
host box: 32 cores on 1 socket, 244.0 GiB, Test CPU
2 GPUs: NVSwitch

device  name                   memory    numa  arch   pcie      pci           uuid
GPU0    NVIDIA A100-SXM4-40GB  40.0 GiB  0     sm_80  Gen4 x16  0000:10:00.0  GPU-00000000
GPU1    NVIDIA A100-SXM4-40GB  40.0 GiB  0     sm_80  Gen4 x16  0000:11:00.0  GPU-00000001
CPUs 0-31 are near GPU0 GPU1

nic     kind        rate       numa  pci
mlx5_0  infiniband  25.0 GB/s  0     -

        GPU0  GPU1  mlx5_0
GPU0    X     NV12  PXB
GPU1    NV12  X     NODE
mlx5_0  PXB   NODE  X

islands
  NVLink  GPU0 GPU1

links (per direction)
  2 x  NV12  GPU - NVSwitch             300.0 GB/s             [1]
  1 x  PCIe  GPU - PCIe switch          31.5 GB/s              [2]
  1 x  PCIe  PCIe switch - PCIe switch  31.5 GB/s              [2]
  1 x  PCIe  PCIe switch - CPU          31.5 GB/s              [2]
  1 x  PCIe  GPU - CPU                  31.5 GB/s              [2]
  1 x  PCIe  NIC - PCIe switch          ? (15.8 GB/s assumed)  [3]
  1 x  PCIe  PCIe switch - PCIe switch  ? (15.8 GB/s assumed)  [3]
  [1] told
  [2] table: PCIe Gen4 x16, PCI Express base specification 6.0 (2022-01)
  [3] unknown; assumed: PCIe Gen3 x16, PCI Express base specification 6.0"""

CPU = """\
host cpuhost: 2 cores on 1 socket, 16.0 GiB

device  name        memory   numa  arch
CPU0    x86-64 CPU  8.0 GiB  0     avx2
CPU1    x86-64 CPU  8.0 GiB  0     avx2

warnings
  - no NVIDIA driver: drawn without one; 2 CPU slot(s) stand in for GPUs"""


def box() -> Topology:
    slot = Pcie(max_generation=4, max_width=16)
    gpus = tuple(
        Device(
            id=f"GPU-0000000{at}-0",
            uuid=f"GPU-0000000{at}-0",
            host="box",
            kind=DeviceKind.gpu,
            name="NVIDIA A100-SXM4-40GB",
            memory_bytes=40 * GIB,
            numa=0,
            index=at,
            pci=f"0000:1{at}:00.0",
            compute_capability=(8, 0),
            pcie=slot,
            cpus="0-31",
        )
        for at in range(2)
    )
    nic = Nic(id="box/mlx5_0", name="mlx5_0", kind="infiniband", bytes_per_second=25e9, numa=0)
    members = [*(Member(id=gpu.id, numa=0, pcie=slot) for gpu in gpus), Member(id=nic.id, numa=0)]
    a, b = (gpu.id for gpu in gpus)
    tree = tree_from_labels("box", members, {(a, nic.id): "PXB", (b, nic.id): "NODE"})
    switch = Switch(id="box/nvswitch", kind=SwitchKind.nvswitch, host="box")
    nvlinks = tuple(Link(a=name, b=switch.id, kind="NV12", bytes_per_second=300e9, source="told") for name in (a, b))
    host = Host(name="box", memory_bytes=244 * GIB, cores=32, sockets=1, devices=gpus, nics=(nic,), cpu_name="Test CPU")
    return Topology(
        hosts=(host,),
        switches=(switch, *tree.switches),
        links=(*nvlinks, *tree.links),
        pairs=(Pair(a=a, b=b, kind="NV12"),),
    )


def test_a_host_is_drawn_whole() -> None:
    assert render(box()) == BOX


def test_a_cpu_host_is_drawn_whole() -> None:
    assert render(cpu_host()) == CPU


def test_every_preset_keeps_to_the_width() -> None:
    for name in preset_names():
        assert max(len(line) for line in render(preset(name)).splitlines()) <= 120, name


def test_sixteen_gpus_with_many_nics_stay_readable() -> None:
    text = render(preset("dgx2_v100"))
    header = next(line for line in text.splitlines() if line.split()[:2] == ["GPU0", "GPU1"])
    assert header.split() == [f"GPU{at}" for at in range(16)]
    assert len(header) <= 120


def test_a_pair_that_is_not_known_shows_as_unknown() -> None:
    topology = replace(preset("2x24gb-pcie"), pairs=(), links=(), switches=())
    text = render(topology)
    assert "GPU0  X     ?" in text
    assert "NVLink  none, no two devices are joined by it" in text


def test_limits_and_rates_are_shown() -> None:
    topology = preset("2xa100-40gb+2xt4")
    limited = replace(topology.hosts[0], memory_limit_bytes=256 * GIB, available_memory_bytes=GIB, cpu_name="Test CPU")
    text = render(replace(topology, hosts=(limited, topology.hosts[1])))
    assert "48 cores on 1 socket, 256.0 GiB (control-group limit), 1.0 GiB available, Test CPU" in text
    assert "eth0  ethernet  3.1 GB/s" in text


def test_what_is_unknown_shows_as_unknown() -> None:
    gpu = Device(id="h/gpu0", host="h", kind=DeviceKind.gpu, name="unknown GPU", memory_bytes=None, index=0)
    text = render(Topology(hosts=(Host(name="h", memory_bytes=None, cores=None, devices=(gpu,)),)))
    assert text.startswith("host h: ? cores on ? sockets, ?\n1 GPU: one GPU\n")


def test_hosts_that_are_alike_are_drawn_once() -> None:
    topology = merge([preset("8xh100") for _ in range(20)], NetworkSpec())
    text = render(topology)
    assert text.startswith("20 hosts, 160 devices")
    assert text.count("8 GPUs: NVSwitch") == 1
    assert "and 11 more" in text
    assert "network (per direction)\n  160 x  NET" in text


def test_long_warnings_are_wrapped() -> None:
    topology = Topology(hosts=preset("1x24gb").hosts, warnings=("word " * 60,))
    assert max(map(len, render(topology).splitlines())) <= 100
