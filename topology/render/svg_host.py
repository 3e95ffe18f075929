"""One host drawn: its title, NUMA nodes in one or two rows, NVLinks between them, sockets joined, ports at its edge."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topology.render import svg_place as place
from topology.render.svg_band import Anchor, Band, band_of
from topology.render.svg_block import Frame, block
from topology.render.svg_fabric import Fabric, fabric_of
from topology.render.svg_links import BandFrame, band
from topology.render.svg_names import Names, host_lines
from topology.render.svg_network import port_mark
from topology.render.svg_shapes import FAINT, Box, Font, group, rect, text
from topology.render.svg_sockets import bus_height, sockets, sockets_of
from topology.render.svg_text import listed, width_px
from topology.render.svg_tree import MOST_GPUS, MOST_NICS, MOST_SLOTS, blocks_of, leaves_of

if TYPE_CHECKING:
    from topology.model import Link
    from topology.render.svg_parts import Part
    from topology.render.svg_place import PlacedBlock, Sizes
    from topology.render.svg_sockets import Joined
    from topology.render.svg_tree import Block

_PAD: Final = 16.0
_RAIL: Final = 40.0
_TITLE: Final = 52.0
_ROW_GAP: Final = 20.0
_PORTS: Final = 34.0
_LEAST_WIDTH: Final = 300.0
_MOST_TITLE: Final = 620.0
_TITLE_FONT: Final = Font(size_px=16, bold=True)
_FACTS_FONT: Final = Font(size_px=11, colour=FAINT)
_FILL, _LINE = "#ffffff", "#334155"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """A host with everything placed, from its own upper left corner; `ports` are ids with links to the outside."""

    part: Part
    names: Names
    rows: tuple[tuple[PlacedBlock, ...], ...]
    sizes: Sizes
    fabric: Fabric
    band: Band
    anchors: dict[str, Anchor]
    joined: Joined
    ports: dict[str, tuple[Link, ...]]
    width: float
    note: str

    @property
    def has_fabric(self) -> bool:
        """Whether NVLinks are drawn."""
        return bool(self.fabric.bars or self.fabric.direct)

    @property
    def row_y(self) -> tuple[float, ...]:
        """The top of each row of NUMA nodes."""
        bus = bus_height(self.joined)
        first = _TITLE + (14 if self.note else 0) + bus
        between = self.band.height + (0 if self.has_fabric else bus)
        return first, first + self.sizes.height + max(between, _ROW_GAP)

    @property
    def height(self) -> float:
        """Height of the host's box."""
        if len(self.rows) == 1:
            bottom = self.row_y[0] + self.sizes.height + self.band.height
        else:
            bottom = self.row_y[1] + self.sizes.height + (bus_height(self.joined) if self.has_fabric else 0)
        return bottom + _PAD + (_PORTS if self.ports else 0)


def plan_host(part: Part, names: Names) -> HostPlan:
    """Place everything in a host."""
    blocks = blocks_of(part)
    leaves = [leaf for one in blocks for root in one.roots for leaf in leaves_of(root)]
    leaf_of = {device.id: leaf.id for leaf in leaves if not leaf.is_slots for device in leaf.devices}
    fabric = fabric_of(part, leaf_of)
    rows = place.rows_of(blocks, is_mesh=fabric.is_mesh)
    joined = sockets_of(part, rows)
    left = _PAD + (_RAIL if joined.has_rail else 0)
    widths = [sum(map(place.block_width, row)) + _gap(joined) * (len(row) - 1) for row in rows]
    title, facts = host_lines(part.host, part.alike)
    wanted = max(width_px(title, 16, bold=True), width_px(facts, 11)) + 2 * _PAD
    inner = max(*widths, _LEAST_WIDTH - left - _PAD, min(wanted, _MOST_TITLE) - left - _PAD)
    placed = tuple(_row(row, left + (inner - width) / 2, _gap(joined)) for row, width in zip(rows, widths, strict=True))
    anchors = _anchors(placed)
    return HostPlan(
        part=part,
        names=names,
        rows=placed,
        sizes=place.sizes_of(blocks),
        fabric=fabric,
        band=band_of(fabric, anchors),
        anchors=anchors,
        joined=joined,
        ports=_ports(part),
        width=left + inner + _PAD,
        note=_left_out(part),
    )


def _gap(joined: Joined) -> float:
    return place.SOCKET_GAP if joined.is_direct else place.BLOCK_GAP


def _row(blocks: tuple[Block, ...], x: float, gap: float) -> tuple[PlacedBlock, ...]:
    placed = []
    for one in blocks:
        placed.append(place.placed(one, x))
        x += placed[-1].width + gap
    return tuple(placed)


def _anchors(rows: tuple[tuple[PlacedBlock, ...], ...]) -> dict[str, Anchor]:
    found = {}
    for at, row in enumerate(rows):
        for spot in (each for one in row for root in one.spots for each in root.all()):
            if spot.node.devices and not spot.node.is_slots:
                side = place.SIDE_ROOM if spot.node.side is not None else 0.0
                found[spot.node.id] = Anchor(row=at, x=spot.x, width=spot.width - side)
    return found


def _ports(part: Part) -> dict[str, tuple[Link, ...]]:
    ids = [*(device.id for device in part.host.devices), *(nic.id for nic in part.host.nics)]
    order = {name: at for at, name in enumerate([*ids, *(switch.id for switch in part.switches)])}
    ports: dict[str, list[Link]] = defaultdict(list)
    for link in part.outward:
        ports[link.a if link.a in order else link.b].append(link)
    return {name: tuple(ports[name]) for name in sorted(ports, key=order.__getitem__)}


def _left_out(part: Part) -> str:
    host = part.host
    slots = sum(1 for device in host.devices if device.cores)
    counts = (
        (len(host.devices) - slots - MOST_GPUS, "GPUs"),
        (slots - MOST_SLOTS, "CPU slots"),
        (len(host.nics) - MOST_NICS, "NICs"),
    )
    more = [f"{count} more {noun}" for count, noun in counts if count > 0]
    return f"not drawn: {', '.join(more)}" if more else ""


def draw_host(plan: HostPlan, *, ports_up: bool) -> tuple[list[str], dict[str, float]]:
    """Draw a host from its own upper left corner; also the x of each port at its upper or lower edge."""
    shift = _PORTS if ports_up and plan.ports else 0.0
    outer = Box(x=0, y=0, width=plan.width, height=plan.height)
    parts = [rect(outer, _FILL, _LINE, radius_px=8, outline_px=1.8), *_title(plan, shift)]
    frames = []
    for at, row in enumerate(plan.rows):
        flipped = at == 1 and plan.has_fabric
        frame = Frame(top=plan.row_y[at] + shift, sizes=plan.sizes, flipped=flipped, names=plan.names)
        frames.append(frame)
        for one in row:
            parts += block(one, frame)
    edges = {
        leaf.id: frames[plan.anchors[leaf.id].row].y(plan.sizes.leaf_y + place.gpu_height(leaf))
        for row in plan.rows
        for one in row
        for root in one.block.roots
        for leaf in leaves_of(root)
        if leaf.id in plan.anchors
    }
    top = plan.row_y[0] + shift + plan.sizes.height
    parts += band(plan.band, plan.fabric, BandFrame(top=top, edges=edges, names=plan.names))
    parts += sockets(plan.joined, plan.rows, frames, plan.width)
    marks, xs = _port_marks(plan, 0.0 if ports_up else plan.height)
    return [*parts, *marks], xs


def _title(plan: HostPlan, shift: float) -> list[str]:
    host, alike = plan.part.host, plan.part.alike
    title, facts = host_lines(host, alike)
    room = plan.width - 2 * _PAD
    hint = f"host {host.name}\n{facts}"
    if alike:
        hint += f"\nalike: {listed([host.name, *alike], 24)}"
    words = [
        text(_PAD, shift + 24, title, room, _TITLE_FONT),
        text(_PAD, shift + 41, facts, room, _FACTS_FONT),
        text(_PAD, shift + 55, plan.note, room, _FACTS_FONT) if plan.note else "",
    ]
    return [group(hint, words)]


def _port_marks(plan: HostPlan, edge: float) -> tuple[list[str], dict[str, float]]:
    if not plan.ports:
        return [], {}
    pitch = (plan.width - 2 * _PAD) / len(plan.ports)
    xs = {name: _PAD + pitch * (at + 0.5) for at, name in enumerate(plan.ports)}
    inward = 1 if edge == 0 else -1
    return [port_mark(plan.names.of(name), x, edge, inward, pitch) for name, x in xs.items()], xs
