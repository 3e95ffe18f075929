"""Which network adapter, NUMA node and CPUs are nearest to each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from topology.hosts import split_hosts
from topology.model import Device, DeviceKind, Nic, Topology
from topology.pcie_tree import LEVELS, pcie_labels
from topology.scoring.copy_rules import ETHERNET, RDMA_LEVELS

_UNKNOWN: Final = len(LEVELS)
_COHERENT: Final = "C2C"  # NVLink to the CPU: adapters read the GPU's memory through it


@dataclass(frozen=True, slots=True, kw_only=True)
class NearNics:
    """The adapters a device should use: all that are equally near.

    Attributes:
        device: id.
        nics: ids, in the order of the host; empty where the host has none.
        level: how near: PIX to SYS; None where it is not known.
        is_rdma: whether they read the memory of the device themselves.
        reason: in words.
    """

    device: str
    nics: tuple[str, ...]
    level: str | None
    is_rdma: bool
    reason: str


def near_nics(topology: Topology) -> dict[str, NearNics]:
    """Find the nearest adapters of every device: RDMA ports before Ethernet, then the PCIe path, then the NUMA node."""
    found: dict[str, NearNics] = {}
    for part in split_hosts(topology):
        labels = pcie_labels(part) if part.nics else {}
        host = part.hosts[0]
        nics = _once(host.nics)
        coherent = {end for link in part.links if link.kind == _COHERENT for end in (link.a, link.b)}
        for device in host.devices:
            found[device.id] = _nearest(device, nics, labels, is_coherent=device.id in coherent)
    return found


def _once(nics: Sequence[Nic]) -> list[Nic]:
    """One entry a port: RDMA ports where there are some, and of two of one PCI function the first."""
    rdma = [nic for nic in nics if nic.kind != ETHERNET]
    seen: dict[str, Nic] = {}
    for nic in rdma or nics:
        seen.setdefault(nic.pci or nic.id, nic)
    return list(seen.values())


def _nearest(device: Device, nics: Sequence[Nic], labels: dict[frozenset[str], str], *, is_coherent: bool) -> NearNics:
    if not nics:
        return NearNics(device=device.id, nics=(), level=None, is_rdma=False, reason="the host has no adapter known")
    distance = {nic.id: _distance(device, nic, labels) for nic in nics}
    least = min(distance.values())
    near = tuple(nic.id for nic in nics if distance[nic.id] == least)
    level = next((name for name, height in LEVELS.items() if height == least[0]), None)
    why = (
        f"{level} from the device" if level else "no adapter is known to be nearer" if least[1] else "on its NUMA node"
    )
    is_gpu = device.kind is DeviceKind.gpu
    is_rdma = is_gpu and nics[0].kind != ETHERNET and (level in RDMA_LEVELS or is_coherent)
    if is_gpu:
        why += ", GPU-direct RDMA" if is_rdma else ", through host memory"
        why += " over C2C" if is_rdma and is_coherent else ""
    count = f"{len(near)} equal ports" if len(near) > 1 else "one port"
    return NearNics(device=device.id, nics=near, level=level, is_rdma=is_rdma, reason=f"{count}: {why}")


def _distance(device: Device, nic: Nic, labels: dict[frozenset[str], str]) -> tuple[int, bool]:
    label = labels.get(frozenset((device.id, nic.id)))
    height = _UNKNOWN if label is None else LEVELS[label]
    return height, None in (device.numa, nic.numa) or device.numa != nic.numa
