"""By which means the data of two devices gets across: NCCL's rules for peer copies and GPU-direct RDMA.

Peer copies (P2P) are used up to PXB: over NVLink, or where only PCIe switches lie between. Through the CPU NCCL uses
them on AMD processors with at most two GPUs alone. A network adapter reads GPU memory itself (GPU-direct RDMA) where
only PCIe switches lie between the two (NCCL 2.30, src/graph/paths.cc; both defaults may be changed by the user).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from topology.graph import Graph, LinkClass, NodeKind
from topology.model import DeviceKind, Topology

ETHERNET: Final = "ethernet"  # any other kind of port reaches GPU memory without the CPU
_FAST: Final = frozenset({LinkClass.nvlink, LinkClass.xgmi, LinkClass.c2c})
RDMA_LEVELS: Final = ("PIX", "PXB")  # NCCL's default limit both for peer copies and for GPU-direct RDMA
_FEW_GPUS: Final = 2  # on AMD hosts with no more than so many NCCL copies between peers through the CPU


class CopyWay(Enum):
    """How the bytes get across."""

    direct = "direct link"
    peer = "PCIe peer to peer"
    host_memory = "staged through host memory"
    rdma = "GPU-direct RDMA"
    staged_network = "network, staged through host memory"
    memory = "host memory of CPU ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRules:
    """What a machine allows beyond the defaults.

    Attributes:
        peers_through_cpu: hosts whose GPUs copy to each other through the CPU.
        rdma_nics: ids of adapters that can do RDMA; None: all can.
    """

    peers_through_cpu: frozenset[str] = frozenset()
    rdma_nics: frozenset[str] | None = None


def copy_rules(topology: Topology) -> CopyRules:
    """Read the rules of a topology: who made its processors, how many GPUs a host has, what its ports are."""
    few = [
        host.name
        for host in topology.hosts
        if "AMD" in (host.cpu_name or "").upper()
        and sum(device.kind is DeviceKind.gpu for device in host.devices) <= _FEW_GPUS
    ]
    rdma = frozenset(nic.id for nic in topology.nics if nic.kind != ETHERNET)
    return CopyRules(peers_through_cpu=frozenset(few), rdma_nics=rdma)


def level_of(graph: Graph, path: Sequence[int]) -> str:
    """How far apart the ends of a path are, as nvidia-smi calls it: NV, PIX, PXB, PHB, NODE, SYS; NET across hosts."""
    edges = [graph.edges[at] for at in path]
    between = [graph.nodes[edge.head].kind for edge in edges[:-1]]
    if any(edge.link is LinkClass.network for edge in edges):
        return "NET"
    if all(edge.link in _FAST for edge in edges) and set(between) <= {NodeKind.nvswitch, NodeKind.device}:
        return "NV"
    if any(edge.link is LinkClass.socket for edge in edges):
        return "SYS"
    if NodeKind.socket in between:
        return "NODE"
    if NodeKind.bridge in between:
        return "PHB"
    return "PIX" if between.count(NodeKind.pcie) <= 1 else "PXB"


def way_of(graph: Graph, path: Sequence[int], rules: CopyRules) -> tuple[CopyWay, str]:
    """By which means data follows a path, and why."""
    level = level_of(graph, path)
    links = {graph.edges[at].link for at in path}
    if LinkClass.memory in links:
        return CopyWay.memory, "CPU ranks share the memory of their host, and send from it"
    if level == "NET":
        return _across(graph, path, rules)
    if level == "NV":
        return CopyWay.direct, f"joined by {' and '.join(sorted(link.value for link in links))}"
    return _inside(level, graph.nodes[graph.edges[path[0]].tail].host or "", graph, rules)


def _inside(level: str, host: str, graph: Graph, rules: CopyRules) -> tuple[CopyWay, str]:
    """Over the PCIe tree of one host: whether peers copy to each other."""
    if host in graph.through_host:
        return CopyWay.host_memory, f"{level}, and the driver of these cards allows no peer copies over PCIe"
    if level in RDMA_LEVELS:
        return CopyWay.peer, f"{level}: only PCIe switches lie between"
    if host in rules.peers_through_cpu:
        return CopyWay.peer, f"{level}, and NCCL copies through an AMD processor with at most two GPUs"
    return CopyWay.host_memory, f"{level}: the way leads through the CPU, and NCCL's limit for peer copies is PXB"


def _across(graph: Graph, path: Sequence[int], rules: CopyRules) -> tuple[CopyWay, str]:
    """Across hosts: whether the adapters at both ends read the devices' memory themselves."""
    nodes = [graph.nodes[graph.edges[at].head] for at in path]
    nics = [node.id.removesuffix("/out").removesuffix("/in") for node in nodes if node.kind is NodeKind.nic]
    no_rdma = [nic for nic in nics if rules.rdma_nics is not None and nic not in rules.rdma_nics]
    if no_rdma:
        return CopyWay.staged_network, f"{no_rdma[0]} is no RDMA port"
    if any(graph.edges[at].link is LinkClass.c2c for at in path):
        return CopyWay.rdma, "the adapter reads GPU memory over C2C (NCCL_NET_GDR_C2C)"
    meet = next((node.id for node in nodes if node.kind in (NodeKind.bridge, NodeKind.socket)), None)
    if meet is not None:
        return CopyWay.staged_network, f"GPU and adapter meet at {meet}, and NCCL's limit for GPU-direct RDMA is PXB"
    return CopyWay.rdma, "only PCIe switches lie between GPU and adapter"
