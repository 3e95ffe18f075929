"""A topology cut into its hosts, and hosts that are alike drawn once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from topology.model import Device, Host, Link, Nic, Pair, Switch, SwitchKind, Topology

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

MOST_HOSTS: Final = 8
_MOST_DEVICES: Final = 24  # of more than two hosts together, before hosts that are alike are drawn once
_FEW_HOSTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A host with its switches, the links inside it and those to the outside; `alike` names hosts drawn by it."""

    host: Host
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    outward: tuple[Link, ...]
    pairs: tuple[Pair, ...]
    alike: tuple[str, ...] = ()


def parts_of(topology: Topology) -> tuple[Part, ...]:
    """Cut the topology into its hosts; O(everything in it)."""
    host_of = hosts_by_id(topology)
    switches: dict[str, list[Switch]] = defaultdict(list)
    inside: dict[str, list[Link]] = defaultdict(list)
    outward: dict[str, list[Link]] = defaultdict(list)
    pairs: dict[str, list[Pair]] = defaultdict(list)
    for switch in topology.switches:
        if switch.id in host_of:
            switches[host_of[switch.id]].append(switch)
    for link in topology.links:
        ends = [host_of[end] for end in (link.a, link.b) if end in host_of]
        if len(ends) == 2 and ends[0] == ends[1]:  # noqa: PLR2004 - both ends
            inside[ends[0]].append(link)
        else:
            for end in ends:
                outward[end].append(link)
    for pair in topology.pairs:
        pairs[host_of[pair.a]].append(pair)
    return tuple(
        Part(
            host=host,
            switches=tuple(switches[host.name]),
            links=tuple(inside[host.name]),
            outward=tuple(outward[host.name]),
            pairs=tuple(pairs[host.name]),
        )
        for host in topology.hosts
    )


def hosts_by_id(topology: Topology) -> dict[str, str]:
    """Map the ids of devices, NICs and switches to the name of their host; switches between hosts are left out."""
    names = {host.name for host in topology.hosts}
    found = {switch.id: switch.host for switch in topology.switches if switch.host in names}
    for host in topology.hosts:
        found |= {device.id: host.name for device in host.devices}
        found |= {nic.id: host.name for nic in host.nics}
    return {name: host for name, host in found.items() if host is not None}


def spliced(topology: Topology) -> Topology:
    """Give links that join two hosts without a switch a node between them, so that they are drawn like others."""
    host_of = hosts_by_id(topology)
    cables: dict[str, Switch] = {}
    links: list[Link] = []
    for link in topology.links:
        ends = [host_of.get(link.a), host_of.get(link.b)]
        if None in ends or ends[0] == ends[1]:
            links.append(link)
            continue
        kind = SwitchKind.nvswitch if link.kind.startswith("NV") else SwitchKind.network
        name = f"{' - '.join(sorted(end for end in ends if end))} ({link.kind}, without a switch)"
        cables.setdefault(name, Switch(id=name, kind=kind, name="direct link"))
        links += [replace(link, b=name), replace(link, a=link.b, b=name)]
    known = {switch.id for switch in topology.switches} | host_of.keys()
    if not cables or not known.isdisjoint(cables):
        return topology
    return replace(topology, links=tuple(links), switches=(*topology.switches, *cables.values()))


def drawn(parts: Sequence[Part]) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Choose the hosts to draw: all where they are few, else the first of each class; also the names left out."""
    devices = sum(len(part.host.devices) for part in parts)
    is_small = len(parts) <= _FEW_HOSTS or (len(parts) <= MOST_HOSTS and devices <= _MOST_DEVICES)
    chosen = list(parts) if is_small else _classes(parts)
    left_out = [name for part in chosen[MOST_HOSTS:] for name in (part.host.name, *part.alike)]
    return tuple(chosen[:MOST_HOSTS]), tuple(left_out)


def _classes(parts: Sequence[Part]) -> list[Part]:
    classes: dict[Hashable, list[Part]] = {}
    for part in parts:
        classes.setdefault(_shape(part), []).append(part)
    return [replace(one, alike=tuple(part.host.name for part in more)) for one, *more in classes.values()]


def _shape(part: Part) -> Hashable:
    host = part.host
    local: dict[str, str] = {device.id: f"d{at}" for at, device in enumerate(host.devices)}
    local |= {nic.id: f"n{at}" for at, nic in enumerate(host.nics)}
    local |= {switch.id: f"s{at}" for at, switch in enumerate(part.switches)}
    links = sorted((local[link.a], local[link.b], link.kind, str(link.bytes_per_second)) for link in part.links)
    ends = ((local.get(link.a) or local.get(link.b, ""), link) for link in part.outward)
    outward = sorted((end, link.kind, str(link.bytes_per_second)) for end, link in ends)
    return (
        *(host.memory_bytes, host.cores, host.sockets, host.cpu_name, host.is_virtual),
        tuple(_device_shape(device) for device in host.devices),
        tuple(_nic_shape(nic) for nic in host.nics),
        tuple((switch.kind, switch.name, switch.numa) for switch in part.switches),
        *(tuple(links), tuple(outward)),
        tuple(sorted((local[pair.a], local[pair.b], pair.kind) for pair in part.pairs)),
    )


def _device_shape(device: Device) -> Hashable:
    pcie = device.pcie
    speed = None if pcie is None else (pcie.max_generation, pcie.max_width)
    return (device.kind, device.name, device.memory_bytes, device.numa, device.index, device.cores, speed, device.mig)


def _nic_shape(nic: Nic) -> Hashable:
    return (nic.name, nic.kind, nic.bytes_per_second, nic.numa)
