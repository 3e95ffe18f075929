"""What is written on the picture of a route: the headline above it, the cut below it, the legend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from topology.graph import LinkClass
from topology.judge import short_names
from topology.model import DeviceKind
from topology.render.svg_legend import Entry
from topology.render.svg_marks import CUT, UNUSED, Role, Shade, busy_stroke, cut_stroke, shade_of
from topology.render.svg_shapes import FAINT, Font, Stroke, path, text
from topology.render.svg_text import width_px
from topology.routing.diagnosis import describe
from topology.units import format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from topology.model import Topology
    from topology.render.svg_marks import Marks
    from topology.render.svg_route_order import Order
    from topology.render.svg_route_use import Side
    from topology.routing.choose import Route

_DOT: Final = " \u00b7 "
_ARROW: Final = " \u2192 "
_LINE: Final = 1.25
_SAMPLE: Final = 34.0
_SMALL: Final = Font(size_px=12, colour=FAINT)
_UNITS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
LEGEND: Final = "Wide and dark: busy. Numbers: GB/s per direction."
NO_LINES: Final = "No line of the picture is in use."
_QUARTERS: Final = ((1.0, "the busiest"), (0.75, "up to 75% as busy"), (0.5, "up to 50%"), (0.25, "up to 25%"))
_PAIR: Final = 2
_ROLES: Final = ((Role.group, "in the group"), (Role.outside, "not in the group"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """All that is said of a route; `details` are short lines below the cut."""

    headline: str
    result: str
    cut: str
    is_cut_drawn: bool
    details: tuple[str, ...]

    def head(self, left: float, top: float, width: float) -> tuple[list[str], float]:
        """Draw the headline and the result, so large that both are read where the whole picture is small."""
        size = min(max(0.026 * width, 16.0), 40.0)
        parts, y = _block(self.headline, left, top, width, Font(size_px=size, bold=True))
        more, height = _block(self.result, left, top + y, width, Font(size_px=0.85 * size))
        return [*parts, *more], y + height + 0.6 * size

    def foot(self, left: float, top: float, width: float) -> tuple[list[str], float]:
        """Draw what the cut is, and the details."""
        size = min(max(0.02 * width, 14.0), 28.0)
        sample = path([(left, top + 0.62 * size), (left + _SAMPLE, top + 0.62 * size)], cut_stroke())
        indent = _SAMPLE + 10 if self.is_cut_drawn else 0.0
        font = Font(size_px=size, bold=True, colour=CUT)
        small = replace(_SMALL, size_px=min(max(0.011 * width, _SMALL.size_px), 18.0))
        parts, y = _block(self.cut, left + indent, top, width - indent, font)
        parts += [sample] if self.is_cut_drawn else []
        y += 0.4 * size
        for line in self.details:
            more, height = _block(line, left, top + y, width, small)
            parts += more
            y += height
        return parts, y + 10


def _block(words: str, left: float, top: float, width: float, font: Font) -> tuple[list[str], float]:
    lines = wrapped(words, width, font)
    pitch = _LINE * font.size_px
    return [text(left, top + pitch * at + font.size_px, line, width, font) for at, line in enumerate(lines)], (
        pitch * len(lines)
    )


def wrapped(words: str, room_px: float, font: Font) -> list[str]:
    """Break a text into lines that fit; a word wider than a line stands alone."""
    lines: list[str] = []
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_px(longer, font.size_px, bold=font.bold) <= room_px:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def words_of(route: Route, topology: Topology, order: Order | None, side: Side, marks: Marks) -> Words:
    """Say what the route is, how good it is and what limits it."""
    is_cut_drawn = any(use.cut_at for use in (marks.uses or {}).values())
    where = _marked(route, topology, side, marks, is_cut_drawn=is_cut_drawn)
    return Words(
        headline=headline(route, topology),
        result=_DOT.join(_result(route)),
        cut=_cut(route, topology, where),
        is_cut_drawn=is_cut_drawn,
        details=(*_details(route, topology, order), *(_discs(order) if marks.badges and order else ())),
    )


def headline(route: Route, topology: Topology) -> str:
    """The collective, its size and the algorithm."""
    is_cpu = topology.devices and _kinds(route, topology) == {DeviceKind.cpu}
    name = route.collective.value.replace("_", "-")
    return f"{name} of {size_text(route.nbytes)} over {route.graph.size} {'CPU slots' if is_cpu else 'GPUs'}: " + (
        route.chosen.algorithm
    )


def _kinds(route: Route, topology: Topology) -> set[DeviceKind]:
    own = set(route.graph.device_ids)
    return {device.kind for device in topology.devices if device.id in own}


def _result(route: Route) -> Iterable[str]:
    offer = route.chosen
    yield format_seconds(offer.seconds)
    yield f"bus rate {format_rate(offer.bus_bytes_per_second)}"
    if route.bound.cut is not None and route.bound_seconds:
        yield f"{route.bound_seconds / offer.seconds:.0%} of the bound"


def size_text(size_bytes: int) -> str:
    """A size in the largest binary unit that it reaches."""
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}".replace(".0 ", " ")
    return f"{size_bytes} B"


def _cut(route: Route, topology: Topology, where: str) -> str:
    cut = route.bound.cut
    if cut is None:
        return "No wire has a known limit"
    names = labels_of(topology)
    plain = [_number(names[name]) for name in route.graph.device_ids]
    found = describe(route.graph, cut, plain)
    if not cut.inside:
        return found[:1].upper() + found[1:]
    # Of several that are alike one is marked.
    return f"The cut: {found}" + (f" (marked at {where})" if where and found.startswith("each ") else "")


def _marked(route: Route, topology: Topology, side: Side, marks: Marks, *, is_cut_drawn: bool) -> str:
    """The device or the host on the stressed side, as the picture calls it; empty where it is neither."""
    ids = [route.graph.device_ids[rank] for rank in sorted(side.ranks)]
    if len(ids) == 1:
        return labels_of(topology)[ids[0]]
    host_of = {device.id: device.host for device in topology.devices}
    hosts = {host_of[marks.stands_for.get(name, name)] for name in ids}
    return hosts.pop() if len(hosts) == 1 and is_cut_drawn else ""


def labels_of(topology: Topology) -> dict[str, str]:
    """What the picture calls each device."""
    return {name: label for host in topology.hosts for name, label in short_names(host).items()}


def _number(label: str) -> str:
    return label.removeprefix("GPU").removeprefix("CPU")


def _details(route: Route, topology: Topology, order: Order | None) -> Iterable[str]:
    offer, graph = route.chosen, route.graph
    yield f"{offer.algorithm}: {_ARROW.join(offer.phases)}" if offer.phases else offer.algorithm
    if offer.entry.schedule is not None and offer.of_bound <= 1:
        yield f"It uses {offer.of_bound:.1%} of what the wires allow. Reckoned with: {offer.bottleneck}."
    if order is not None and order.ring and len(topology.hosts) == 1 and len(order.ring) > _PAIR:
        names = labels_of(topology)
        ring = [names[graph.device_ids[rank]] for rank in order.ring]
        which = "its order" if order.count == 1 else f"the first of its {order.count} orders"
        yield f"{which}: {_ARROW.join([*ring, ring[0]])}"
    if offer.entry.schedule is None:
        yield "The switch sums and copies by itself: all its links are in use, and no bound on sends holds for it."
    elif offer.entry.schedule.graph.size < graph.size:
        yield f"Drawn as proved on {offer.entry.schedule.graph.size} of the {graph.size} devices."
    cut = route.bound.cut
    if cut is not None and any(graph.edges[at].link is LinkClass.memory for at in cut.edges):
        yield "The way through the memory of the host has no line in the picture."


def _discs(order: Order) -> Iterable[str]:
    several = f", one of {order.count}" if order.count > 1 else ""
    meaning = f"place in the ring{several}" if order.ring else f"sends to the root of the tree{several}"
    yield f"Numbers in discs: {meaning}."


def entries_of(marks: Marks) -> tuple[Entry, ...]:
    """The legend of what is in the picture."""
    uses = list((marks.uses or {}).values())
    busy = {_quarter(use.share) for use in uses if use.share is not None}
    entries = [Entry(words=words, stroke=busy_stroke(share)) for share, words in _QUARTERS if share in busy]
    if busy:
        entries.append(Entry(words="not used", stroke=Stroke(colour=UNUSED, width_px=2)))
    if any(use.cut_at for use in uses):
        entries.append(Entry(words="across the cut", stroke=cut_stroke()))
    found = {role for name, role in marks.roles.items() if marks.stands_for.get(name, name) == name}
    entries += [_swatch(shade_of(role), words) for role, words in _ROLES if role in found]
    if Role.side in found:
        entries.append(_swatch(shade_of(Role.side), "in the group, on one side of the cut"))
    return tuple(entries)


def _quarter(share: float) -> float:
    return next(upper for upper, _ in reversed(_QUARTERS) if share <= upper + 1e-9)


def _swatch(shade: Shade, words: str) -> Entry:
    return Entry(words=words, fill=shade.fill, outline=shade.line, line=1)
