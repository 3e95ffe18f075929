"""The rings of a group as NCCL's graph file (NCCL_GRAPH_FILE, version 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final
from xml.etree import ElementTree as ET

from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import Graph, NodeKind
from topology.model import Topology
from topology.routing.ring import multi_ring
from topology.schedule import Schedule, Send
from topology.scoring.copy_rules import level_of

_RING: Final = 4  # NCCL_TOPO_PATTERN_RING
_MOST_CHANNELS: Final = 32
_GB: Final = 1e9
_NEARLY: Final = 0.99
# What one channel carries at most, GB/s, from a compute capability on (perChMaxRingLL128Bws of tuning.cc).
_CHANNEL_RATES: Final = ((10, 40.0), (9, 36.7), (0, 20.0))
_TYPES: Final = ("NVL", "NVB", "PIX", "PXB", "PHB", "SYS")  # nearest first, in NCCL's order
_LEVELS: Final = {"NV": "NVL", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}


def graph_xml(topology: Topology, graph: Graph) -> str:
    """Write the rings that together carry most, each on as many channels as its share asks for.

    Raises:
        TopologyError: several hosts, or GPUs whose number NCCL would not know.
    """
    numbers = _numbers(topology, graph)
    schedule = multi_ring(graph, Collective.all_gather)
    rings = rings_of(schedule)
    rate = float(Fraction(graph.size - 1, graph.size)) / schedule.overlapped_seconds_per_byte / _GB
    counts, speed = _channels(rate, [share for _, share in rings], _channel_rate(graph))
    root = ET.Element("graphs", version="1")
    number = f"{speed:.4g}"
    found = ET.SubElement(
        root, "graph", id="0", pattern=str(_RING), crossnic="0", nchannels=str(sum(counts)), speedintra=number,
        speedinter=number, latencyinter="0", typeintra=_type_of(graph, schedule.sends), typeinter="PIX",
        samechannels=str(int(len(rings) == 1)),
    )  # fmt: skip
    for (order, _), count in zip(rings, counts, strict=True):
        for _ in range(count):
            channel = ET.SubElement(found, "channel")
            for rank in order:
                ET.SubElement(channel, "gpu", dev=numbers[rank])
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def rings_of(schedule: Schedule) -> tuple[tuple[tuple[int, ...], Fraction], ...]:
    """Orders of a ring all-gather, each from rank 0 on, with the share of the data that runs on it.

    Raises:
        TopologyError: a chunk does not go round a ring.
    """
    by_chunk: dict[int, list[Send]] = {}
    for send in schedule.sends:
        by_chunk.setdefault(send.chunk, []).append(send)
    shares: dict[tuple[int, ...], Fraction] = {}
    for chunk, sends in by_chunk.items():
        order = (sends[0].source, *(send.target for send in sends))
        is_chain = [send.source for send in sends] == list(order[:-1])
        if not is_chain or len(order) != schedule.size:
            found = f"chunk {chunk} of {schedule.algorithm} does not"
            raise TopologyError(
                asked="chunks that go round a ring", found=found, remedy="export the schedule of a ring"
            )
        start = order.index(0)
        order = (*order[start:], *order[:start])
        shares[order] = shares.get(order, Fraction(0)) + schedule.chunks[chunk].share
    return tuple(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def _channels(rate: float, shares: Sequence[Fraction], most: float) -> tuple[list[int], float]:
    """Channels of each ring, and GB/s of a channel that every ring's wires carry.

    The fewest that reach nearly all of the rate: whole numbers of channels do not divide it as the rings do.
    """
    fewest = min(_MOST_CHANNELS, max(len(shares), math.ceil(rate / most)))
    tried = [_shared_out(rate, shares, number) for number in range(fewest, _MOST_CHANNELS + 1)]
    tried = [found for found in tried if found[1] <= most] or tried
    best = max(sum(counts) * speed for counts, speed in tried)
    return next(found for found in tried if sum(found[0]) * found[1] >= _NEARLY * best)


def _shared_out(rate: float, shares: Sequence[Fraction], number: int) -> tuple[list[int], float]:
    counts = [max(1, round(share * number)) for share in shares]
    while sum(counts) > _MOST_CHANNELS:
        counts[counts.index(max(counts))] -= 1
    return counts, min(rate * float(share) / count for share, count in zip(shares, counts, strict=True))


def _channel_rate(graph: Graph) -> float:
    major = min((node.compute_capability or (0, 0))[0] for node in graph.nodes[: graph.size])
    return next(rate for least, rate in _CHANNEL_RATES if major >= least)


def _type_of(graph: Graph, sends: Sequence[Send]) -> str:
    """The farthest kind of path between neighbours, in NCCL's words."""
    found = set()
    for path in {send.path for send in sends}:
        name = _LEVELS[level_of(graph, path)]
        relays = any(graph.nodes[graph.edges[at].head].kind is NodeKind.device for at in path[:-1])
        found.add("NVB" if name == "NVL" and relays else name)
    return max(found, key=_TYPES.index)


def _numbers(topology: Topology, graph: Graph) -> tuple[str, ...]:
    """NVML's number of each GPU. From 10 on with 0x, as versions that read decimals and those that do not agree."""
    known = {device.id: device for device in topology.devices}
    devices = [known[name] for name in graph.device_ids]
    if len({device.host for device in devices}) > 1:
        found = "a graph file is of one host, and numbers its adapters as NCCL's plugin finds them"
        raise TopologyError(asked="rings over several hosts", found=found, remedy="dump NCCL's own and edit it")
    nameless = [device.id for device in devices if device.index is None or device.parent is not None]
    if nameless:
        found = f"no number of {', '.join(nameless)}"
        raise TopologyError(asked="a graph file", found=found, remedy="describe the machine by `trainmaster probe`")
    return tuple(f"{device.index}" if (device.index or 0) < 10 else f"0x{device.index:x}" for device in devices)  # noqa: PLR2004 - digits
