"""Groups of ranks that a second copy of the base may lie in: the hosts, and the islands that NVLink makes.

DeepSpeed takes as many consecutive ranks as it is told for a group, so a group is offered only where that cuts every
host, or every fabric of hosts, at its islands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from orchestrator.estimate.calibration import LINK_EFFICIENCY
from orchestrator.planner.latency import gather_latency_seconds
from orchestrator.planner.rates import bottleneck
from orchestrator.planner.wires import Wires, wires_of
from topology.grouping import connected
from topology.model import Device, Pair, SwitchKind, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """So many consecutive ranks that gather from each other over faster links than all ranks do.

    Attributes:
        ranks: of a group; they divide all ranks.
        name: `island` or `host`.
        bytes_per_second: of a gather inside it.
        alpha_seconds: latency of a gather inside it.
    """

    ranks: int
    name: str
    bytes_per_second: float
    alpha_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """What joins devices without the network.

    Attributes:
        pairs: of each host, by its name.
        fabric: number of the island of each device where NVLink joins devices of several hosts; empty elsewhere.
        wires: links and switches, by host.
    """

    pairs: Mapping[str, Sequence[Pair]]
    fabric: Mapping[str, int]
    wires: Wires

    def is_one_fabric(self, devices: Sequence[Device]) -> bool:
        """Whether NVLink joins all of these, across hosts."""
        found = {self.fabric.get(device.id) for device in devices}
        return len(found) == 1 and None not in found


def near_of(topology: Topology, measured: Mapping[frozenset[str], float] | None = None) -> Near:
    """Sort pairs and links by host, and number the islands that span hosts.

    Args:
        topology: of the machine.
        measured: bytes per second of links, by both ends, in the place of the topology's.
    """
    home = {device.id: host.name for host in topology.hosts for device in host.devices}
    pairs: dict[str, list[Pair]] = {host.name: [] for host in topology.hosts}
    for pair in topology.pairs:
        if pair.a in home:
            pairs[home[pair.a]].append(pair)
    # Only a switch that is part of no host joins devices of several: elsewhere there is nothing to look for.
    spans = any(switch.kind is SwitchKind.nvswitch and switch.host is None for switch in topology.switches)
    islands = topology.islands if spans else ()
    return Near(
        pairs=pairs,
        fabric={name: number for number, island in enumerate(islands) for name in island},
        wires=wires_of(topology, measured),
    )


def has_nvlink(devices: Sequence[Device], pairs: Sequence[Pair]) -> bool:
    """Whether NVLink alone joins these devices of one host; true of a single one, whose network counts."""
    return len(islands_of(devices, pairs)) == 1


def islands_of(devices: Sequence[Device], pairs: Sequence[Pair]) -> tuple[tuple[str, ...], ...]:
    """Ids of the devices that NVLink joins, in the order of the devices."""
    ids = {device.id for device in devices}
    joined = [(pair.a, pair.b) for pair in pairs if pair.is_nvlink and pair.a in ids and pair.b in ids]
    return connected([device.id for device in devices], joined)


def groups_of(gpus: Sequence[Sequence[Device]], pairs: Sequence[Sequence[Pair]], near: Near) -> tuple[Group, ...]:
    """Return the groups to weigh, the smallest first.

    Args:
        gpus: of each host, in rank order. Where hosts have unequal numbers, groups divide each of these.
        pairs: of each host.
        near: islands over several hosts.
    """
    return tuple(sorted(_found(gpus, pairs, near), key=lambda group: group.ranks))


def _found(gpus: Sequence[Sequence[Device]], pairs: Sequence[Sequence[Pair]], near: Near) -> Iterator[Group]:
    alike, wide = alike_hosts(gpus, pairs), _fabric_hosts(gpus, near)
    counts = {len(some) for some in gpus}
    if len(counts) > 1:
        if wide <= 1:
            yield from _dividing(near, alike, gcd(*counts))
        return
    per_host, hosts = len(gpus[0]), len(gpus)
    if hosts > 1 and per_host > 1 and wide <= 1:
        nvlink = all(has_nvlink(some, own) for some, own in alike)
        yield _group("host", per_host, min(_rate(near, [some], own) for some, own in alike), nvlink=nvlink)
    sizes = {_size_of(some, own) for some, own in alike}
    if len(sizes) == 1 and 1 < (size := sizes.pop()) < per_host:
        parts = [(some[at : at + size], own) for some, own in alike for at in range(0, per_host, size)]
        yield _group("island", size, min(_rate(near, [part], own) for part, own in parts), nvlink=True)
    if 1 < wide < hosts and per_host > 1:
        rate = min(_rate(near, gpus[at : at + wide], pairs[at], one_fabric=True) for at in range(0, hosts, wide))
        yield _group("island", wide * per_host, rate, nvlink=True)


def _dividing(near: Near, alike: Sequence[tuple[Sequence[Device], Sequence[Pair]]], size: int) -> Iterator[Group]:
    """Groups of so many ranks, none over two hosts: what all of these hosts can be cut into, and smaller islands."""
    islands = {_size_of(some, own) for some, own in alike}
    for each in sorted({size, *(islands if len(islands) == 1 else ())} - {0, 1}):
        parts = [(some[at : at + each], own) for some, own in alike for at in range(0, len(some), each)]
        rate = min(_rate(near, [part], own) for part, own in parts)
        yield _group("island", each, rate, nvlink=all(has_nvlink(part, own) for part, own in parts))


def _rate(near: Near, gpus: Sequence[Sequence[Device]], pairs: Sequence[Pair], *, one_fabric: bool = False) -> float:
    """Bytes per second of a gather among these devices: over their wires, else by the labels of their pairs."""
    found = near.wires.routes(gpus, one_fabric=one_fabric)
    return found.gather.bytes_per_second if found else bottleneck(gpus[0], pairs) * LINK_EFFICIENCY.value


def _group(name: str, ranks: int, rate: float, *, nvlink: bool) -> Group:
    return Group(
        ranks=ranks,
        name=name,
        bytes_per_second=rate,
        # Over a fabric of several hosts, too, every hop is an NVLink.
        alpha_seconds=gather_latency_seconds(ranks, 1, nvlink=nvlink),
    )


def _size_of(devices: Sequence[Device], pairs: Sequence[Pair]) -> int:
    """Ranks of an island where all are as large and follow each other; 0 elsewhere."""
    islands = islands_of(devices, pairs)
    order = [device.id for device in devices]
    if len({len(island) for island in islands}) > 1 or [name for island in islands for name in island] != order:
        return 0
    return len(islands[0])


def _fabric_hosts(gpus: Sequence[Sequence[Device]], near: Near) -> int:
    """Hosts of one fabric where all fabrics have as many, one after the other; 0 elsewhere."""
    if not near.fabric:
        return 0
    numbers = [near.fabric.get(some[0].id, -1) for some in gpus]
    counts = {numbers.count(number) for number in set(numbers)}
    (size, *more) = counts
    blocks = [set(numbers[at : at + size]) for at in range(0, len(numbers), size)]
    return size if not more and all(len(block) == 1 for block in blocks) else 0


def alike_hosts(
    gpus: Sequence[Sequence[Device]], pairs: Sequence[Sequence[Pair]]
) -> list[tuple[Sequence[Device], Sequence[Pair]]]:
    """Return devices and pairs of one host of each kind: those that are joined alike need one look."""
    kinds = {(len(some), tuple(pair.kind for pair in own)): (some, own) for some, own in zip(gpus, pairs, strict=True)}
    return list(kinds.values())
