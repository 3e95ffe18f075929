"""What a wire adds to the time of a copy before its first byte arrives; a measured latency replaces these.

Read from published measurements of one small copy, divided over the wires it passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from topology.graph import Edge, LinkClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of one wire in one direction, and where they come from."""

    seconds: float
    source: str


_TACCL: Final = (
    "TACCL's profiles of NDv2 and DGX-2 (microsoft/taccl, examples/topo): alpha 0.3 us, to other hosts 2.6 us"
)
_PCIE: Final = (
    "p2pBandwidthLatencyTest: 1.12 us between two RTX 6000 Ada on one bridge, 0.36 to 0.45 us on one PCIe 5 switch "
    "(voipmonitor/rtx6kpro); two wires each"
)
LATENCIES: Final[Mapping[LinkClass, Latency]] = MappingProxyType(
    {
        LinkClass.nvlink: Latency(seconds=0.3e-6, source=_TACCL),
        LinkClass.c2c: Latency(seconds=0.3e-6, source=f"as NVLink: {_TACCL}"),
        LinkClass.xgmi: Latency(seconds=0.3e-6, source=f"as NVLink: {_TACCL}"),
        LinkClass.pcie: Latency(seconds=0.5e-6, source=_PCIE),
        LinkClass.inside: Latency(seconds=0.0, source="inside the processor: counted with the PCIe wires"),
        LinkClass.socket: Latency(seconds=0.15e-6, source="prior: memory of another socket is about so much farther"),
        LinkClass.network: Latency(seconds=1.3e-6, source=f"half of a host-to-host copy each: {_TACCL}"),
        LinkClass.port: Latency(seconds=0.0, source="inside the adapter"),
        LinkClass.memory: Latency(seconds=0.1e-6, source="prior: one access of main memory"),
    }
)
# Without P2P a copy is written to the host's memory and read from there: two transfers and a hand-over.
STAGING: Final = Latency(
    seconds=12e-6,
    source="p2pBandwidthLatencyTest without P2P: 10.9 us (RTX 6000 Ada), 14 us (RTX PRO 6000), 23 to 25 us (8 A100)",
)


def wire_seconds(edges: Iterable[Edge]) -> float:
    """Latency of a way along these edges."""
    return sum(LATENCIES[edge.link].seconds for edge in edges)
