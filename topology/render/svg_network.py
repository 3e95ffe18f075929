"""Switches between hosts: boxes in rows, with a line from each port of a host."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topology.model import Link, Switch, SwitchKind, Topology
from topology.render.svg_block import NIC_FILL, NIC_LINE, SMALL
from topology.render.svg_names import switch_name, switch_told
from topology.render.svg_shapes import Box, Font, group, rect, text
from topology.render.svg_style import NETWORK, SWITCHED, short_rate, told

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from topology.render.svg_marks import Marks

_MOST_IN_ROW: Final = 16
_MOST_ROWS: Final = 3
BOX_HEIGHT: Final = 30.0
FAN: Final = 74.0  # between ports and the first row of switches, and between rows
_LEAST_WIDTH: Final = 110.0
_GAP: Final = 16.0
_STUB: Final = 26.0
_FONT: Final = Font(size_px=11, bold=True)
_LABEL: Final = 40.0
_CORNER: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """Switches with the same neighbours, drawn as one box; `row` counts from the hosts on."""

    switches: tuple[Switch, ...]
    row: int

    @property
    def name(self) -> str:
        """What is written on it."""
        one = self.switches[0]
        return one.name or one.id if len(self.switches) == 1 else f"{len(self.switches)} x {switch_name(one)}"

    @property
    def is_nvswitch(self) -> bool:
        """Whether it joins GPUs of several hosts."""
        return self.switches[0].kind is SwitchKind.nvswitch


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What is drawn between hosts: hubs by row, links among them, and how many switches there are in all."""

    rows: tuple[tuple[Hub, ...], ...] = ()
    trunks: tuple[tuple[Hub, Hub, Link, int], ...] = ()
    num_switches: int = 0

    @property
    def num_drawn(self) -> int:
        """How many switches the hubs stand for."""
        return sum(len(hub.switches) for row in self.rows for hub in row)

    @property
    def height(self) -> float:
        """Height of the rows with what is between them."""
        return len(self.rows) * BOX_HEIGHT + max(len(self.rows) - 1, 0) * FAN

    @property
    def hub_of(self) -> dict[str, Hub]:
        """The box of each drawn switch."""
        return {switch.id: hub for row in self.rows for hub in row for switch in hub.switches}


def network_of(topology: Topology, host_of: Mapping[str, str], ports: Sequence[Link]) -> Network:
    """Find the switches between hosts that drawn ports reach, directly or over others; O(links)."""
    outside = {switch.id: switch for switch in topology.switches if switch.id not in host_of}
    links = [link for link in topology.links if link.a in outside or link.b in outside]
    near: dict[str, set[str]] = defaultdict(set)
    for link in links:
        near[link.a].add(link.b)
        near[link.b].add(link.a)
    row = list(dict.fromkeys(end for link in ports for end in (link.a, link.b) if end in outside))
    rows: list[tuple[Hub, ...]] = []
    seen = set(row)
    while row and len(rows) < _MOST_ROWS:
        alike: dict[frozenset[str], list[Switch]] = defaultdict(list)
        for name in row:
            alike[frozenset(near[name])].append(outside[name])
        hubs = [Hub(switches=tuple(group), row=len(rows)) for group in alike.values()]
        rows.append(tuple(hubs[:_MOST_IN_ROW]))
        drawn = [switch.id for hub in rows[-1] for switch in hub.switches]
        # Only upwards: not down again to the switches of other hosts.
        above = {end for name in drawn for end in near[name] if end in outside and end not in seen}
        row = [name for name in outside if name in above and near[name] <= outside.keys()]
        seen |= set(row)
    network = Network(rows=tuple(rows), num_switches=len(outside))
    return Network(rows=network.rows, trunks=_trunks(network, links), num_switches=len(outside))


def _trunks(network: Network, links: Sequence[Link]) -> tuple[tuple[Hub, Hub, Link, int], ...]:
    hub_of = network.hub_of
    found: dict[tuple[int, int], tuple[Hub, Hub, Link, int]] = {}
    for link in links:
        a, b = hub_of.get(link.a), hub_of.get(link.b)
        if a is not None and b is not None and a is not b:
            low, high = sorted((a, b), key=lambda hub: hub.row)
            count = found[id(low), id(high)][3] if (id(low), id(high)) in found else 0
            found[id(low), id(high)] = (low, high, link, count + 1)
    return tuple(found.values())


def hub_boxes(network: Network, num_wires: Mapping[str, int], left: float, top: float, width: float) -> dict[str, Box]:
    """Place the hubs over the width, wider where more wires end; by the id of each switch."""
    boxes: dict[str, Box] = {}
    for at, row in enumerate(network.rows):
        weights = [max(num_wires.get(hub.switches[0].id, 0), 1) for hub in row]
        free = width + _GAP - len(row) * (_LEAST_WIDTH + _GAP)
        # Shares of the whole width, as ports have them, unless that would leave some hub too little to read.
        is_fair = min(weights) * (width + _GAP) / sum(weights) >= _LEAST_WIDTH + _GAP
        x, y = left, top + at * (BOX_HEIGHT + FAN)
        for hub, weight in zip(row, weights, strict=True):
            share = weight / sum(weights)
            pitch = share * (width + _GAP) if is_fair else _LEAST_WIDTH + _GAP + share * free
            box = Box(x=x, y=y, width=pitch - _GAP, height=BOX_HEIGHT)
            boxes |= {switch.id: box for switch in hub.switches}
            x += pitch
    return boxes


def network_width(network: Network) -> float:
    """The least width in which the hubs can be read."""
    return max((len(row) * (_LEAST_WIDTH + _GAP) - _GAP for row in network.rows), default=0.0)


def hubs(network: Network, boxes: Mapping[str, Box], marks: Marks) -> list[str]:
    """Draw the switches and the links among them."""
    parts = []
    for low, high, link, count in network.trunks:
        a, b = boxes[low.switches[0].id], boxes[high.switches[0].id]
        hint = told(link, f"{low.name} - {high.name}") + (f"\n{count} such links" if count > 1 else "")
        # Straight where one lies over the other, and to the sides of boxes in one row.
        x = a.middle if b.x < a.middle < b.right else b.middle
        ends = [(a.middle, a.bottom), (x, b.y)] if a.y != b.y else [(a.right, a.y + 15), (b.x, b.y + 15)]
        start = low.switches[0].id
        parts.append(group(hint, [marks.line(link, ends, marks.stroke(link), start=start, inset_px=12)]))
    for hub in (hub for row in network.rows for hub in row):
        box = boxes[hub.switches[0].id]
        fill, line = ("#e3f1cf", SWITCHED) if hub.is_nvswitch else ("#d5f0ec", NETWORK)
        hint = "\n".join(switch_told(switch) for switch in hub.switches[:16])
        words = text(box.middle, box.y + 19, hub.name, box.width - 16, _FONT, "middle")
        parts.append(group(hint, [rect(box, fill, line, outline_px=1.6), words]))
    return parts


def port_mark(name: str, x: float, edge: float, inward: int, pitch: float) -> str:
    """Draw a port at the edge of a host, with its name inside."""
    box = Box(x=x - 6, y=edge - 6, width=12, height=12)
    label = text(x, edge + inward * 12 + (8 if inward > 0 else 0), name, pitch - 4, SMALL, "middle")
    return group(f"port of {name}", [rect(box, NIC_FILL, NIC_LINE, radius_px=2), label])


def landings(xs: Sequence[float], box: Box) -> list[float]:
    """Where the wires from ports at these x end on a hub: straight below if all can, else evenly over its width."""
    if all(box.x + _CORNER <= x <= box.right - _CORNER for x in xs):
        return list(xs)
    return [box.x + box.width * (at + 0.5) / len(xs) for at in range(len(xs))]


def wire(
    link: Link,
    ends: str,
    port: tuple[float, float],
    box: Box,
    end_x: float,
    marks: Marks,
) -> str:
    """Draw the line from a port to a switch, which it meets at `end_x`."""
    x, y = port
    down = box.y > y
    last = box.y if down else box.bottom
    # Hosts side by side differ in height: lines turn only beyond the taller one.
    turn = last - (FAN - _STUB if down else _STUB - FAN)
    points = [(x, y + (6 if down else -6)), (x, turn), (end_x, last)]
    return group(told(link, ends), [marks.line(link, points, marks.stroke(link, switched=True), 4, inset_px=17)])


def port_label(links: Sequence[Link], port: tuple[float, float], marks: Marks, *, is_up: bool) -> str:
    """Write the rate of a port beside its line, or lines where they are all of one rate."""
    rates = {short_rate(link) for link in links}
    if len(rates) > 1:
        return ""
    words = rates.pop() if len(links) == 1 else f"{len(links)} x {rates.pop()}"
    half = max(marks.stroke(link).width_px for link in links) / 2
    return text(port[0] + half + 3, port[1] + (-12 if is_up else 19), words, _LABEL, SMALL)
