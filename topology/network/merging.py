"""Snapshots of hosts and a network description -> one topology."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topology.errors import TopologyError
from topology.model import SwitchKind, Topology
from topology.network.naming import listed, natural, told_apart
from topology.network.nvlink import fabric_joined
from topology.network.parts import Parts
from topology.network.ports import ports_of
from topology.network.spec import NetworkSpec
from topology.network.wiring import wired

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from topology.network.ports import Ports


def merge(topologies: Sequence[Topology], network: NetworkSpec | None = None) -> Topology:
    """Join snapshots into one topology, hosts in the natural order of their names.

    Args:
        topologies: of one or more hosts each, in any order.
        network: how the hosts are joined; without it one switch that slows nobody, and a warning says so.

    Raises:
        TopologyError: there is nothing to join.

    """
    if not topologies:
        raise TopologyError(asked="hosts joined into one topology", found="no host", remedy="give one or more")
    if sum(len(one.hosts) for one in topologies) == 1:
        return topologies[0]
    named, notes = told_apart(topologies)
    sources = dict.fromkeys(one.source for one in topologies)
    source = next(iter(sources)) if len(sources) == 1 else f"{len(topologies)} descriptions"
    if network is None:
        told = _with_own_network(named, topologies, source)
        if told is not None:
            return told
        notes.append(
            "no description of the network: one switch that slows nobody is taken to join the hosts; "
            "`network=...` or network.json tells otherwise"
        )
    return joined(named, network or NetworkSpec(), source=source, notes=notes)


def repeated(one: Topology, count: int, network: NetworkSpec | None = None) -> Topology:
    """Take a topology `count` times, each host of a name of its own.

    Args:
        one: of one or more hosts.
        count: at least 1.
        network: how the hosts are joined; without it by one switch that slows nobody.
    """
    if count == 1:
        return one
    named, _ = told_apart([one] * count)
    return joined(named, network or NetworkSpec(), source=f"{one.source}, {count} times")


def joined(
    named: Sequence[Parts],
    network: NetworkSpec,
    *,
    source: str,
    notes: Iterable[str] = (),
    chosen: Mapping[str, Ports] | None = None,
) -> Topology:
    """Join hosts whose names and ids are unique already; `chosen` are the ports of each host, where known before."""
    parts, had_network = _without_network(_flat(named))
    parts = fabric_joined(parts)
    ports = ports_of(parts) if chosen is None else [chosen[host.name] for host in parts.hosts]
    taken = frozenset(switch.id for switch in parts.switches) | {host.name for host in parts.hosts}
    wires = wired(ports, network, taken)
    choices = [(port.host, port.reason) for port in ports if port.reason is not None]
    warnings = [*notes, *parts.warnings, *grouped([*choices, *wires.warnings])]
    if had_network:
        warnings.append("the network switches of the given topologies are replaced by the one described")
    return Topology(
        hosts=parts.hosts,
        switches=(*parts.switches, *wires.switches),
        links=(*parts.links, *wires.links),
        pairs=parts.pairs,
        warnings=tuple(warnings),
        source=source,
    )


def _with_own_network(named: Sequence[Parts], topologies: Sequence[Topology], source: str) -> Topology | None:
    # One topology of many hosts that tells its own network: nothing is to be added.
    (parts, *more) = named
    if more or not any(switch.kind is SwitchKind.network for switch in parts.switches):
        return None
    return Topology(
        hosts=parts.hosts,
        switches=parts.switches,
        links=parts.links,
        pairs=parts.pairs,
        warnings=topologies[0].warnings,
        source=source,
    )


def _flat(named: Sequence[Parts]) -> Parts:
    hosts = [host for parts in named for host in parts.hosts]
    told = [(parts.hosts[0].name, text) for parts in named if len(parts.hosts) == 1 for text in parts.warnings]
    plain = [text for parts in named if len(parts.hosts) > 1 for text in parts.warnings]
    return Parts(
        hosts=tuple(sorted(hosts, key=lambda host: natural(host.name))),
        switches=tuple(switch for parts in named for switch in parts.switches),
        links=tuple(link for parts in named for link in parts.links),
        pairs=tuple(pair for parts in named for pair in parts.pairs),
        warnings=(*plain, *grouped(told)),
    )


def _without_network(parts: Parts) -> tuple[Parts, bool]:
    old = {switch.id for switch in parts.switches if switch.kind is SwitchKind.network}
    if not old:
        return parts, False
    kept = Parts(
        hosts=parts.hosts,
        switches=tuple(switch for switch in parts.switches if switch.id not in old),
        links=tuple(link for link in parts.links if link.a not in old and link.b not in old),
        pairs=parts.pairs,
        warnings=parts.warnings,
    )
    return kept, True


def grouped(told: Iterable[tuple[str, str]]) -> list[str]:
    """Turn (host, text) into lines, one a text: a thousand hosts may have the same to say."""
    hosts: dict[str, dict[str, None]] = {}
    for host, text in told:
        hosts.setdefault(text, {})[host] = None
    return [f"{listed(list(names))}: {text}" for text, names in hosts.items()]
