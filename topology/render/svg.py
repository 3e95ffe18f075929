"""A topology as an SVG picture of nested boxes: hosts, NUMA nodes, host bridges, PCIe switches, devices, NICs.

The picture is read like those of lstopo: what is joined by PCIe hangs below, and lines widen with what they carry.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from topology.render.svg_fabric import bundle
from topology.render.svg_host import HostPlan, draw_host, plan_host
from topology.render.svg_legend import Entry, entries_of, legend, warnings
from topology.render.svg_marks import Marks
from topology.render.svg_names import Names, names_of
from topology.render.svg_network import (
    FAN,
    Network,
    hub_boxes,
    hubs,
    landings,
    network_of,
    network_width,
    port_label,
    wire,
)
from topology.render.svg_parts import Part, drawn, hosts_by_id, parts_of, spliced
from topology.render.svg_shapes import FAINT, Box, Font, number, rect, text
from topology.render.svg_text import escaped, listed, width_px

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from topology.model import Link, Topology

_MARGIN: Final = 20.0
_HEAD: Final = 50.0
_HOST_GAP: Final = 28.0
_LEAST_WIDTH: Final = 460.0
_WIDE_HOST: Final = 900.0
_ROW_WIDTH: Final = 2400.0
_FONTS: Final = "Helvetica, Arial, 'DejaVu Sans', Verdana, sans-serif"
_TITLE: Final = Font(size_px=18, bold=True)
_KICKER: Final = Font(size_px=13, colour=FAINT)  # where a headline follows
_NOTE: Final = Font(size_px=11, colour=FAINT)


# A link, what its ends are called, its port, the first switch of its hub, and whether the hub is above the host.
_Wire: TypeAlias = "tuple[Link, str, tuple[float, float], str, bool]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    # A host with its upper left corner; `ports_up` where the network is above it.
    plan: HostPlan
    x: float
    y: float
    ports_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is drawn: hosts with everything placed in them, the network between them, names of hosts left out."""

    topology: Topology
    plans: tuple[HostPlan, ...]
    left_out: tuple[str, ...]
    network: Network

    def with_marks(self, marks: Marks) -> Scene:
        """The same with other things stressed; nothing moves."""
        plans = tuple(replace(plan, names=replace(plan.names, marks=marks)) for plan in self.plans)
        return replace(self, plans=plans)


# Elements and height of a part of the picture, given its left, top and width.
Section: TypeAlias = "Callable[[float, float, float], tuple[list[str], float]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a picture says besides what the machine is: above it, below it, in its legend and as its description."""

    head: Section
    foot: Section
    entries: tuple[Entry, ...]
    legend_head: str
    told: str


def svg(topology: Topology) -> str:
    """Draw the topology; the text is the whole file, the same for the same topology.

    Hosts that are alike are drawn once where there are more than eight, or many devices.
    """
    return drawing(scene_of(topology))


def scene_of(topology: Topology) -> Scene:
    """Choose what is drawn of a topology, and place it."""
    topology = spliced(topology)
    chosen, left_out = drawn(parts_of(topology))
    islands = _islands(topology)
    plans = tuple(plan_host(part, _names(part, islands)) for part in chosen)
    ports = [link for plan in plans for links in plan.ports.values() for link in links]
    network = network_of(topology, hosts_by_id(topology), ports)
    return Scene(topology=topology, plans=plans, left_out=left_out, network=network)


def drawing(scene: Scene, marks: Marks | None = None, story: Story | None = None) -> str:
    """Draw a scene; the text is the whole file."""
    marks = marks or Marks()
    scene = scene.with_marks(marks)
    plans, network = scene.plans, scene.network
    placed, width, bottom, network_top = _arrange(plans, network)
    inner = width - 2 * _MARGIN
    body = _hosts(placed, network, network_top, width, marks)
    above: list[str] = []
    shift, y = 0.0, bottom + 20
    if story is not None:
        above, shift = story.head(_MARGIN, _HEAD - 4, inner)
        below, more = story.foot(_MARGIN, y, inner)
        body += below
        y += more
    for line in _notes([plan.part for plan in plans], scene.left_out, network):
        body.append(text(_MARGIN, y + 12, line, inner, _NOTE))
        y += 18
    explained, height = (
        legend(entries_of(plans, network), _MARGIN, y, inner)
        if story is None
        else legend(story.entries, _MARGIN, y, inner, story.legend_head)
    )
    warned, more = warnings(scene.topology.warnings, _MARGIN, y + height + 10, inner)
    total = shift + y + height + (more + 10 if more else 0) + _MARGIN
    body = [part for part in (*body, *explained, *warned) if part]
    if story is not None:
        body = [*above, f'<g transform="translate(0 {number(shift)})">', *body, "</g>"]
    return _document(scene.topology, body, width, total, "" if story is None else story.told)


def _islands(topology: Topology) -> dict[str, list[tuple[str, ...]]]:
    host_of = {device.id: device.host for device in topology.devices}
    found: dict[str, list[tuple[str, ...]]] = {}
    for island in topology.islands:
        if len(island) > 1:
            found.setdefault(host_of[island[0]], []).append(island)
    return found


def _names(part: Part, islands: Mapping[str, list[tuple[str, ...]]]) -> Names:
    return names_of(part, islands.get(part.host.name, []))


def _arrange(plans: Sequence[HostPlan], network: Network) -> tuple[list[_Placed], float, float, float]:
    # Two wide hosts stand above and below their network, so that both keep a readable size; others stand in rows
    # with the network below.
    rows = _rows(plans, network)
    widths = [sum(plan.width for plan in row) + _HOST_GAP * (len(row) - 1) for row in rows]
    inner = max(*widths, network_width(network), _LEAST_WIDTH - 2 * _MARGIN)
    is_around = bool(network.rows) and len(rows) > 1
    band = network.height + 2 * FAN if is_around else 0.0
    placed, y, network_top = [], _HEAD, 0.0
    for at, (row, width) in enumerate(zip(rows, widths, strict=True)):
        x = _MARGIN + (inner - width) / 2
        for plan in row:
            placed.append(_Placed(plan=plan, x=x, y=y, ports_up=is_around and at > 0))
            x += plan.width + _HOST_GAP
        y += max(plan.height for plan in row)
        if at == 0 and is_around:
            network_top = y + FAN
            y += band
        elif at < len(rows) - 1:
            y += _HOST_GAP
    if network.rows and not is_around:
        network_top = y + FAN
        y = network_top + network.height
    return placed, inner + 2 * _MARGIN, y, network_top


def _rows(plans: Sequence[HostPlan], network: Network) -> list[list[HostPlan]]:
    total = sum(plan.width for plan in plans)
    has_spines = len(network.rows) > 1
    if len(plans) == 1 or (network.rows and has_spines):
        return [list(plans)]
    if network.rows:
        if (total <= _ROW_WIDTH and len(plans) > 2) or total <= 2 * _WIDE_HOST:  # noqa: PLR2004 - one above, one below
            return [list(plans)]
        half = (len(plans) + 1) // 2
        return [list(plans[:half]), list(plans[half:])]
    rows: list[list[HostPlan]] = [[]]
    for plan in plans:
        if rows[-1] and sum(one.width + _HOST_GAP for one in rows[-1]) + plan.width > 2 * _WIDE_HOST:
            rows.append([])
        rows[-1].append(plan)
    return rows


def _hosts(
    placed: Sequence[_Placed],
    network: Network,
    network_top: float,
    width: float,
    marks: Marks,
) -> list[str]:
    wires, parts, labels = [], [], []
    for one in placed:
        elements, ports = draw_host(one.plan, ports_up=one.ports_up)
        parts.append(f'<g transform="translate({number(one.x)} {number(one.y)})">{"".join(elements)}</g>')
        edge = one.y if one.ports_up else one.y + one.plan.height
        for name, x in ports.items():
            some = _wires(one, name, (one.x + x, edge), network)
            wires += some
            if some:
                labels.append(port_label([each[0] for each in some], (one.x + x, edge), marks, is_up=one.ports_up))
    sides: dict[tuple[str, bool], list[_Wire]] = defaultdict(list)
    for one_wire in wires:
        sides[one_wire[-2:]].append(one_wire)
    most = {hub: max(len(sides.get((hub, is_up), [])) for is_up in (True, False)) for hub, _ in sides}
    boxes = hub_boxes(network, most, _MARGIN, network_top, width - 2 * _MARGIN)
    lines = []
    for (hub, _), side in sides.items():
        ends_x = landings([port[0] for _, _, port, _, _ in side], boxes[hub])
        for (link, ends, port, _, _), end_x in zip(side, ends_x, strict=True):
            lines.append(wire(link, ends, port, boxes[hub], end_x, marks))
    return [*lines, *labels, *hubs(network, boxes, marks), *parts]


def _wires(one: _Placed, name: str, port: tuple[float, float], network: Network) -> list[_Wire]:
    # One to each hub, which may stand for several switches.
    hub_of = network.hub_of
    links: dict[str, list[Link]] = {}
    for link in one.plan.ports[name]:
        end = link.b if link.a == name else link.a
        if end in hub_of:
            links.setdefault(hub_of[end].switches[0].id, []).append(link)
    title = f"{one.plan.part.host.name} {one.plan.names.of(name)}"
    return [
        (bundle(several, name, hub), f"{title} - {hub_of[hub].name}", port, hub, one.ports_up)
        for hub, several in links.items()
    ]


def _notes(chosen: Sequence[Part], left_out: Sequence[str], network: Network) -> list[str]:
    notes = []
    for part in chosen:
        if part.alike:
            names = listed([part.host.name, *part.alike], 6)
            notes.append(f"{part.host.name} stands for {len(part.alike) + 1} hosts that are alike: {names}")
    if left_out:
        notes.append(f"{len(left_out)} more hosts of other kinds are not drawn: {listed(list(left_out), 6)}")
    more = network.num_switches - network.num_drawn
    if more > 0:
        notes.append(f"{network.num_drawn} of {network.num_switches} switches between hosts are drawn")
    return notes


def _summary(topology: Topology) -> str:
    slices = sum(1 for device in topology.devices if device.parent is not None)
    gpus, slots = len(topology.gpus) - slices, len(topology.devices) - len(topology.gpus)
    counts = (
        (len(topology.hosts), "host"),
        (gpus, "GPU"),
        (slices, "MIG slice"),
        (slots, "CPU slot"),
        (len(topology.nics), "NIC"),
    )
    return ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count)


def _document(topology: Topology, parts: Sequence[str], width: float, height: float, more: str) -> str:
    summary = _summary(topology)
    told = f"Topology of {summary}: hosts, NUMA nodes, PCIe switches, devices and NICs as nested boxes, links as lines"
    told += " whose width grows with their capacity. Pointing at a part shows all that is known of it."
    told = f"{more} {told}" if more else told
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    title = _KICKER if more else _TITLE
    heading = text(_MARGIN, 30, summary, width - 2 * _MARGIN, title)
    room = width - 3 * _MARGIN - width_px(summary, title.size_px, bold=title.bold)
    source = text(width - _MARGIN, 30, f"source: {topology.source}", max(room, 0), _NOTE, "end")
    canvas = rect(Box(x=0, y=0, width=width, height=height), "#ffffff", "none", radius_px=0)
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{_FONTS}">',
            f"<title>{escaped(summary)}</title>",
            f"<desc>{escaped(told)}</desc>",
            *(part for part in (canvas, heading, source, *parts) if part),
            "</svg>\n",
        ],
    )
