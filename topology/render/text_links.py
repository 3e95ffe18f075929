"""Links with their capacity and where it comes from, those that are alike in one row."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from topology.pcie_tree import INSIDE
from topology.render.tables import UNKNOWN, table, wrapped
from topology.units import format_rate

if TYPE_CHECKING:
    from topology.model import Link, Topology


def link_block(one: Topology) -> str:
    """Tell the links of one host."""
    what = _kinds_of(one)
    return _links([link for link in one.links if link.kind != INSIDE], what)


def network_block(topology: Topology) -> str:
    """Tell the links between hosts."""
    what = _kinds_of(topology)
    shared = {switch.id for switch in topology.switches if switch.host is None}
    return _links([link for link in topology.links if link.a in shared or link.b in shared], what, "network")


def _kinds_of(topology: Topology) -> dict[str, str]:
    names = {"nvswitch": "NVSwitch", "pcie": "PCIe switch", "bridge": "CPU", "socket": "CPU", "network": "switch"}
    what = {switch.id: names[switch.kind.value] for switch in topology.switches}
    what |= {device.id: device.kind.value.upper() for device in topology.devices}
    return what | {nic.id: "NIC" for nic in topology.nics}


def _links(links: list[Link], what: dict[str, str], title: str = "links") -> str:
    if not links:
        return ""
    counted: Counter[tuple[str, str, str, str]] = Counter()
    for link in links:
        ends = " - ".join((what[link.a], what[link.b]))
        counted[link.kind, ends, _rate(link), link.source] += 1
    notes = list(dict.fromkeys(source for *_, source in counted))
    rows = [
        [f"  {number} x", kind, ends, rate, f"[{notes.index(source) + 1}]"]
        for (kind, ends, rate, source), number in counted.items()
    ]
    legend = [line for at, note in enumerate(notes) for line in wrapped(note, f"[{at + 1}]")]
    return "\n".join([f"{title} (per direction)", table(rows), *legend])


def _rate(link: Link) -> str:
    if link.bytes_per_second is not None:
        return format_rate(link.bytes_per_second)
    if link.assumed_bytes_per_second is not None:
        return f"? ({format_rate(link.assumed_bytes_per_second)} assumed)"
    return UNKNOWN
