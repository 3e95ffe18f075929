"""NVLinks drawn: bars of NVSwitches with a line for each GPU, direct links in lanes of round-cornered lines."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from topology.render.svg_band import BAR_HEIGHT, Band, BarPlace, Route
from topology.render.svg_block import SMALL
from topology.render.svg_names import Names, switch_told
from topology.render.svg_shapes import Box, Font, Stroke, group, rect, text
from topology.render.svg_style import count_of, gigabytes, short_rate, told
from topology.render.svg_text import longest, width_px

if TYPE_CHECKING:
    from collections.abc import Mapping

    from topology.model import Link
    from topology.render.svg_fabric import Fabric

_FILL, _LINE = "#e3f1cf", "#4d8b00"
_BAR_FONT: Final = Font(size_px=12, bold=True)
_MOST_LABELLED: Final = 48
_LEAST_PITCH: Final = 15.0
_CORNER: Final = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BandFrame:
    """Where the band lies, the y of the facing edge of each GPU, and what things are called."""

    top: float
    edges: Mapping[str, float]
    names: Names


def band(plan: Band, fabric: Fabric, frame: BandFrame) -> list[str]:
    """Draw all NVLinks of a host; bars are drawn last so that no line runs over their names."""
    parts = _trunks(plan, fabric, frame)
    for route in plan.routes:
        parts.append(_route(route, plan, fabric, frame))
    for place in plan.bars:
        parts += [_uplink(end, place, plan, fabric, frame) for end in place.ends]
    parts += [_bar(place, plan, frame) for place in plan.bars]
    return [*parts, *_lane_labels(plan, frame)]


def _route(route: Route, plan: Band, fabric: Fabric, frame: BandFrame) -> str:
    link, marks = route.link, frame.names.marks
    stroke = marks.stroke(link, degraded=fabric.is_degraded(link))
    hint = told(link, f"{frame.names.of(link.a)} - {frame.names.of(link.b)}")
    if route.lane is None:
        upper, lower = sorted((frame.edges[link.a], frame.edges[link.b]))
        top, bottom = (frame.top + y for y in plan.cross)
        ways = [(route.start, upper), (route.start, top), (route.end, bottom), (route.end, lower)]
        highest = min(link.a, link.b, key=frame.edges.__getitem__)
        line = marks.line(link, ways, stroke, start=highest)
        return group(hint, [line])
    y = frame.top + plan.lane_y(route)
    first, last = frame.edges[link.a], frame.edges[link.b]
    ways = [(route.start, first), (route.start, y), (route.end, y), (route.end, last)]
    return group(hint, [marks.line(link, ways, stroke, _CORNER)])


def _uplink(
    end: tuple[float, int, Link],
    place: BarPlace,
    plan: Band,
    fabric: Fabric,
    frame: BandFrame,
) -> str:
    x, row, link = end
    marks = frame.names.marks
    stroke = marks.stroke(link, switched=True, degraded=fabric.is_degraded(link))
    y = frame.top + plan.bar_y(place) + (BAR_HEIGHT if row else 0)
    line = marks.line(link, [(x, frame.edges[link.a]), (x, y)], stroke)
    at = x + stroke.width_px / 2 + 3
    base = frame.top + (plan.height - 20 if row else 15)
    font = SMALL if not fabric.is_degraded(link) else Font(size_px=9, bold=True, colour=stroke.colour)
    words = [text(at, base, link.kind, 44, font), text(at, base + 10, short_rate(link), 44, font)]
    return group(told(link, f"{frame.names.of(link.a)} - {place.bar.name}"), [line, *words])


def _bar(place: BarPlace, plan: Band, frame: BandFrame) -> str:
    bar = place.bar
    y = frame.top + plan.bar_y(place)
    box = Box(x=place.left, y=y, width=place.right - place.left, height=BAR_HEIGHT)
    rates = [rate for _, link in bar.links if (rate := link.capacity_bytes_per_second) is not None]
    options = [bar.name]
    if rates:
        most, least = gigabytes(max(rates)), gigabytes(min(rates))
        about = "" if all(link.bytes_per_second is not None for _, link in bar.links) else "\u2248"
        told_rate = f"{about}{least if least == most else f'{least} to {most}'} GB/s"
        options = [f"{bar.name} \u00b7 {told_rate} per GPU", f"{bar.name} \u00b7 {told_rate}", bar.name]
    words = longest(options, box.width - 16, _BAR_FONT.size_px, bold=True)
    hint = "\n".join([bar.name, *(switch_told(switch) for switch in bar.switches[:16])])
    label = text(box.middle, box.y + 17, words, box.width - 16, _BAR_FONT, "middle")
    return group(hint, [rect(box, _FILL, _LINE, outline_px=1.6), label])


def _trunks(plan: Band, fabric: Fabric, frame: BandFrame) -> list[str]:
    places, marks = {id(place.bar): place for place in plan.bars}, frame.names.marks
    parts = []
    for a, b, link in fabric.trunks:
        upper, lower = sorted((places[id(fabric.bars[at])] for at in (a, b)), key=lambda place: place.lane)
        left, right = max(upper.left, lower.left), min(upper.right, lower.right)
        stroke = marks.stroke(link, switched=True)
        start = frame.top + plan.bar_y(upper) + BAR_HEIGHT
        end = frame.top + plan.bar_y(lower)
        middle = (left + right) / 2
        starts = upper.bar.switches[0].id if upper.bar.switches else ""
        line = marks.line(link, [(middle, start), (middle, end)], stroke, start=starts)
        label = text(middle + stroke.width_px / 2 + 4, (start + end) / 2 + 3, _words(link), 120, SMALL)
        parts.append(group(told(link, f"{upper.bar.name} - {lower.bar.name}"), [line, label]))
    return parts


def _words(link: Link) -> str:
    rate = short_rate(link)
    return f"{link.kind} \u00b7 {rate}" if rate else link.kind


def _lane_labels(plan: Band, frame: BandFrame) -> list[str]:
    # In the widest stretch of its lane that no other line crosses; none where there is no room or far too many.
    if len(plan.routes) > _MOST_LABELLED or plan.pitch < _LEAST_PITCH:
        return []
    labels = [label for route in plan.routes if (label := _label(route, plan, frame))]
    return [*labels, *_cross_labels(plan, frame)]


def _label(route: Route, plan: Band, frame: BandFrame) -> str:
    if route.lane is None:
        return ""
    words, y = _words(route.link), frame.top + plan.lane_y(route)
    crossing = sorted({route.start, route.end, *_verticals(route, plan)})
    inside = [x for x in crossing if route.start <= x <= route.end]
    gaps = [(b - a, (a + b) / 2) for a, b in pairwise(inside)]
    room, middle = max(gaps)
    if width_px(words, SMALL.size_px) + 12 > room:
        words = route.link.kind
    if width_px(words, SMALL.size_px) + 10 > room or count_of(route.link.kind) is None:
        return ""
    stroke = frame.names.marks.stroke(route.link)
    return text(middle, y - stroke.width_px / 2 - 2.5, words, room - 8, SMALL, "middle")


def _verticals(route: Route, plan: Band) -> list[float]:
    xs = [x for place in plan.bars for x, row, _ in place.ends if row == route.row]
    for other in plan.routes:
        if other.lane is None:
            xs.append(other.start if route.row == 0 else other.end)
        elif other.row == route.row and other.lane >= (route.lane or 0):
            xs += [other.start, other.end]
    return xs


def _cross_labels(plan: Band, frame: BandFrame) -> list[str]:
    crossing = [route for route in plan.routes if route.lane is None]
    if any(abs(route.start - route.end) > 1 for route in crossing):
        return []
    top, bottom = plan.cross
    xs = sorted(route.start for route in crossing)
    labels = []
    for route in crossing:
        after = min((x for x in xs if x > route.start), default=route.start + 90)
        stroke: Stroke = frame.names.marks.stroke(route.link)
        at = route.start + stroke.width_px / 2 + 4
        y = frame.top + (top + bottom) / 2 + 3
        labels.append(text(at, y, _words(route.link), after - at - 6, SMALL))
    return labels
