"""Machines without a maker's name: so many GPUs of so many GB, to plan for what most people have."""

from __future__ import annotations

from types import MappingProxyType

from topology.model import Device, DeviceKind, Host, Topology
from topology.presets import cards
from topology.presets.box import Box, Card, Cpu, ports
from topology.presets.servers import INFINIBAND
from topology.units import GIB


def one_24gb() -> Box:
    """One RTX 4090 in a desktop."""
    return Box(host="desktop", cpu=_cpu(16), memory_gib=64, card=cards.RTX_4090, gpus=("0/bridge0",))


def two_24gb_pcie() -> Box:
    """Two RTX 4090 under one host bridge, without NVLink."""
    return Box(host="workstation", cpu=_cpu(32), memory_gib=128, card=cards.RTX_4090, gpus=("0/bridge0",) * 2)


def two_24gb_node() -> Box:
    """Two RTX 3090 under different host bridges of one CPU, without NVLink."""
    places = ("0/bridge0", "0/bridge1")
    return Box(host="workstation", cpu=_cpu(32), memory_gib=128, card=cards.RTX_3090, gpus=places)


def nvswitch_x8(card: Card, nvlinks: int, gbit: int) -> Box:
    """Eight GPUs behind NVSwitch, each with a port beside it."""
    places = tuple(f"{at // 4}/bridge{at}/switch{at}" for at in range(8))
    return Box(
        host="server",
        cpu=_cpu(64, sockets=2),
        memory_gib=2048,
        card=card,
        gpus=places,
        ports=ports("mlx5_{}", INFINIBAND, gbit, places, card.generation),
        nvlinks=nvlinks,
    )


def two_a100() -> Box:
    """Two A100-PCIE-40GB without NVLink on 25 Gb/s Ethernet."""
    places = ("0/bridge0", "0/bridge1")
    return Box(
        host="large",
        cpu=_cpu(48),
        memory_gib=256,
        card=cards.A100_PCIE_40GB,
        gpus=places,
        ports=ports("eth{}", "ethernet", 25, ("0/bridge2",), 3),
    )


def two_t4() -> Box:
    """Two T4 on two sockets, on 25 Gb/s Ethernet."""
    places = ("0/bridge0", "1/bridge1")
    return Box(
        host="small",
        cpu=_cpu(16, sockets=2),
        memory_gib=128,
        card=cards.T4,
        gpus=places,
        ports=ports("eth{}", "ethernet", 25, ("0/bridge2",), 3),
    )


def four_a100() -> Box:
    """Four A100-SXM4-40GB, each joined to each by four NVLinks, with one port of 100 Gb/s."""
    return _four("four-a100", cards.A100_40GB, nvlinks=4)


def four_h100() -> Box:
    """Four H100 SXM, each joined to each by six NVLinks, with one port of 100 Gb/s."""
    return _four("four-h100", cards.H100, nvlinks=6)


def _four(host: str, card: Card, nvlinks: int) -> Box:
    places = tuple(f"{at // 2}/bridge{at}" for at in range(4))
    return Box(
        host=host,
        cpu=_cpu(32, sockets=2),
        memory_gib=512,
        card=card,
        gpus=places,
        ports=ports("mlx5_{}", INFINIBAND, 100, ("0/bridge0",), card.generation),
        mesh=MappingProxyType({(a, b): nvlinks for a in range(4) for b in range(a + 1, 4)}),
    )


def _cpu(cores: int, sockets: int = 1) -> Cpu:
    return Cpu(name=None, sockets=sockets, cores=cores, threads=1)


def cpu_host(slots: int = 2, memory_gib_per_slot: int = 8) -> Topology:
    """Return a host without GPUs: `slots` CPU slots of one core each, with AVX2 and no bf16 unit."""
    devices = tuple(
        Device(
            id=f"cpuhost/cpu{slot}",
            host="cpuhost",
            kind=DeviceKind.cpu,
            name="x86-64 CPU",
            memory_bytes=memory_gib_per_slot * GIB,
            numa=0,
            index=slot,
            cores=1,
            features=("avx2", "fma"),
        )
        for slot in range(slots)
    )
    memory_bytes = slots * memory_gib_per_slot * GIB
    host = Host(name="cpuhost", memory_bytes=memory_bytes, cores=slots, sockets=1, devices=devices)
    warning = f"no NVIDIA driver: drawn without one; {slots} CPU slot(s) stand in for GPUs"
    return Topology(hosts=(host,), warnings=(warning,), source="preset cpu")
