"""Fixed times of collectives: launches and hops, by the software that runs them, each with its source.

Values of NCCL are those of its own tuner (src/graph/tuning.cc, 2.30); what stands beside was read off published curves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from topology.graph import Graph, LinkClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How NCCL moves data: seconds of a launch and of a hop by kind of wire, and the share of the rate it reaches."""

    name: str
    ring_launch: float
    tree_launch: float
    ring_hops: tuple[float, float, float]  # NVLink, PCIe, network
    tree_hops: tuple[float, float, float]
    rate_share: float


PROTOCOLS: Final = (
    Protocol(
        name="LL",
        ring_launch=6.6e-6,
        tree_launch=6.8e-6,
        ring_hops=(0.6e-6, 1.0e-6, 2.7e-6),
        tree_hops=(0.6e-6, 1.0e-6, 5e-6),
        rate_share=0.5,
    ),
    Protocol(
        name="LL128",
        ring_launch=14e-6,
        tree_launch=14e-6,
        ring_hops=(1.9e-6, 2.5e-6, 4e-6),
        tree_hops=(1.25e-6, 1.9e-6, 8.5e-6),
        rate_share=0.92,
    ),
    Protocol(
        name="Simple",
        ring_launch=8.4e-6,
        tree_launch=8.4e-6,
        ring_hops=(3.4e-6, 5.7e-6, 14e-6),
        tree_hops=(4e-6, 4e-6, 14e-6),
        rate_share=1.0,
    ),
)
# Two size curves (8 H100, 8 B200 with NVLS) reach half their rate where a ramp of this length says so.
NVLS_RAMP_SECONDS: Final = 12e-6
NVLS_LAUNCH_SECONDS: Final = 18e-6
NVLS_HOP_SECONDS: Final = 25e-6  # NCCL's tuner: into and out of the switch, where trees follow
NVLS_NETWORK_HOP_SECONDS: Final = 20.9e-6
# What a rank needs to issue one send and one receive and to learn that they are done.
GLOO_STEP_SECONDS: Final = 150e-6  # prior: two threads and a socket, within a host or between two
NCCL_STEP_SECONDS: Final = 20e-6  # prior: one grouped launch of sends and receives
GLOO_LAUNCH_SECONDS: Final = 100e-6
NCCL_LAUNCH_SECONDS: Final = 15e-6


def hop_class(graph: Graph) -> int:
    """0 where devices of a host are joined by NVLink or its like, otherwise 1 (PCIe, host memory)."""
    fast = (LinkClass.nvlink, LinkClass.xgmi, LinkClass.c2c)
    return 0 if any(edge.link in fast and min(edge.tail, edge.head) < graph.size for edge in graph.edges) else 1


def ring_seconds(graph: Graph, protocol: Protocol, steps: int) -> float:
    """Seconds of all hops of a ring of `steps` steps; a step that crosses hosts waits for the network."""
    hosts = len(set(graph.hosts))
    inside, network = protocol.ring_hops[hop_class(graph)], protocol.ring_hops[2]
    crossing = 0 if hosts == 1 else min(steps, hosts * steps // max(1, graph.size - 1))
    return (steps - crossing) * inside + crossing * network


def tree_seconds(graph: Graph, protocol: Protocol) -> float:
    """Seconds up and down a double binary tree over hosts with a chain inside each."""
    hosts = len(set(graph.hosts))
    inside, network = protocol.tree_hops[hop_class(graph)], protocol.tree_hops[2]
    chain = math.ceil(graph.size / hosts) - 1
    return 2 * (chain * inside + math.ceil(math.log2(hosts)) * network)


def nvls_seconds(islands: int) -> float:
    """Seconds that a sum in the switch needs to fill: alone, or with trees over the network."""
    if islands == 1:
        return NVLS_RAMP_SECONDS
    return NVLS_HOP_SECONDS + 2 * math.log2(islands) * NVLS_NETWORK_HOP_SECONDS


def ramp(fixed_seconds: float, moving_seconds: float) -> float:
    """Time of a pipeline whose pieces are as small as pays: fill and pieces trade against each other.

    With k pieces over a path of L seconds fixed cost it is (L / s + k) (s + T / k) for pieces of s fixed seconds each;
    the best k gives (sqrt(L) + sqrt(T)) squared.
    """
    return (math.sqrt(fixed_seconds) + math.sqrt(moving_seconds)) ** 2
