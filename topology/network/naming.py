"""Names and ids that are unique over many hosts; hosts of different names get the same ones in any order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from topology.network.parts import Mould, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from topology.model import Topology
    from topology.network.parts import Parts


_MAX_NAMED: Final = 4


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which node2 comes before node10."""
    words = re.findall(r"[0-9]+|[^0-9]+", text)
    return (*((0, int(word), "") if word.isdecimal() else (1, 0, word) for word in words), (2, 0, text))


def listed(names: Sequence[str]) -> str:
    """Write the first names, and how many more there are."""
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def told_apart(topologies: Sequence[Topology]) -> tuple[list[Parts], list[str]]:
    """Give every host a name and every part an id of its own; return them in the order of names, with warnings.

    A host name that is taken gets `-2`, and so do GPU UUIDs: two hosts with the same ones are copies of a snapshot.
    """
    namer = _Namer()
    ordered = sorted(topologies, key=lambda one: natural(one.hosts[0].name))
    parts = [namer.named(one) for one in ordered]
    return parts, namer.warnings()


class _Namer:
    def __init__(self) -> None:
        self._names = _Free()
        self._ids = _Free()
        self._owner: dict[str, str] = {}  # of each UUID: the host that had it first
        self._renamed: dict[str, list[str]] = {}  # of each host name: those called otherwise
        self._copies: dict[str, dict[str, None]] = {}  # of each host: those with its UUIDs

    def warnings(self) -> list[str]:
        return [
            *(
                f"{1 + len(others)} hosts are called {name}: here {listed([name, *others])}"
                for name, others in self._renamed.items()
            ),
            *(
                f"hosts {listed([first, *others])} tell the same GPU UUIDs: are they copies of one snapshot? "
                f"The ids of all but the first got a suffix"
                for first, others in self._copies.items()
            ),
        ]

    def named(self, one: Topology) -> Parts:
        names = {host.name: self._name(host.name) for host in one.hosts}
        ids: dict[str, str] = {}
        for own, host, is_uuid in _owned(one):
            name = names.get(host, host)
            new = self._id(own, host, name, is_uuid=is_uuid)
            if new != own:
                ids[own] = new
            if is_uuid and self._owner.setdefault(own, name) != name:
                self._copies.setdefault(self._owner[own], {})[name] = None
        if not ids and all(old == new for old, new in names.items()):
            return parts_of(one)
        return Mould(parts_of(one)).copy(names, ids, {})

    def _name(self, name: str) -> str:
        new = self._names.take(name)
        if new != name:
            self._renamed.setdefault(name, []).append(new)
        return new

    def _id(self, own: str, host: str, name: str, *, is_uuid: bool) -> str:
        if host and own.startswith(f"{host}/"):
            return self._ids.take(name + own[len(host) :])
        if own in self._ids and host and not is_uuid:
            return self._ids.take(f"{name}/{own}")  # a PCI address, which each host has for itself
        return self._ids.take(own)


class _Free:
    """Hands out names once: `-2`, `-3` and so on where one is taken."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}  # so that a thousand equal names are not tried a thousand times each

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def take(self, name: str) -> str:
        new = name
        while new in self._taken:
            count = self._next.get(name, 2)
            self._next[name] = count + 1
            new = f"{name}-{count}"
        self._taken.add(new)
        return new


def _owned(one: Topology) -> Iterator[tuple[str, str, bool]]:
    """Give every id with its host (empty: between hosts), and whether it is a UUID."""
    for host in one.hosts:
        for device in host.devices:
            yield device.id, host.name, device.id == device.uuid
        for nic in host.nics:
            yield nic.id, host.name, False
    for switch in one.switches:
        yield switch.id, switch.host or "", False
