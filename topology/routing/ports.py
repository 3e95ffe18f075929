"""Which RDMA ports of the hosts serve their GPUs, and which are there for storage or management.

A port serves the GPUs if it is the nearest one of some GPU of its host and only PCIe switches lie between. Where the
PCIe path does not tell the ports of a host apart, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topology.model import DeviceKind, Host, Nic, Topology
from topology.scoring.affinity import NearNics, near_nics
from topology.scoring.copy_rules import ETHERNET, RDMA_LEVELS

_EFA: Final = "efa"
_VERBS_KINDS: Final = frozenset({"infiniband", "roce"})
_VERBS_NAME: Final = re.compile(r"mlx\d+_\w+(:\d+)?")  # as a matrix of nvidia-smi names ports, without their kind
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPorts:
    """Ports by what they serve; the same names on every host, or none at all.

    Attributes:
        compute: names of the ports nearest to a GPU, as `DEVICE:PORT`.
        others: names of the further RDMA ports.
        plugin: what carries NCCL's traffic in place of its own verbs (`EFA`); empty for none that is known.
        reason: in words.
    """

    compute: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    plugin: str = ""
    reason: str

    @property
    def is_mixed(self) -> bool:
        """Whether some ports serve the GPUs and others do not."""
        return bool(self.compute and self.others)


def fabric_ports(topology: Topology, hosts: Sequence[str]) -> FabricPorts:
    """Tell the ports of the hosts of these names apart."""
    wanted = frozenset(hosts)
    chosen = [host for host in topology.hosts if host.name in wanted]
    rdma = {host.name: [nic for nic in host.nics if nic.kind != ETHERNET] for host in chosen}
    if any(nic.kind == _EFA for nics in rdma.values() for nic in nics):
        return FabricPorts(plugin="EFA", reason="the ports are EFA: their plugin chooses among them")
    if not all(rdma.values()):
        return FabricPorts(reason="a host has no RDMA port known")
    odd = [nic.name for nics in rdma.values() for nic in nics if not _is_verbs(nic)]
    if odd:
        return FabricPorts(reason=f"not known by their verbs names: {_listed(odd)}")
    return _split(topology, chosen, rdma)


def _split(topology: Topology, chosen: Sequence[Host], rdma: Mapping[str, Sequence[Nic]]) -> FabricPorts:
    near = near_nics(topology)
    kinds = [_told_apart(host, rdma[host.name], near) for host in chosen]
    if any(kind is None for kind in kinds):
        return FabricPorts(reason="the PCIe path does not tell which ports serve the GPUs")
    found = {kind for kind in kinds if kind is not None}
    if len(found) != 1:
        return FabricPorts(reason="the hosts name their ports differently: no one list holds for all of them")
    compute, others = found.pop()
    if not others:
        return FabricPorts(compute=compute, reason=f"all {len(compute)} RDMA ports are the nearest of some GPU")
    return FabricPorts(compute=compute, others=others, reason=f"no GPU has {_listed(others)} as its nearest port")


def _is_verbs(nic: Nic) -> bool:
    return nic.kind in _VERBS_KINDS or _VERBS_NAME.fullmatch(nic.name) is not None


def _told_apart(
    host: Host, nics: Sequence[Nic], near: dict[str, NearNics]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Names of the ports that serve GPUs, and of the others; None where a GPU has none behind its own switches."""
    own = [near[device.id] for device in host.devices if device.kind is DeviceKind.gpu]
    if not own or any(item.level not in RDMA_LEVELS for item in own):
        return None
    ids = {name for item in own for name in item.nics}
    cards = {nic.pci for nic in nics if nic.id in ids and nic.pci}  # a card's second port is as near as its first
    serving = [nic.id in ids or nic.pci in cards for nic in nics]
    compute = (_port(nic.name) for nic, serves in zip(nics, serving, strict=True) if serves)
    others = (_port(nic.name) for nic, serves in zip(nics, serving, strict=True) if not serves)
    return tuple(compute), tuple(others)


def _port(name: str) -> str:
    return name if ":" in name else f"{name}:1"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
