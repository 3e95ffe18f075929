"""Groups over several hosts: equally many devices of hosts that are alike, and close to each other on the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from topology.hosts import split_hosts
from topology.model import SwitchKind, Topology
from topology.routing.all_wires import all_wires
from topology.routing.group_classes import alike_groups, is_countable, pair_colours

_FEW: Final = 256  # kinds of parts of a host that are compared
Choose = Callable[[Topology, Sequence[Sequence[str]]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClass:
    """Hosts with the same parts joined in the same way, in the order of their leaves."""

    hosts: tuple[str, ...]
    devices: tuple[tuple[str, ...], ...]

    @property
    def width(self) -> int:
        """Devices of each host."""
        return len(self.devices[0])


def candidates_of_hosts(topology: Topology, size: int, choose: Choose) -> tuple[tuple[str, ...], ...]:
    """Groups of `size` devices worth scoring, as ids in rank order: host by host.

    Args:
        topology: of several hosts with devices.
        size: of a group.
        choose: gives the index of the best of several groups; used to take a part of a host.
    """
    classes = host_classes(topology)
    found: dict[tuple[str, ...], None] = {}
    for group in classes:
        for each in range(1, group.width + 1):
            count, rest = divmod(size, each)
            if rest or count > len(group.hosts):
                continue
            places = _places(topology, group, each, choose, is_alone=count == 1)
            found.setdefault(tuple(host[place] for host in group.devices[:count] for place in places))
    found.setdefault(_whole(classes, size))
    return tuple(found)


def _whole(classes: Sequence[HostClass], size: int) -> tuple[str, ...]:
    """Whole hosts, the largest first, until there are enough devices."""
    by_width = sorted(classes, key=lambda group: -group.width)
    return tuple(name for group in by_width for host in group.devices for name in host)[:size]


def _places(topology: Topology, group: HostClass, each: int, choose: Choose, *, is_alone: bool) -> tuple[int, ...]:
    """Which devices of a host of a class to take, tried on one or two of its hosts."""
    everything = tuple(range(group.width))
    if each == group.width:
        return everything
    tried = group.hosts[:1] if is_alone else group.hosts[:2]
    part = part_of(topology, tried)
    owners = group.devices[: len(tried)]
    if not is_countable(group.width, each):
        return everything[:each]
    colours = pair_colours(all_wires(part, [name for host in owners for name in host]))
    kinds = alike_groups(colours[: group.width, : group.width], each)[:_FEW]
    candidates = [[host[place] for host in owners for place in kind.ranks] for kind in kinds]
    return kinds[choose(part, candidates)].ranks if each > 1 or not is_alone else kinds[0].ranks


def part_of(topology: Topology, hosts: Sequence[str]) -> Topology:
    """Some hosts of a topology, with all switches between hosts."""
    kept = set(hosts)
    own = tuple(host for host in topology.hosts if host.name in kept)
    switches = tuple(switch for switch in topology.switches if switch.host is None or switch.host in kept)
    ids = {device.id for host in own for device in host.devices} | {nic.id for host in own for nic in host.nics}
    ids |= {switch.id for switch in switches}
    return Topology(
        hosts=own,
        switches=switches,
        links=tuple(link for link in topology.links if link.a in ids and link.b in ids),
        pairs=tuple(pair for pair in topology.pairs if pair.a in ids and pair.b in ids),
        source=topology.source,
    )


def host_classes(topology: Topology) -> tuple[HostClass, ...]:
    """Group the hosts that have devices by what they are made of; hosts of one leaf stand together."""
    gpus = bool(topology.gpus)
    leaves = leaves_of(topology)
    found: dict[object, list[tuple[int, str, tuple[str, ...]]]] = {}
    for part in split_hosts(topology):
        host = part.hosts[0]
        devices = tuple(device.id for device in (part.gpus if gpus else part.devices))
        if devices:
            found.setdefault(shape_of(part), []).append((leaves.get(host.name, 0), host.name, devices))
    classes = []
    for members in found.values():
        members.sort(key=lambda member: member[0])
        classes.append(
            HostClass(hosts=tuple(name for _, name, _ in members), devices=tuple(ids for _, _, ids in members))
        )
    return tuple(classes)


def leaves_of(topology: Topology) -> dict[str, int]:
    """Number of the set of network switches that each host is on, in the order of the hosts."""
    networks = {switch.id for switch in topology.switches if switch.kind is SwitchKind.network}
    host_of = {nic.id: host.name for host in topology.hosts for nic in host.nics}
    joined: dict[str, set[str]] = {}
    for link in topology.links:
        for nic, switch in ((link.a, link.b), (link.b, link.a)):
            if switch in networks and nic in host_of:
                joined.setdefault(host_of[nic], set()).add(switch)
    numbers: dict[frozenset[str], int] = {}
    return {
        host.name: numbers.setdefault(frozenset(joined.get(host.name, ())), len(numbers)) for host in topology.hosts
    }


def shape_of(part: Topology) -> tuple[Any, ...]:
    """What one host is made of, with numbers in place of ids: equal for hosts that are copies of each other."""
    host = part.hosts[0]
    ids = (*(d.id for d in host.devices), *(n.id for n in host.nics), *(s.id for s in part.switches))
    number = {name: at for at, name in enumerate(ids)}
    return (
        tuple((device.name, device.kind) for device in host.devices),
        len(host.nics),
        tuple(switch.kind for switch in part.switches),
        tuple((number[link.a], number[link.b], link.kind, link.capacity_bytes_per_second) for link in part.links),
    )
