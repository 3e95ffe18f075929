"""What share of a wire's rate collectives reach, by the kind of path, each with its source.

Rates of a graph are wire rates. Where a link was measured under load, its rate is what copies reach, and no share is
taken off (see `Edge.source`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from topology.graph import MEASURED, Graph, LinkClass, NodeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """A share of a rate (or a factor) and where it comes from."""

    value: float
    source: str


class PathKind(Enum):
    """What kind of wires a copy takes, by the narrowest kind on its way."""

    nvlink = "NVLink"
    nvlink_pair = "NVLink between two GPUs alone"
    xgmi = "xGMI"
    c2c = "C2C"
    pcie_switch = "PCIe switch"
    host_bridge = "PCIe through one processor"
    socket = "PCIe between processors"
    network = "network"
    memory = "host memory"


_NVLINK: Final = {
    7: Prior(value=0.90, source="8 V100 in a cube mesh: all-reduce 135.5 of 150 GB/s"),
    8: Prior(value=0.77, source="8 A100: all-reduce 231.6 of 300 GB/s, 230.8 on another machine"),
    9: Prior(value=0.815, source="8 H200, ring: all-reduce 367, reduce-scatter 363 of 450 GB/s"),
    10: Prior(value=0.755, source="8 B200 without NVLS: all-reduce 677.8 to 682 of 900 GB/s"),
}
_NVLINK_OTHER: Final = Prior(value=0.8, source="rule of thumb over four families of NVLink")
_PAIR: Final = Prior(
    value=0.40, source="two GPUs alone: H100 PCIe 116 of 300 GB/s, RTX 2080 Ti 21 of 50 GB/s (all-reduce)"
)
SHARES: Final = {
    PathKind.xgmi: Prior(value=0.76, source="8 MI355X: all-reduce 406.8 GB/s; 2 of 8 MI300X 47.7 of 64 GB/s"),
    PathKind.c2c: Prior(value=0.80, source="as NVLink: nobody measured it alone"),
    PathKind.pcie_switch: Prior(
        value=0.74, source="8 GPUs below two PCIe Gen5 switches: all-reduce 46.4 of 63 GB/s; Gen4: 0.82"
    ),
    PathKind.host_bridge: Prior(value=0.65, source="rule of thumb: 0.4 to 0.7 through a processor; measure it"),
    PathKind.socket: Prior(value=0.60, source="3 of 8 A100 PCIe: all-reduce 20 of 31.5 GB/s over sockets"),
    PathKind.network: Prior(value=0.95, source="4 x 8 B200 381.8, 8 x 8 H100 387 of 400 GB/s; 2 x 8 A100 93 of 100"),
    PathKind.memory: Prior(value=1.0, source="the rate itself is a prior or measured"),
}
# What NCCL's patterns reach of what their wires reach.
PATTERNS: Final = {
    "double tree": Prior(value=0.78, source="NCCL's tuner: 0.92 x 0.85 for trees"),
    "direct": Prior(value=0.83, source="all-to-all: 2 and 4 GB10 19.8 and 16.6 of 25 GB/s, 8 MI355X 0.67 of the wires"),
    "all-to-all of sends": Prior(value=0.83, source="as NCCL's all-to-all, which is sends and receives too"),
}
_EDGE_CLASS: Final = {
    LinkClass.nvlink: PathKind.nvlink,
    LinkClass.xgmi: PathKind.xgmi,
    LinkClass.c2c: PathKind.c2c,
    LinkClass.memory: PathKind.memory,
    LinkClass.network: PathKind.network,
}
_PAIR_SIZE: Final = 2
_STAGED: Final = 0.75  # of the share: the copy ends in host memory and starts from there again


def path_kind(graph: Graph, path: Sequence[int]) -> PathKind:
    """What kind of path the edges form."""
    links = {graph.edges[at].link for at in path}
    if LinkClass.network in links:
        return PathKind.network
    if LinkClass.socket in links:
        return PathKind.socket
    if LinkClass.inside in links:
        return PathKind.host_bridge
    if LinkClass.pcie in links:
        return PathKind.pcie_switch
    kind = _EDGE_CLASS.get(next(iter(links), LinkClass.pcie), PathKind.pcie_switch)
    alone = kind is PathKind.nvlink and graph.size == _PAIR_SIZE and len(path) == 1
    return PathKind.nvlink_pair if alone else kind


def share(graph: Graph, kind: PathKind, edge: int) -> Prior:
    """The share of an edge's rate that copies over a path of this kind reach."""
    found = graph.edges[edge]
    if found.source.startswith(MEASURED):
        return Prior(value=1.0, source=found.source)
    if kind is PathKind.nvlink_pair:
        return _PAIR
    own = _EDGE_CLASS.get(found.link, kind)
    if own is PathKind.nvlink:
        return _nvlink(graph, found.tail, found.head)
    if own is PathKind.network or kind is not PathKind.network:
        prior = SHARES[own]
        host = graph.nodes[found.tail].host
        if found.link is LinkClass.pcie and host in graph.through_host:
            return Prior(value=prior.value * _STAGED, source=f"{prior.source}; staged in host memory")
        return prior
    return Prior(value=0.9, source="PCIe between a GPU and its port: the payload of its packets")


def _nvlink(graph: Graph, *ends: int) -> Prior:
    for end in ends:
        capability = graph.nodes[end].compute_capability
        if graph.nodes[end].kind is NodeKind.device and capability is not None:
            return _NVLINK.get(min(capability[0], max(_NVLINK)), _NVLINK_OTHER)
    return _NVLINK_OTHER
