"""The wires of a machine, sorted by host once, so that those of a few hosts are found at once.

A cluster of like hosts is reckoned by two of them: a ring passes each host's ports once, however many hosts there are,
and the uplinks of a switch, too, where the ranks below it follow each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from orchestrator.calibration_file import Calibration
from orchestrator.planner.routes import Routes, routes_of
from topology.collectives import Collective
from topology.errors import TopologyError
from topology.graph import graph_of
from topology.grouping import connected
from topology.model import Device, Host, Link, Switch, SwitchKind, Topology
from topology.routing.few_groups import BestGroup, best_group, gather_rate, worst_gather_rate

_OF_A_KIND: Final = 2  # hosts that stand for all of their kind
_MOST_KINDS: Final = 4
_ROUNDS: Final = 2  # of switches above the leaves: spines, and cores
_LINKS: Final = "links"
_AS_GOOD: Final = 0.999


def measured_links(calibration: Calibration | None) -> dict[frozenset[str], float]:
    """Bytes per second of links that a bench measured, by the ids of both ends, as `graph_of` takes them.

    They stand in the section `links` of a calibration, each under the name `END|END` with the unit `bytes/s`.
    """
    section = calibration.section(_LINKS) if calibration else None
    found: dict[frozenset[str], float] = {}
    for item in section.measured if section else ():
        ends = frozenset(item.name.split("|"))
        if len(ends) == 2 and item.unit == "bytes/s":  # noqa: PLR2004 - two ends
            found[ends] = item.value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """The best group of so many devices of a host, by the bounds of their all-gather (full wires).

    Attributes:
        part: the host with its wires.
        best: ids of the best group's devices.
        best_bytes_per_second: its bus rate.
    """

    part: Topology
    best: frozenset[str]
    best_bytes_per_second: float

    @property
    def worst_bytes_per_second(self) -> float:
        """Bus rate of the worst group of as many devices, for which all groups are looked at."""
        worst = worst_gather_rate(self.part, len(self.best))
        if worst is not None:
            return worst
        from topology.routing.groups import rank_groups

        return rank_groups(self.part, len(self.best)).groups[-1].all_gather_bytes_per_second

    def is_as_good(self, ids: Iterable[str]) -> bool:
        """Whether other devices gather as fast as the best ones."""
        graph = graph_of(self.part, sorted(ids))
        rate = gather_rate(graph)
        if rate is None:
            from topology.routing.bound import bound

            rate = bound(graph, Collective.all_gather).bus_bytes_per_second
        return rate >= self.best_bytes_per_second * _AS_GOOD


@dataclass(frozen=True, kw_only=True)
class Wires:
    """A machine's hosts with the links of each, and what lies between hosts.

    Attributes:
        hosts, links, switches: by host name; a link to a network switch belongs to its host.
        between: links between switches of no host.
        shared: switches of no host, by id.
        measured: bytes per second of links that a bench measured, by both ends.
    """

    hosts: Mapping[str, Host]
    links: Mapping[str, Sequence[Link]]
    switches: Mapping[str, Sequence[Switch]]
    between: Sequence[Link]
    shared: Mapping[str, Switch]
    measured: Mapping[frozenset[str], float] = field(default_factory=dict)

    def part(self, names: Sequence[str]) -> Topology:
        """Some hosts with their wires, and of the switches between hosts those that join them."""
        own = [link for name in names for link in self.links[name]]
        near = {end for link in own for end in (link.a, link.b) if end in self.shared}
        kept = self._joining(near) if len(names) > 1 else near
        between = self.between if len(names) > 1 else ()
        inside = [switch for name in names for switch in self.switches[name]]
        ids = {switch.id for switch in inside} | kept
        for name in names:
            host = self.hosts[name]
            ids |= {device.id for device in host.devices} | {nic.id for nic in host.nics}
        return Topology(
            hosts=tuple(self.hosts[name] for name in names),
            switches=(*inside, *(self.shared[name] for name in self.shared if name in kept)),
            links=tuple(link for link in (*own, *between) if link.a in ids and link.b in ids),
        )

    def _joining(self, near: set[str]) -> set[str]:
        """The switches next to some hosts, with those above them until all of them are joined."""
        kept = set(near)
        for _ in range(_ROUNDS):
            joined = [(link.a, link.b) for link in self.between if link.a in kept and link.b in kept]
            networks = [name for name in kept if self.shared[name].kind is SwitchKind.network]
            if len(connected(networks, [x for x in joined if x[0] in networks and x[1] in networks])) <= 1:
                break
            kept |= {end for link in self.between for end in (link.a, link.b) if {link.a, link.b} & kept}
        return kept

    def routes(self, gpus: Sequence[Sequence[Device]], *, one_fabric: bool = False) -> Routes | None:
        """What collectives of these devices of each host reach; None where wires or their rates are not known."""
        size = sum(map(len, gpus))
        some = _standing_for_all(gpus, self.hosts)
        ids = [device.id for devices in some for device in devices]
        if len(ids) < 2:  # noqa: PLR2004 - one device sends nothing
            return None
        names = list(dict.fromkeys(devices[0].host for devices in some))
        try:
            graph = graph_of(self.part(names), ids, measured=self.measured)
        except TopologyError:
            return None  # no network between the hosts was described, or no link of a host was read
        return routes_of(graph, size, 1 if one_fabric else len(gpus))

    def ranked(self, host: str, count: int) -> Ranked | None:
        """The groups of `count` devices of a host by what they gather at; None where wires are not known."""
        return _ranked(self.part((host,)), count)


def wires_of(topology: Topology, measured: Mapping[frozenset[str], float] | None = None) -> Wires:
    """Sort the links and switches of a machine by host; O(parts of the machine)."""
    home: dict[str, str] = {}
    for host in topology.hosts:
        home |= {device.id: host.name for device in host.devices}
        home |= {nic.id: host.name for nic in host.nics}
    switches: dict[str, list[Switch]] = {host.name: [] for host in topology.hosts}
    shared: dict[str, Switch] = {}
    for switch in topology.switches:
        if switch.host is None:
            shared[switch.id] = switch
        else:
            home[switch.id] = switch.host
            switches[switch.host].append(switch)
    links: dict[str, list[Link]] = {host.name: [] for host in topology.hosts}
    between: list[Link] = []
    for link in topology.links:
        a, b = home.get(link.a), home.get(link.b)
        name = a or b
        if name is None or (a and b and a != b):
            between.append(link)
        else:
            links[name].append(link)
    return Wires(
        hosts={host.name: host for host in topology.hosts},
        links=links,
        switches=switches,
        between=between,
        shared=shared,
        measured=measured or {},
    )


def _standing_for_all(gpus: Sequence[Sequence[Device]], hosts: Mapping[str, Host]) -> list[Sequence[Device]]:
    """The first and the last host of each kind; of many kinds those with the slowest ports."""
    if len(gpus) <= _OF_A_KIND:
        return list(gpus)
    kinds: dict[tuple[int, str, tuple[float, ...]], list[Sequence[Device]]] = {}
    for devices in gpus:
        ports = tuple(nic.bytes_per_second or 0.0 for nic in hosts[devices[0].host].nics)
        kinds.setdefault((len(devices), devices[0].name, ports), []).append(devices)
    if len(kinds) == 1:
        (every,) = kinds.values()
        return [every[0], every[-1]]
    slowest = sorted(kinds, key=lambda kind: sum(kind[2]))
    return [kinds[kind][0] for kind in slowest[:_MOST_KINDS]]


@lru_cache(maxsize=64)
def _ranked(part: Topology, count: int) -> Ranked | None:
    try:
        best = best_group(part, count)
        if best is None:
            # Loads scipy, and is asked only where cuts and paths do not tell.
            from topology.routing.groups import rank_groups

            first = rank_groups(part, count).groups[0]
            best = BestGroup(devices=first.devices, all_gather_bytes_per_second=first.all_gather_bytes_per_second)
    except TopologyError:
        return None
    return Ranked(part=part, best=frozenset(best.devices), best_bytes_per_second=best.all_gather_bytes_per_second)
