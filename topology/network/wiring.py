"""Switches and links between the ports of hosts, as a description says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topology.model import Link, Switch, SwitchKind
from topology.network.spec import NetworkKind
from topology.units import GB, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.model import Nic
    from topology.network.ports import Ports
    from topology.network.spec import NetworkSpec

NET: Final = "NET"
_SLOWEST: Final = 10 * GB / 8  # what a server has at least: 10 Gb/s Ethernet
_PREFIX: Final = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """What lies between hosts; warnings as (host, text)."""

    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    warnings: tuple[tuple[str, str], ...]


def wired(hosts: Sequence[Ports], network: NetworkSpec, taken: frozenset[str]) -> Wires:
    """Link every port to its leaf, and leaves to a spine if there are several.

    One spine node stands for all spine switches: their links to a leaf carry what its uplinks carry together.
    """
    prefix = _PREFIX
    while any(name == prefix or name.startswith(f"{prefix}/") for name in taken):
        prefix += "-"
    down: dict[str, list[Link]] = {}
    warnings: list[tuple[str, str]] = []
    for at, host in enumerate(hosts):
        if not host.nics:
            warnings.append((host.host, "no network port known: nothing joins it to other hosts"))
        for number, nic in enumerate(host.nics):
            leaf = _leaf(prefix, at, number, network)
            link = _down_link(nic, leaf, network, host.nics)
            if link.bytes_per_second is None:
                rate = format_rate(link.capacity_bytes_per_second or 0)
                warnings.append((host.host, f"rate of port {nic.name} unknown (down?): {rate} assumed"))
            down.setdefault(leaf, []).append(link)
    leaves = tuple(Switch(id=leaf, kind=SwitchKind.network) for leaf in down)
    links = tuple(link for group in down.values() for link in group)
    if len(down) < 2:  # noqa: PLR2004 - one leaf needs no spine
        return Wires(switches=leaves, links=links, warnings=tuple(warnings))
    spine = Switch(id=f"{prefix}/spine", kind=SwitchKind.network)
    up = tuple(_uplink(leaf, spine.id, group, network) for leaf, group in down.items())
    return Wires(switches=(*leaves, spine), links=(*links, *up), warnings=tuple(warnings))


def _leaf(prefix: str, host: int, port: int, network: NetworkSpec) -> str:
    if network.kind is NetworkKind.flat:
        return prefix
    group = "" if network.hosts_per_leaf is None else str(host // network.hosts_per_leaf)
    if network.kind is NetworkKind.leaf_spine:
        return f"{prefix}/leaf{group or 0}"
    rail = port if network.rails is None else port % network.rails
    return f"{prefix}/rail{rail}" + (f".{group}" if group else "")


def _down_link(nic: Nic, leaf: str, network: NetworkSpec, nics: Sequence[Nic]) -> Link:
    port, own = network.bytes_per_second, nic.bytes_per_second
    if own is not None:
        rate = own if port is None else min(own, port)
        source = "the NIC's rate" if rate == own else "network description: the switch port's rate"
        return Link(a=nic.id, b=leaf, kind=NET, bytes_per_second=rate, source=source)
    known = [other.bytes_per_second for other in nics if other.bytes_per_second is not None]
    assumed, why = (min(known), "that of the host's other ports") if known else (_SLOWEST, "10 Gb/s Ethernet")
    if port is not None and (not known or port < assumed):
        assumed, why = port, "the switch port's rate"
    return Link(a=nic.id, b=leaf, kind=NET, assumed_bytes_per_second=assumed, source=f"unknown; assumed: {why}")


def _uplink(leaf: str, spine: str, down: Sequence[Link], network: NetworkSpec) -> Link:
    total = sum(link.capacity_bytes_per_second or 0 for link in down)
    rate = total / network.oversubscription
    source = f"network description: {len(down)} downlinks, oversubscribed {network.oversubscription:g}:1"
    if any(link.bytes_per_second is None for link in down):
        return Link(a=leaf, b=spine, kind=NET, assumed_bytes_per_second=rate, source=f"{source}, some rates assumed")
    return Link(a=leaf, b=spine, kind=NET, bytes_per_second=rate, source=source)
