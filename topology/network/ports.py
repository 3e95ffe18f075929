"""Which network ports of a host carry the traffic of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topology.model import DeviceKind, SwitchKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.model import Host, Nic
    from topology.network.parts import Parts

_ETHERNET: Final = "ethernet"  # any other kind (infiniband, roce) reaches GPU memory without the CPU
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The chosen ports of a host in their order; `reason` where others were left out."""

    host: str
    nics: tuple[Nic, ...]
    reason: str | None = None


def ports_of(parts: Parts) -> list[Ports]:
    """Choose the ports of each host: RDMA before Ethernet, then those beside a GPU, then the fastest.

    A port beside a GPU sits below the same PCIe switch: servers put compute ports there, and ports for storage and
    management below a host bridge of their own.
    """
    pcie = {switch.id for switch in parts.switches if switch.kind is SwitchKind.pcie}
    above: dict[str, list[str]] = {}
    for link in parts.links:
        if link.b in pcie:
            above.setdefault(link.a, []).append(link.b)
    return [_chosen(host, above) for host in parts.hosts]


def _chosen(host: Host, above: Mapping[str, list[str]]) -> Ports:
    nics = _once(host.nics)
    gpus = [device for device in host.devices if device.kind is DeviceKind.gpu]
    beside_gpu = {name for gpu in gpus for name in _switches_over(gpu.id, above)}
    steps = []
    rdma = [nic for nic in nics if nic.kind != _ETHERNET]
    if rdma:
        steps.append((rdma, "RDMA"))
        nics = rdma
    near = [nic for nic in nics if beside_gpu.intersection(_switches_over(nic.id, above))]
    if near:
        steps.append((near, "beside a GPU"))
        nics = near
    rates = [nic.bytes_per_second for nic in nics if nic.bytes_per_second is not None]
    fastest = [nic for nic in nics if nic.bytes_per_second is None or nic.bytes_per_second == max(rates)]
    steps.append((fastest, "the fastest"))
    chosen = tuple(fastest)
    return Ports(host=host.name, nics=chosen, reason=_reason(host, chosen, steps))


def _reason(host: Host, chosen: tuple[Nic, ...], steps: list[tuple[list[Nic], str]]) -> str | None:
    # Only the steps that left ports out are told.
    count, words = len(_once(host.nics)), []
    for kept, word in steps:
        if len(kept) < count:
            words.append(word)
        count = len(kept)
    if not words:
        return None
    ids = {nic.id for nic in chosen}
    out = [nic.name for nic in _once(host.nics) if nic.id not in ids]
    used = ", ".join(nic.name for nic in chosen)
    return f"ports {used} ({', '.join(words)}) carry the traffic between hosts; {', '.join(out)} left out"


def _once(nics: tuple[Nic, ...]) -> list[Nic]:
    # A RoCE port and its network interface have one PCI address and are one port: the RDMA name stands for it.
    kept: dict[str, Nic] = {}
    for nic in nics:
        key = nic.pci or nic.id
        if key not in kept or kept[key].kind == _ETHERNET:
            kept[key] = nic
    return list(kept.values())


def _switches_over(name: str, above: Mapping[str, list[str]]) -> list[str]:
    found: list[str] = []
    here = [name]
    while here and len(found) < _MAX_DEPTH:
        here = [over for one in here for over in above.get(one, ()) if over not in found]
        found += here
    return found
