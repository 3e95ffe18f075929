"""Latency of collectives over many ranks, by the cost model that NCCL itself chooses its algorithms with.

Constants and formulas: NCCL 2.30, src/graph/tuning.cc. A ring passes every rank, so its latency grows with their
number; a tree's grows with the logarithm of the hosts, but there is none for an all-gather.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_MICROSECOND: Final = 1e-6
# PAT, the logarithmic all-gather for one GPU a host: base and network latency, and one message for each rank.
_PAT: Final = (8.0, 14.0, 3.5, 2.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hops:
    """Microseconds: before the first hop, of a hop inside a host, of one over the network."""

    base: float
    inside: float
    network: float


# Protocol LL128 reaches 95% of an NVLink's bandwidth at a third of the latency; over PCIe it is switched off.
_RING: Final = {True: _Hops(base=14.0, inside=1.9, network=4.0), False: _Hops(base=8.4, inside=5.7, network=14.0)}
_TREE: Final = {True: _Hops(base=14.0, inside=1.25, network=8.5), False: _Hops(base=8.4, inside=4.0, network=14.0)}


def gather_latency_seconds(ranks: int, hosts: int, *, nvlink: bool) -> float:
    """Latency of an all-gather or reduce-scatter: a ring over all ranks, or PAT with one rank a host.

    Args:
        ranks: that take part.
        hosts: they are spread over, equally.
        nvlink: the ranks of a host are joined by NVLink.
    """
    ring = _RING[nvlink]
    found = ring.base + (ranks - hosts) * ring.inside + (hosts - 1) * ring.network
    if 1 < ranks == hosts:
        base, network, share, message = _PAT
        found = min(found, base + math.log2(hosts) * network / share + ranks * message)
    return found * _MICROSECOND


def reduce_latency_seconds(ranks: int, hosts: int, *, nvlink: bool) -> float:
    """Latency of an all-reduce: twice around the ring, or up and down a tree, whichever is shorter."""
    ring, tree = _RING[nvlink], _TREE[nvlink]
    around = ring.base + 2 * ((ranks - hosts) * ring.inside + (hosts - 1) * ring.network)
    up_and_down = tree.base + 2 * ((ranks // hosts - 1) * tree.inside + math.log2(hosts) * tree.network)
    return min(around, up_and_down) * _MICROSECOND
