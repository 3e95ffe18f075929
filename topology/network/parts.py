"""The parts of some hosts before they are joined, and copies of them under other names and ids.

A cluster of one kind of host is one host copied: what the copies share is taken apart once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from topology.model import Device, Host, Link, Nic, Pair, Switch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.model import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a topology has. Not checked: the topology it ends in is."""

    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    pairs: tuple[Pair, ...] = ()
    warnings: tuple[str, ...] = ()


def parts_of(topology: Topology) -> Parts:
    """Take a topology apart."""
    return Parts(
        hosts=topology.hosts,
        switches=topology.switches,
        links=topology.links,
        pairs=topology.pairs,
        warnings=topology.warnings,
    )


_Values = dict[str, Any]


class Mould:
    """Makes copies of parts under other host names and ids."""

    def __init__(self, parts: Parts) -> None:
        """Take apart what all copies share: each part with its ids beside its other values."""
        self._warnings = parts.warnings
        self._hosts = [
            (
                host.name,
                _values(host, "name", "devices", "nics"),
                [(device, _values(device, "id", "host", "uuid", "parent")) for device in host.devices],
                [(nic.id, _values(nic, "id")) for nic in host.nics],
            )
            for host in parts.hosts
        ]
        self._switches = [(switch.id, switch.host, _values(switch, "id", "host")) for switch in parts.switches]
        self._links = [(link.a, link.b, _values(link, "a", "b")) for link in parts.links]
        self._pairs = [(pair.a, pair.b, pair.kind) for pair in parts.pairs]

    def copy(self, names: Mapping[str, str], ids: Mapping[str, str], uuids: Mapping[str, str]) -> Parts:
        """Copy with new host names, ids and UUIDs; what a mapping does not have keeps its own."""
        name_of, id_of, uuid_of = _Same(names), _Same(ids), _Same(uuids)
        hosts = []
        for name, own, devices, nics in self._hosts:
            new = name_of[name]
            copies = tuple(
                Device(
                    id=id_of[device.id],
                    host=new,
                    uuid=uuid_of[device.uuid],
                    parent=id_of[device.parent],
                    **values,
                )
                for device, values in devices
            )
            ports = tuple(Nic(id=id_of[nic], **values) for nic, values in nics)
            hosts.append(Host(name=new, devices=copies, nics=ports, **own))
        return Parts(
            hosts=tuple(hosts),
            switches=tuple(Switch(id=id_of[own], host=name_of[host], **rest) for own, host, rest in self._switches),
            links=tuple(Link(a=id_of[a], b=id_of[b], **values) for a, b, values in self._links),
            pairs=tuple(Pair(a=id_of[a], b=id_of[b], kind=kind) for a, b, kind in self._pairs),
            warnings=self._warnings,
        )


class _Same(dict[Any, Any]):
    # A key that is not there stands for itself: among them None, the host of a switch between hosts.
    def __missing__(self, key: Any) -> Any:  # noqa: ANN401 - a name or None
        return key


def _values(value: Device | Host | Link | Nic | Switch, *without: str) -> _Values:
    return {item.name: getattr(value, item.name) for item in fields(value) if item.name not in without}
