"""Drawn machines: topologies of well-known hosts, to plan for a machine one does not have and to test with.

Memory is the card's nominal size; NVLink rates are advertised ones, per direction (NVIDIA whitepapers V100, A100
and H100: 25 GB/s a link). Pair labels are those of common hosts of each kind.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Switch, SwitchKind, Topology
from topology.units import GB, GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NVLINK_BYTES_PER_SECOND: Final = 25 * GB
_SOURCE: Final = "preset: NVIDIA whitepaper, advertised"

# NVLinks between the four V100 of one half of a DGX-1 (AWS p3.8xlarge): nvidia-smi prints these counts.
_V100_QUAD: Final[Mapping[tuple[int, int], int]] = MappingProxyType(
    {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2},
)


def preset(name: str) -> Topology:
    """Return the drawn machine of that name.

    Raises:
        TopologyError: if there is none, with the nearest names.

    """
    make = _PRESETS.get(name)
    if make is None:
        begun = [known for known in _PRESETS if known.startswith(name.lower())]
        near = begun or get_close_matches(name.lower(), _PRESETS, n=1, cutoff=0.0)
        remedy = f"use {near[0]!r}, or another of {', '.join(_PRESETS)}"
        raise TopologyError(asked=f"the preset topology {name!r}", found="no such preset", remedy=remedy)
    return make()


def preset_names() -> tuple[str, ...]:
    """Return the names `preset` knows."""
    return tuple(_PRESETS)


def one_24gb() -> Topology:
    """One RTX 4090 in a desktop."""
    host = _host("desktop", _gpus("desktop", "NVIDIA GeForce RTX 4090", 24, (8, 9), (0,)), cores=16, memory_gib=64)
    return Topology(hosts=(host,), source="preset 1x24gb")


def two_24gb_pcie() -> Topology:
    """Two RTX 4090 under one CPU, without NVLink."""
    devices = _gpus("workstation", "NVIDIA GeForce RTX 4090", 24, (8, 9), (0, 0))
    host = _host("workstation", devices, cores=32, memory_gib=128)
    return Topology(hosts=(host,), pairs=_pairs(devices, lambda _a, _b: "PHB"), source="preset 2x24gb-pcie")


def two_24gb_node() -> Topology:
    """Two RTX 3090 under different host bridges of one CPU, without NVLink."""
    devices = _gpus("workstation", "NVIDIA GeForce RTX 3090", 24, (8, 6), (0, 0))
    host = _host("workstation", devices, cores=32, memory_gib=128)
    return Topology(hosts=(host,), pairs=_pairs(devices, lambda _a, _b: "NODE"), source="preset 2x24gb-node")


def eight_a100_80gb() -> Topology:
    """Eight A100-SXM4-80GB behind NVSwitch (DGX A100, HGX A100), with eight 200 Gb/s ports."""
    return _nvswitch("8xa100-80gb", "NVIDIA A100-SXM4-80GB", memory_gib=80, capability=(8, 0), links=12, nic_gbit=200)


def eight_h100() -> Topology:
    """Eight H100-SXM5-80GB behind NVSwitch (DGX H100, HGX H100), with eight 400 Gb/s ports."""
    return _nvswitch("8xh100", "NVIDIA H100 80GB HBM3", memory_gib=80, capability=(9, 0), links=18, nic_gbit=400)


def four_v100_16gb() -> Topology:
    """Four V100-SXM2-16GB, joined by one or two NVLinks a pair (AWS p3.8xlarge)."""
    devices = _gpus("p3", "Tesla V100-SXM2-16GB", 16, (7, 0), (0, 0, 0, 0))
    links = tuple(_nvlink(devices[a].id, devices[b].id, count) for (a, b), count in sorted(_V100_QUAD.items()) if count)
    pairs = _pairs(devices, lambda a, b: f"NV{_V100_QUAD[a, b]}")
    host = _host("p3", devices, cores=32, memory_gib=244)
    return Topology(hosts=(host,), links=links, pairs=pairs, source="preset 4xv100-16gb")


def mixed_hosts() -> Topology:
    """Two hosts on 25 Gb/s Ethernet: two A100-PCIE-40GB without NVLink, and two T4 on two sockets."""
    large = _gpus("large", "NVIDIA A100-PCIE-40GB", 40, (8, 0), (0, 0))
    small = _gpus("small", "Tesla T4", 16, (7, 5), (0, 1), first=len(large))
    hosts = (
        _host("large", large, cores=48, memory_gib=256, nics=(_nic("large", "eth0", "ethernet", 25, None),)),
        _host("small", small, cores=32, memory_gib=128, sockets=2, nics=(_nic("small", "eth0", "ethernet", 25, None),)),
    )
    switch = Switch(id="ethernet", kind=SwitchKind.network)
    links = tuple(
        Link(a=f"{host.name}/eth0", b=switch.id, kind="NET", bytes_per_second=25 * GB / 8, source="preset: nominal")
        for host in hosts
    )
    pairs = (*_pairs(large, lambda _a, _b: "NODE"), *_pairs(small, lambda _a, _b: "SYS"))
    return Topology(hosts=hosts, links=links, pairs=pairs, switches=(switch,), source="preset 2xa100-40gb+2xt4")


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
    host = _host("cpuhost", devices, cores=slots, memory_gib=slots * memory_gib_per_slot)
    warning = f"no NVIDIA driver: drawn without one; {slots} CPU slot(s) stand in for GPUs"
    return Topology(hosts=(host,), warnings=(warning,), source="preset cpu")


def _nvswitch(
    name: str,
    gpu: str,
    *,
    memory_gib: int,
    capability: tuple[int, int],
    links: int,
    nic_gbit: int,
) -> Topology:
    devices = _gpus("server", gpu, memory_gib, capability, (0, 0, 0, 0, 1, 1, 1, 1))
    nics = tuple(_nic("server", f"mlx5_{at}", "infiniband", nic_gbit, at // 4) for at in range(len(devices)))
    switch = Switch(id="server/nvswitch", kind=SwitchKind.nvswitch, host="server")
    return Topology(
        hosts=(_host("server", devices, cores=128, memory_gib=2048, sockets=2, nics=nics),),
        links=tuple(_nvlink(device.id, switch.id, links) for device in devices),
        pairs=_pairs(devices, lambda _a, _b: f"NV{links}"),
        switches=(switch,),
        source=f"preset {name}",
    )


def _gpus(
    host: str,
    name: str,
    memory_gib: int,
    capability: tuple[int, int],
    numa: tuple[int, ...],
    first: int = 0,
) -> tuple[Device, ...]:
    uuids = [f"GPU-{first + at:08d}-0000-0000-0000-000000000000" for at in range(len(numa))]
    return tuple(
        Device(
            id=uuid,
            host=host,
            kind=DeviceKind.gpu,
            name=name,
            memory_bytes=memory_gib * GIB,
            numa=numa[at],
            pci=f"0000:{0x10 + at:02x}:00.0",
            uuid=uuid,
            index=at,
            compute_capability=capability,
        )
        for at, uuid in enumerate(uuids)
    )


def _host(
    name: str,
    devices: tuple[Device, ...],
    *,
    cores: int,
    memory_gib: int,
    sockets: int = 1,
    nics: tuple[Nic, ...] = (),
) -> Host:
    memory_bytes = memory_gib * GIB
    return Host(name=name, memory_bytes=memory_bytes, cores=cores, sockets=sockets, devices=devices, nics=nics)


def _nic(host: str, name: str, kind: str, gbit: int, numa: int | None) -> Nic:
    return Nic(id=f"{host}/{name}", name=name, kind=kind, bytes_per_second=gbit * GB / 8, numa=numa)


def _nvlink(a: str, b: str, count: int) -> Link:
    rate = float(count * _NVLINK_BYTES_PER_SECOND)
    return Link(a=a, b=b, kind=f"NV{count}", bytes_per_second=rate, source=_SOURCE)


def _pairs(devices: tuple[Device, ...], kind_of: Callable[[int, int], str]) -> tuple[Pair, ...]:
    return tuple(
        Pair(a=devices[a].id, b=devices[b].id, kind=kind_of(a, b)) for a, b in combinations(range(len(devices)), 2)
    )


_PRESETS: Final[Mapping[str, Callable[[], Topology]]] = MappingProxyType(
    {
        "1x24gb": one_24gb,
        "2x24gb-pcie": two_24gb_pcie,
        "2x24gb-node": two_24gb_node,
        "8xa100-80gb": eight_a100_80gb,
        "8xh100": eight_h100,
        "4xv100-16gb": four_v100_16gb,
        "2xa100-40gb+2xt4": mixed_hosts,
        "cpu": cpu_host,
    },
)
