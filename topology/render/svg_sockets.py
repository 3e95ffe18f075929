"""How the NUMA nodes of a host are joined: a line between two, a bus where there are more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from topology.model import Link, SwitchKind
from topology.render.svg_block import SMALL, Frame
from topology.render.svg_marks import Marks, across
from topology.render.svg_place import STRIP
from topology.render.svg_shapes import Stroke, group, path, text
from topology.render.svg_style import short_rate, stroke_of, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from topology.render.svg_parts import Part
    from topology.render.svg_place import PlacedBlock
    from topology.render.svg_tree import Block

_BUS: Final = 22.0
_RAIL_X: Final = 38.0
_MOST_TOLD: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Links between the NUMA nodes of a host, and how they are drawn."""

    links: tuple[Link, ...] = ()
    is_direct: bool = False
    has_rail: bool = False

    @property
    def is_bus(self) -> bool:
        """Whether one bus stands for all the links."""
        return len(self.links) > 1


def sockets_of(part: Part, rows: Sequence[Sequence[Block]]) -> Joined:
    """Find the links between NUMA nodes: a line in a row of two, else a rail at the side or a bus."""
    ids = {switch.id for switch in part.switches if switch.kind is SwitchKind.socket}
    links = tuple(link for link in part.links if link.a in ids and link.b in ids)
    if not links:
        return Joined()
    blocks = [block for row in rows for block in row]
    is_direct = len(links) == 1 and len(rows) == 1 and len(blocks) == len(ids)
    return Joined(links=links, is_direct=is_direct, has_rail=len(rows) > 1)


def bus_height(joined: Joined) -> float:
    """Room that the bus takes beside a row."""
    return _BUS if joined.links and not joined.is_direct and (joined.is_bus or not joined.has_rail) else 0.0


def sockets(
    joined: Joined,
    rows: Sequence[Sequence[PlacedBlock]],
    frames: Sequence[Frame],
    width: float,
) -> list[str]:
    """Draw the links between NUMA nodes."""
    if not joined.links:
        return []
    marks = frames[0].names.marks
    widest = marks.of_several(joined.links, _widest(joined))
    hint = "\n".join(told(link, f"{link.a} - {link.b}") for link in joined.links[:_MOST_TOLD])
    if joined.is_direct:
        return [group(hint, _line(joined.links[0], rows[0], frames[0], widest, marks))]
    if joined.has_rail and not joined.is_bus:
        return [group(hint, _rail(joined.links[0], rows, frames, widest, marks))]
    return [group(hint, _bus(joined, rows, frames, width, marks))]


def _widest(joined: Joined) -> Stroke:
    return max((stroke_of(link) for link in joined.links), key=lambda stroke: stroke.width_px)


def _words(link: Link) -> tuple[str, str]:
    return link.kind, short_rate(link)


def _line(link: Link, row: Sequence[PlacedBlock], frame: Frame, stroke: Stroke, marks: Marks) -> list[str]:
    left, right = row[0].x + row[0].width, row[1].x
    y, middle = frame.y(STRIP / 2), (left + right) / 2
    first = row[0].block.socket
    line = marks.line(link, [(left, y), (right, y)], stroke, start=first.id if first else "", inset_px=8)
    room = right - left - 6
    gap = stroke.width_px / 2
    kind, rate = _words(link)
    above = text(middle, y - gap - 4, kind, room, SMALL, "middle")
    below = text(middle, y + gap + 11, rate, room, SMALL, "middle")
    return [line, above, below]


def _rail(
    link: Link,
    rows: Sequence[Sequence[PlacedBlock]],
    frames: Sequence[Frame],
    stroke: Stroke,
    marks: Marks,
) -> list[str]:
    where = {one.block.socket.id: (at, one) for at, row in enumerate(rows) for one in reversed(row) if one.block.socket}
    (upper, first), (lower, second) = sorted((where[link.a], where[link.b]), key=lambda item: item[0])
    ys = frames[upper].y(STRIP / 2), frames[lower].y(STRIP / 2)
    ways = [(first.x, ys[0]), (_RAIL_X, ys[0]), (_RAIL_X, ys[1]), (second.x, ys[1])]
    start = first.block.socket.id if first.block.socket else ""
    line = marks.line(link, ways, stroke, 8, start=start, inset_px=8)
    kind, rate = _words(link)
    at, middle = _RAIL_X - stroke.width_px / 2 - 4, sum(ys) / 2
    words = [text(at, middle + row * 11, word, 30, SMALL, "end") for row, word in enumerate((kind, rate))]
    return [line, *words]


def _stub(joined: Joined, one: PlacedBlock, usual: Stroke, marks: Marks) -> Stroke:
    own = one.block.socket.id if one.block.socket else ""
    return marks.of_several([link for link in joined.links if own in {link.a, link.b}], usual)


def _bus(
    joined: Joined,
    rows: Sequence[Sequence[PlacedBlock]],
    frames: Sequence[Frame],
    width: float,
    marks: Marks,
) -> list[str]:
    stroke = marks.of_several(joined.links, _widest(joined))
    ends = {end for link in joined.links for end in (link.a, link.b)}
    parts, levels, first = [], [], 0.0
    for row, frame in zip(rows, frames, strict=True):
        y, edge = frame.y(-_BUS / 2), frame.y(0)
        stubs = [one for one in row if one.block.socket and one.block.socket.id in ends and not one.block.is_rest]
        levels.append(y)
        if not stubs:
            continue
        xs = [one.x + 20 for one in stubs]
        left = _RAIL_X if len(rows) > 1 else min(xs)
        first = first or left
        parts.append(path([(left, y), (max(xs), y)], stroke))
        for one, x in zip(stubs, xs, strict=True):
            parts.append(path([(x, y), (x, edge)], _stub(joined, one, stroke, marks)))
            if one.block.socket and marks.is_cut_at(joined.links, one.block.socket.id):
                parts.append(across(x, (y + edge) / 2, level=True))
    if len(rows) > 1:
        parts.append(path([(_RAIL_X, levels[0]), (_RAIL_X, levels[-1])], stroke))
    rates = {short_rate(link) for link in joined.links}
    kinds = "/".join(sorted({link.kind for link in joined.links}))
    rate = f", {rates.pop()} GB/s each" if len(rates) == 1 and "" not in rates else ""
    label = f"{len(joined.links)} links between NUMA nodes ({kinds}{rate})"
    return [*parts, text(first + 8, levels[0] - 4, label, width - first - 24, SMALL)]
