"""The PCIe tree of a topology file: switches, host bridges, links and their rates, and the labels of pairs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topology.checks import normal_pci
from topology.link_rates import assumed_pcie_rate, pcie_rate
from topology.model import Link, Pcie, Switch, SwitchKind
from topology.pcie_tree import INSIDE, PCIE, PORT, VIRTUAL, socket_link, told_link
from topology.probe.nccl_places import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from topology.probe.nccl_places import Place, Places
    from topology.probe.nccl_tree import Element

_IN_CHIP: Final = "inside one chip: not counted as a limit"
_NO_PCI: Final = "not a PCI function: not counted as a limit"
_WIDTHS: Final = frozenset({1, 2, 4, 8, 12, 16, 32})
# 2.5 GT/s is no generation here on purpose: no GPU or network adapter of a training machine has it, while bridges of
# virtual machines and idle links report it.
_GEN1: Final = 2.5
_GENERATIONS: Final[Mapping[float, int]] = {5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?GT/s")
_LINKED: Final = (Role.gpu, Role.nic, Role.switch)
_PIX, _PXB, _PHB, _NODE, _SYS = 10, 20, 30, 40, 50  # NVML's levels


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieParts:
    """What the tree of one host adds to a Topology. `is_virtual` is True or unknown: no file shows the contrary."""

    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    warnings: tuple[str, ...]
    is_virtual: bool | None


def pcie_of(element: Element) -> Pcie | None:
    """Return the link above a function: the smaller of what it and its port can do. None where that is no fact."""
    gigatransfers = _gigatransfers(element)
    width = int(element.get("link_width") or 0)
    if gigatransfers == _GEN1:
        return None
    generation = _GENERATIONS.get(gigatransfers or 0)
    lanes = width if width in _WIDTHS else None
    return None if generation is None and lanes is None else Pcie(max_generation=generation, max_width=lanes)


def level(a: Place, b: Place) -> int:
    """Return NVML's level of two functions of one host.

    Functions of one host bridge, told by the file or by a common bus, are PHB; for other roots of one NUMA node the
    longer way (NODE) holds.
    """
    if a.cpu != b.cpu:
        return _SYS
    shared = sum(1 for x, y in zip(a.path, b.path, strict=False) if x == y)
    if shared:
        return _PIX if len(a.path) == len(b.path) == shared else _PXB
    return _PHB if a.bridge is not None and a.bridge == b.bridge else _NODE


def pcie_parts(places: Places) -> PcieParts:
    """Build the switches and links of one host; a link's `a` is its lower end."""
    names = [cpu.name for cpu in places.cpus if cpu.name is not None]
    name = names[0] if names else None
    bridges = _bridges(places)
    switches = [Switch(id=cpu.id, kind=SwitchKind.socket, host=cpu.host, numa=cpu.numa) for cpu in places.cpus]
    inside, seen = [], set()
    for place in places.all:
        bridge = bridges.get(place.id)
        if bridge is not None and bridge not in seen:
            seen.add(bridge)
            switches.append(Switch(id=bridge, kind=SwitchKind.bridge, host=place.cpu.host, numa=place.cpu.numa))
            inside.append(Link(a=bridge, b=place.cpu.id, kind=INSIDE, source=_IN_CHIP))
    shared = frozenset(places.shared_functions)
    switches += [
        Switch(id=place.id, kind=SwitchKind.pcie, host=place.cpu.host, numa=place.cpu.numa)
        for place in places.all
        if place.role is Role.switch or place.id in shared
    ]
    loose = [port for port in places.ports if port.place is None and port.is_near]
    peers, lost = _peers(places)
    return PcieParts(
        switches=tuple(switches),
        links=(
            *_links(places, bridges, shared),
            *inside,
            *(Link(a=port.id, b=port.cpu.id, kind=VIRTUAL, source=_NO_PCI) for port in loose),
            *(socket_link(a.id, b.id, name) for a, b in combinations(places.cpus, 2)),
            *peers,
        ),
        warnings=(*_unknown_rates(places), *lost),
        is_virtual=_is_virtual(places),
    )


def _gigatransfers(element: Element) -> float | None:
    # "8 GT/s" of kernels up to 5.6, "16.0 GT/s PCIe" of later ones, "" or "Unknown" where there is no reading.
    found = _SPEED.match(element.get("link_speed") or "")
    return float(found[1]) if found else None


def _bridges(places: Places) -> dict[str, str]:
    # The ids of the host bridges above functions right below a CPU. One that only the bus tells, and of one function,
    # would tell nothing. Under a second CPU, which an edited file may have, it is another.
    tops = [(place, (place.cpu.id, place.bridge)) for place in places.of(*_LINKED) if not place.path]
    counts = Counter(key for _, key in tops)
    ids: dict[tuple[str, str | None], str] = {}
    taken: dict[str, int] = {}
    found = {}
    for place, key in tops:
        if key[1] is None or (counts[key] == 1 and "trainmaster_bridge" not in place.element.attributes):
            continue
        if key not in ids:
            turn = taken[key[1]] = taken.get(key[1], -1) + 1
            ids[key] = f"{place.cpu.host}/{key[1]}" + (f".{turn}" if turn else "")
        found[place.id] = ids[key]
    return found


def _links(places: Places, bridges: Mapping[str, str], shared: frozenset[str]) -> Iterator[Link]:
    ports: dict[str, list[str]] = {}
    for port in places.ports:
        if port.place is not None:
            ports.setdefault(port.place.id, []).append(port.id)
    for place in places.of(*_LINKED):
        ends = ports.get(place.id, []) if place.role is Role.nic else [place.id]
        if place.id in shared:
            yield from (Link(a=end, b=place.id, kind=PORT, source=_IN_CHIP) for end in ends)
            ends = [place.id]
        pcie = pcie_of(place.element)
        rate = None if pcie is None else pcie_rate(pcie.max_generation, pcie.max_width)
        above = bridges.get(place.id, place.parent)
        yield from (told_link(end, above, PCIE, rate, assumed_pcie_rate()) for end in ends)


def _unknown_rates(places: Places) -> list[str]:
    linked = places.of(*_LINKED)
    slow = [place.address for place in linked if _gigatransfers(place.element) == _GEN1]
    told = [(place.address, pcie_of(place.element)) for place in linked]
    unknown = [
        address
        for address, pcie in told
        if address not in set(slow) and (pcie is None or pcie_rate(pcie.max_generation, pcie.max_width) is None)
    ]
    warnings = []
    if slow:
        text = "PCIe link(s) report 2.5 GT/s, as virtual machines and idle links do; their capacity is unknown"
        warnings.append(f"{len(slow)} {text}: {', '.join(slow[:16])}")
    if unknown:
        warnings.append(f"the capacity of {len(unknown)} PCIe link(s) is unknown: {', '.join(unknown[:16])}")
    return warnings


def _is_virtual(places: Places) -> bool | None:
    # The bridges a virtual machine makes up have the speed of the first PCIe; real ones in front of GPUs do not.
    speeds = {_gigatransfers(place.element) for place in places.of(Role.switch)}
    return True if speeds == {_GEN1} else None


def _peers(places: Places) -> tuple[list[Link], list[str]]:
    # `pcilink`: two PCI switches of one physical chip, joined beside the tree.
    switches = {place.address: place for place in places.of(Role.switch)}
    links: dict[frozenset[str], Link] = {}
    lost = []
    for place in switches.values():
        for link in place.element.inside("pcilink"):
            other = switches.get(normal_pci(link.attributes["target"]) or "")
            if other is None or other is place:
                lost.append(f"{place.address} to {link.attributes['target']}")
                continue
            ends = frozenset((place.id, other.id))
            links.setdefault(ends, Link(a=place.id, b=other.id, kind="PCIe peer", source=_IN_CHIP))
    return list(links.values()), [f"pcilink without its other switch: {', '.join(lost[:16])}"] if lost else []
