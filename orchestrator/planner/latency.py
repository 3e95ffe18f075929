"""Latency of collectives over many ranks, by the cost model that NCCL itself chooses its algorithms with.

Formulas: NCCL 2.30, src/graph/tuning.cc; its constants stand in `topology.routing.latency`. A ring passes every rank,
so its latency grows with their number; a tree's grows with the logarithm of the hosts, but there is none for an
all-gather.
"""

from __future__ import annotations

import math
from typing import Final

from topology.routing.latency import PROTOCOLS, Protocol

_MICROSECOND: Final = 1e-6
# PAT, the logarithmic all-gather for one GPU a host: base and network latency, and one message for each rank.
_PAT: Final = (8.0, 14.0, 3.5, 2.8)
_BY_NAME: Final = {protocol.name: protocol for protocol in PROTOCOLS}
_NVLINK, _PCIE, _NETWORK = range(3)


def _protocol(*, nvlink: bool) -> Protocol:
    """LL128 reaches most of an NVLink's rate at a third of the latency; over PCIe it is switched off."""
    return _BY_NAME["LL128" if nvlink else "Simple"]


def gather_latency_seconds(ranks: int, hosts: int, *, nvlink: bool) -> float:
    """Latency of an all-gather or reduce-scatter: a ring over all ranks, or PAT with one rank a host.

    Args:
        ranks: that take part.
        hosts: they are spread over.
        nvlink: the ranks of a host are joined by NVLink.
    """
    own = _protocol(nvlink=nvlink)
    inside, network = own.ring_hops[_NVLINK if nvlink else _PCIE], own.ring_hops[_NETWORK]
    found = own.ring_launch + (ranks - hosts) * inside + (hosts - 1) * network
    if 1 < ranks == hosts:
        base, hop, share, message = _PAT
        found = min(found, (base + math.log2(hosts) * hop / share + ranks * message) * _MICROSECOND)
    return found


def reduce_latency_seconds(ranks: int, hosts: int, *, nvlink: bool, most: int = 0) -> float:
    """Latency of an all-reduce: twice around the ring, or up and down a tree, whichever is shorter.

    `most` ranks of one host, where these differ: its chain is the longest.
    """
    own = _protocol(nvlink=nvlink)
    at = _NVLINK if nvlink else _PCIE
    around = own.ring_launch + 2 * ((ranks - hosts) * own.ring_hops[at] + (hosts - 1) * own.ring_hops[_NETWORK])
    levels = math.log2(hosts)
    up_and_down = own.tree_launch + 2 * (
        ((most or ranks // hosts) - 1) * own.tree_hops[at] + levels * own.tree_hops[_NETWORK]
    )
    return min(around, up_and_down)
