"""One NUMA node drawn: a strip with its name, bars for bridges and switches, boxes for GPUs, NICs and CPU slots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from topology.render import svg_place as place
from topology.render.svg_marks import BADGE_PX, badge
from topology.render.svg_names import (
    Names,
    device_told,
    memory,
    nic_line,
    nic_told,
    pcie_line,
    short_name,
    switch_name,
    switch_told,
)
from topology.render.svg_shapes import FAINT, Box, Font, Stroke, group, rect, text
from topology.render.svg_style import short_rate, told
from topology.render.svg_text import longest

if TYPE_CHECKING:
    from topology.model import Device, Link, Nic
    from topology.render.svg_place import PlacedBlock, Sizes, Spot

BLOCK_FILL, BLOCK_LINE = "#f1f5f9", "#94a3b8"
STRIP_FILL: Final = "#dbe3ec"
BAR_FILL, BAR_LINE = "#e8edf3", "#64748b"
NIC_FILL, NIC_LINE = "#fff7e0", "#a16207"
GPU_LINE: Final = "#365314"
SLOT_FILL, SLOT_LINE = "#e6eef8", "#5b7391"
SMALL: Final = Font(size_px=9, colour=FAINT)
_NAME: Final = Font(size_px=13, bold=True)
_PLAIN: Final = Font(size_px=10)
_STRIP_FONT: Final = Font(size_px=11, bold=True)
_STRIP_PAD: Final = 20.0
_LEAST_CELL_PX: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Where blocks of a row go: y of their top, sizes, and whether they stand on their heads (GPUs up)."""

    top: float
    sizes: Sizes
    flipped: bool
    names: Names

    def box(self, x: float, y: float, width: float, height: float) -> Box:
        """Place a box given from the top of the block, or from its bottom where it is flipped."""
        at = self.top + (self.sizes.height - y - height if self.flipped else y)
        return Box(x=x, y=at, width=width, height=height)

    def y(self, y: float) -> float:
        """Place a y in the same way."""
        return self.top + (self.sizes.height - y if self.flipped else y)


def block(placed: PlacedBlock, frame: Frame) -> list[str]:
    """Draw a NUMA node."""
    outer = frame.box(placed.x, 0, placed.width, frame.sizes.height)
    strip = frame.box(placed.x, 0, placed.width, place.STRIP)
    heading = _heading(placed)
    font = text(strip.x + 10, strip.y + 15, heading, strip.width - _STRIP_PAD, _STRIP_FONT)
    socket = placed.block.socket
    hint = switch_told(socket) if socket is not None else f"{heading}\nno PCIe tree is known here"
    parts = [
        rect(outer, BLOCK_FILL, BLOCK_LINE, radius_px=6),
        group(hint, [rect(strip, STRIP_FILL, BLOCK_LINE, radius_px=6), font]),
    ]
    # Behind the bars, which they pass by.
    leaves = [spot for root in placed.spots for spot in root.all() if spot.node.side is not None]
    parts += [line for spot in leaves for line in _side(spot, frame)]
    for root in placed.spots:
        parts += _spot(root, frame, place.STRIP)
    return parts


def _heading(placed: PlacedBlock) -> str:
    block, told_cpus = placed.block, set()
    for spot in placed.spots:
        told_cpus |= {device.cpus for each in spot.all() for device in each.node.devices if device.cpus}
    name = "NUMA node unknown" if block.numa is None else f"NUMA node {block.numa}"
    if block.socket is not None and block.socket.name:
        name += f" \u00b7 {block.socket.name}"
    if block.is_rest:
        return f"{name}, continued"
    options = [f"{name} \u00b7 CPUs {told_cpus.pop()}", name] if len(told_cpus) == 1 else [name]
    return longest(options, placed.width - _STRIP_PAD, _STRIP_FONT.size_px, bold=True)


def _spot(spot: Spot, frame: Frame, above: float) -> list[str]:
    # `above` is where the strip or bar over the spot ends, from the top of the block.
    node = spot.node
    if node.switch is not None:
        y = frame.sizes.bar_y(spot.level)
        bar = frame.box(spot.x, y, spot.width - _side_room(spot), place.BAR_HEIGHT)
        label = switch_name(node.switch)
        words = text(bar.middle, bar.y + 14, label, bar.width - 8, _PLAIN, "middle")
        drop = _drop(node.ups[0] if node.ups else None, frame, bar.middle, (above, y), bar.width / 2)
        parts = [*drop, group(switch_told(node.switch), [rect(bar, BAR_FILL, BAR_LINE), words])]
        for child in spot.children:
            parts += _spot(child, frame, y + place.BAR_HEIGHT)
        return parts
    if node.is_slots:
        return _slots(spot, frame)
    if node.nics:
        return _nics(spot, frame, above)
    return _gpu(spot, frame, above)


def _side_room(spot: Spot) -> float:
    # A coherent link of the last leaf runs to the right of the bars over it.
    last = spot
    while last.children:
        last = last.children[-1]
    return place.SIDE_ROOM if last.node.side is not None else 0.0


def _drop(link: Link | None, frame: Frame, x: float, ys: tuple[float, float], room: float) -> list[str]:
    if link is None:
        return []
    names = frame.names
    stroke = names.marks.stroke(link)
    line = names.marks.line(link, [(x, frame.y(ys[0])), (x, frame.y(ys[1]))], stroke, start=link.b)
    # Beside the lower end, where the line is nobody else's.
    at = x + stroke.width_px / 2 + 3
    label = text(at, frame.y(ys[1] - place.DROP / 2) + 3, short_rate(link), room - 8, SMALL)
    label = label if abs(ys[1] - ys[0]) >= place.DROP else ""
    return [group(told(link, f"{names.of(link.a)} - {names.of(link.b)}"), [line, label])]


def _gpu(spot: Spot, frame: Frame, above: float) -> list[str]:
    node, sizes = spot.node, frame.sizes
    device = node.devices[0]
    whole = next((one for one in node.devices if one.parent is None), None)
    side = place.SIDE_ROOM if node.side is not None else 0.0
    box = frame.box(spot.x, sizes.leaf_y, spot.width - side, place.gpu_height(node))
    parts = _drop(node.ups[0], frame, box.middle, (above, sizes.leaf_y), box.width / 2)
    slices = [one for one in node.devices if one is not whole]
    label = frame.names.of(device.id) if whole is not None else "MIG slices"
    shown = whole or device
    size = memory(shown.memory_bytes) if whole is not None else f"{len(slices)} of one GPU"
    lines = [short_name(shown.name), size + (" \u00b7 MIG" if shown.mig else ""), pcie_line(shown.pcie)]
    marks = frame.names.marks
    shade = marks.shade(one.id for one in node.devices)
    mark = marks.badges.get(device.id, "")
    room = box.width - 16 - (2 * BADGE_PX if mark else 0)
    words = [text(box.x + 8, box.y + 17, label, room, replace(_NAME, colour=shade.ink))]
    plain = replace(_PLAIN, colour=shade.ink)
    words += [text(box.x + 8, box.y + 31 + 13 * at, line, box.width - 16, plain) for at, line in enumerate(lines)]
    fill, outline = shade.fill or frame.names.fill(device), shade.line or GPU_LINE
    words += [badge(mark, box.right - BADGE_PX - 4, box.y + BADGE_PX + 4)] if mark else []
    parts.append(group(device_told(shown, label), [rect(box, fill, outline, outline_px=1.4), *words]))
    return [*parts, *_slices(slices, frame.names, box)]


def _slices(slices: list[Device], names: Names, box: Box) -> list[str]:
    if not slices:
        return []
    pitch = (box.width - 12) / len(slices)
    parts = []
    for at, one in enumerate(slices):
        cell = Box(x=box.x + 6 + at * pitch, y=box.bottom - 22, width=pitch - 2, height=16)
        label = names.of(one.id)
        words = text(cell.middle, cell.y + 11, label, cell.width, SMALL, "middle") if pitch > _LEAST_CELL_PX else ""
        shade = names.marks.shade((one.id,))
        shape = rect(cell, shade.fill or "#ffffff", shade.line or GPU_LINE, radius_px=2)
        parts.append(group(device_told(one, label), [shape, words]))
    return parts


def _side(spot: Spot, frame: Frame) -> list[str]:
    link = spot.node.side
    if link is None:
        return []
    box = frame.box(spot.x, frame.sizes.leaf_y, spot.width - place.SIDE_ROOM, place.GPU_HEIGHT)
    x, y = box.right + 10, box.y + box.height / 2
    marks = frame.names.marks
    stroke = marks.stroke(link)
    line = marks.line(
        link, [(x, frame.y(place.STRIP)), (x, y), (box.right, y)], stroke, 5, start=_other_end(link, spot)
    )
    at = frame.y(frame.sizes.leaf_y) + (-8 if not frame.flipped else 14)
    words = [
        text(x + stroke.width_px / 2 + 3, at - 10 + 10 * row, word, place.SIDE_ROOM - 14, SMALL)
        for row, word in enumerate((link.kind, short_rate(link)))
    ]
    return [group(told(link, f"{frame.names.of(link.a)} - {frame.names.of(link.b)}"), [line, *words])]


def _other_end(link: Link, spot: Spot) -> str:
    return link.b if any(link.a == device.id for device in spot.node.devices) else link.a


def _nics(spot: Spot, frame: Frame, above: float) -> list[str]:
    nics, sizes = spot.node.nics, frame.sizes
    if len(nics) == 1:
        box = frame.box(spot.x, sizes.leaf_y, place.NIC_WIDTH, place.NIC_HEIGHT)
        drop = _drop(spot.node.ups[0], frame, box.middle, (above, sizes.leaf_y), box.width / 2)
        return [*drop, _nic(nics[0], box)]
    parts: list[str] = []
    columns = -(-len(nics) // 2)
    for at, (nic, link) in enumerate(zip(nics, spot.node.ups, strict=True)):
        row, column = divmod(at, columns)
        x = spot.x + column * (place.NIC_WIDTH + place.SPINE + place.NIC_GAP)
        y = sizes.leaf_y + row * (place.NIC_HEIGHT + place.NIC_GAP)
        box = frame.box(x + place.SPINE, y, place.NIC_WIDTH, place.NIC_HEIGHT)
        if link is not None:
            middle = box.y + box.height / 2
            names = frame.names
            ways = [(x + 3, frame.y(above)), (x + 3, middle), (box.x, middle)]
            line = names.marks.line(link, ways, names.marks.stroke(link), start=link.b)
            parts.append(group(told(link, f"{names.of(link.a)} - {names.of(link.b)}"), [line]))
        parts.append(_nic(nic, box))
    return parts


def _nic(nic: Nic, box: Box) -> str:
    name = text(box.x + 6, box.y + 13, nic.name, box.width - 12, Font(size_px=10, bold=True))
    line = text(box.x + 6, box.y + 25, nic_line(nic), box.width - 10, SMALL)
    return group(nic_told(nic), [rect(box, NIC_FILL, NIC_LINE), name, line])


def _slots(spot: Spot, frame: Frame) -> list[str]:
    devices = spot.node.devices
    columns, width, height = place.slot_columns(len(devices))
    parts = []
    for at, device in enumerate(devices):
        row, column = divmod(at, columns)
        x = spot.x + column * (width + place.SLOT_GAP)
        box = frame.box(x, frame.sizes.leaf_y + row * (height + place.SLOT_GAP), width, height)
        label = frame.names.of(device.id)
        shade = frame.names.marks.shade((device.id,))
        font = replace(_PLAIN, colour=shade.ink)
        words = text(box.middle, box.y + 15, label, width - 4, font, "middle") if width > _LEAST_CELL_PX else ""
        shape = rect(box, shade.fill or SLOT_FILL, shade.line or SLOT_LINE, radius_px=3)
        parts.append(group(device_told(device, label), [shape, words]))
    return parts


def plain_stroke(colour: str) -> Stroke:
    """A thin line of that colour."""
    return Stroke(colour=colour, width_px=1.2)
