"""GPUs of several hosts in one NVLink fabric (GB200 NVL72): one switch between the hosts joins them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from topology.link_rates import nvlink_rate
from topology.model import Link, Switch, SwitchKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from topology.model import Device
    from topology.network.parts import Parts

_COUNT: Final = re.compile(r"NV([1-9]\d*)")


def fabric_joined(parts: Parts) -> Parts:
    """Move the NVLinks of every fabric that spans hosts to one switch without a host.

    A host of such a fabric shows only its own GPUs, as if behind an NVSwitch of its own.
    """
    wide = _wide(device for host in parts.hosts for device in host.devices)
    if not wide:
        return parts
    nvswitches = {switch.id: switch.host for switch in parts.switches if switch.kind is SwitchKind.nvswitch}
    own, others = _split(parts.links, {device.id for group in wide.values() for device in group}, nvswitches)
    if any(nvswitches[_other(link, device)] is None for device, link in own.items()):
        return parts  # joined before
    used = {end for link in others for end in (link.a, link.b)}
    old = {_other(link, device) for device, link in own.items()} - used
    taken = {switch.id for switch in parts.switches}
    counts = _pair_counts(parts)
    switches, links, warnings = [], [], []
    for fabric, members in wide.items():
        name = f"nvlink/{fabric}"
        while name in taken:
            name += "-"
        switches.append(Switch(id=name, kind=SwitchKind.nvswitch, name="NVLink fabric"))
        made, told = _links(members, name, own, counts)
        links += made
        warnings += told
    return replace(
        parts,
        switches=(*(switch for switch in parts.switches if switch.id not in old), *switches),
        links=(*others, *links),
        warnings=(*parts.warnings, *warnings),
    )


def _split(
    links: Sequence[Link], members: set[str], nvswitches: Mapping[str, str | None]
) -> tuple[dict[str, Link], list[Link]]:
    """Separate the links between members and NVSwitches, by member, from all others."""
    own: dict[str, Link] = {}
    others = []
    for link in links:
        if link.a in members and link.b in nvswitches:
            own[link.a] = link
        elif link.b in members and link.a in nvswitches:
            own[link.b] = link
        else:
            others.append(link)
    return own, others


def _wide(devices: Iterable[Device]) -> dict[str, list[Device]]:
    groups: dict[str, list[Device]] = {}
    for device in devices:
        if device.fabric is not None:
            groups.setdefault(device.fabric, []).append(device)
    return {name: group for name, group in groups.items() if len({device.host for device in group}) > 1}


def _other(link: Link, end: str) -> str:
    return link.b if link.a == end else link.a


def _pair_counts(parts: Parts) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pair in parts.pairs:
        match = _COUNT.fullmatch(pair.kind)
        if match is not None:
            for end in (pair.a, pair.b):
                counts[end] = max(counts.get(end, 0), int(match[1]))
    return counts


def _links(
    members: Sequence[Device],
    switch: str,
    own: Mapping[str, Link],
    counts: Mapping[str, int],
) -> tuple[list[Link], list[str]]:
    made, untold = [], []
    usual = max((counts.get(device.id, 0) for device in members), default=0)
    for device in members:
        if device.id in own:
            made.append(replace(own[device.id], a=device.id, b=switch))
            continue
        count = counts.get(device.id) or usual
        rate = nvlink_rate(compute_capability=device.compute_capability, name=device.name)
        if not count:
            untold.append(device.id)
            continue
        known = None if rate is None else count * rate.bytes_per_second
        source = "unknown" if rate is None else f"table: {rate.source}"
        made.append(Link(a=device.id, b=switch, kind=f"NV{count}", bytes_per_second=known, source=source))
    text = f"{len(untold)} GPUs of the NVLink fabric {members[0].fabric} tell no NVLink count: not joined to it"
    return made, [text] if untold else []
