"""All-reduce in the switch (NVLS): an entry of its own, since it beats every bound that counts sends.

Each GPU sends its data to the switch once and takes the sum once; one rank in N does both for its share, so the time is
M (1 + 1/N) / (e B) with B of a GPU's links and a measured share e (435.6, 460.0 and 473.1 GB/s of bus bandwidth with
6, 7 and 8 of 8 H200 follow from one e).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from topology.graph import UNIT_BYTES_PER_SECOND, Graph, LinkClass, NodeKind
from topology.routing.priors import Prior

_SHARES: Final = {
    9: Prior(value=0.676, source="8 H200 with NVLS: all-reduce 473 GB/s; 8 H100: 479"),
    10: Prior(value=0.60, source="8 B200 with NVLS: all-reduce 838 GB/s, 6 of 8: 778"),
}
_LEAST_DEVICES: Final = 3
_TWO: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvls:
    """What the switch can do for a group: seconds per byte of M within each of `islands` of `size` GPUs or more."""

    size: int
    islands: int
    seconds_per_byte: float
    prior: Prior


def nvls_of(graph: Graph) -> Nvls | None:
    """The entry for the devices of one NVSwitch domain; None where the hardware has no multicast.

    On several hosts it is that of the smallest island: each reduces in its switch, and trees join the islands.
    """
    islands: dict[int, list[int]] = {}
    units: list[int] = []
    for edge in graph.edges:
        if edge.tail < graph.size and graph.nodes[edge.head].kind is NodeKind.nvswitch:
            islands.setdefault(edge.head, []).append(edge.tail)
            units.append(edge.units or 0)
    size = min((len(ranks) for ranks in islands.values()), default=0)
    generations = {(node.compute_capability or (0, 0))[0] for node in graph.nodes[: graph.size]}
    joined = sum(len(ranks) for ranks in islands.values()) == graph.size
    least = min(generations)
    if size < _LEAST_DEVICES or not joined or least < min(_SHARES) or not min(units):
        return None
    prior = _SHARES[min(least, max(_SHARES))]
    rate = min(units) * UNIT_BYTES_PER_SECOND * prior.value
    return Nvls(size=size, islands=len(islands), seconds_per_byte=(1 + 1 / size) / rate, prior=prior)


def network_seconds_per_byte(graph: Graph, nvls: Nvls, share: float) -> float:
    """Seconds per byte of M over the network when trees join islands; 0 where all GPUs share a switch.

    Over two islands each sends M once; over more, an inner node of one tree is a leaf of the other, and sends 2 M.
    """
    if nvls.islands == 1:
        return 0.0
    rates = dict.fromkeys(graph.hosts, 0)
    for edge in graph.edges:
        tail = graph.nodes[edge.tail]
        if edge.link is LinkClass.network and tail.kind is NodeKind.nic and tail.host in rates:
            rates[tail.host] += edge.units or 0
    slowest = min(rates.values()) * UNIT_BYTES_PER_SECOND * share
    times = 1 if nvls.islands == _TWO else 2
    return times / slowest if slowest else 0.0
