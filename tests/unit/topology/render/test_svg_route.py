from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

import pytest

from topology.collectives import Collective
from topology.graph import Edge, graph_of
from topology.model import Device, DeviceKind, Host, Link, Nic, Switch, SwitchKind, Topology
from topology.presets import preset
from topology.render.svg import svg
from topology.render.svg_marks import CUT, UNUSED, Role, busy_stroke, shade_of
from topology.render.svg_route import route_svg
from topology.render.svg_shapes import number
from topology.render.svg_text import width_px
from topology.routing.choose import Route, choose
from topology.routing.packing import packing
from topology.routing.ring import ring
from topology.schedule import Schedule
from topology.units import GB, GIB

SVG = "{http://www.w3.org/2000/svg}"
V100 = preset("dgx1_v100")
PAIRS = preset("a100_pcie_pairs_x8")
BOX = preset("pcie_l40s_x8")


def routed(topology: Topology, ranks: Sequence[int] = (), collective: Collective = Collective.all_gather) -> Route:
    group = [topology.devices[rank].id for rank in ranks]
    return choose(graph_of(topology, group), collective, GIB)


def drawn(topology: Topology, route: Route) -> ET.Element:
    return ET.fromstring(route_svg(topology, route).encode())


def hints(root: ET.Element) -> list[tuple[str, ET.Element]]:
    return [((group.findtext(f"{SVG}title") or "").split("\n")[0], group) for group in root.iter(f"{SVG}g")]


def texts(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def is_cut(group: ET.Element) -> bool:
    return any(path.attrib["stroke"] == CUT for path in group.iter(f"{SVG}path"))


def hinted(root: ET.Element, begin: str) -> ET.Element:
    found = [group for hint, group in hints(root) if hint.startswith(begin)]
    assert len(found) == 1, f"{len(found)} groups begin with {begin!r}"
    return found[0]


def first_path(group: ET.Element) -> dict[str, str]:
    return next(group.iter(f"{SVG}path")).attrib


def busy_plainly(route: Route, a: str, b: str) -> Fraction:
    """Seconds per byte that the busier direction of a link is in use, counted send by send."""
    schedule = route.chosen.entry.schedule
    assert schedule is not None
    nodes, seconds = schedule.graph.nodes, {}
    for send in schedule.sends:
        for edge in (schedule.graph.edges[at] for at in send.path):
            if edge.units is not None:
                key = (nodes[edge.tail].id, nodes[edge.head].id)
                seconds[key] = seconds.get(key, Fraction(0)) + schedule.chunks[send.chunk].share / edge.units
    most = max(seconds.values())
    return max(seconds.get((a, b), Fraction(0)), seconds.get((b, a), Fraction(0))) / most


@pytest.mark.parametrize("ranks", [(0, 3), (0, 1, 2), (0, 1, 2, 3), (4, 5, 6, 7), tuple(range(8))])
def test_width_and_colour_of_a_link_are_its_share_of_the_busiest(ranks: tuple[int, ...]) -> None:
    route = routed(V100, ranks)
    root = drawn(V100, route)
    labels = {device.id: f"GPU{at}" for at, device in enumerate(V100.devices)}
    for link in V100.links:
        if link.a not in labels or link.b not in labels:
            continue
        group = next(g for h, g in hints(root) if h.startswith(f"{labels[link.a]} - {labels[link.b]}:"))
        share = float(busy_plainly(route, link.a, link.b))
        look = first_path(group)
        if share:
            assert look["stroke"] == busy_stroke(share).colour
            assert float(look["stroke-width"]) == pytest.approx(busy_stroke(share).width_px, abs=0.051)
        else:
            assert look["stroke"] == UNUSED


def with_schedule(route: Route, schedule: Schedule) -> Route:
    return replace(route, chosen=replace(route.chosen, entry=replace(route.chosen.entry, schedule=schedule)))


@pytest.mark.parametrize("collective", [Collective.all_gather, Collective.reduce_scatter])
def test_the_busier_direction_of_a_link_counts(collective: Collective) -> None:
    topology = preset("rtx_a6000_x4")
    route = routed(topology, (), collective)
    route = with_schedule(route, packing(route.graph, collective))
    root = drawn(topology, route)
    for at, device in enumerate(topology.devices):
        (up,) = (link for link in topology.links if link.a == device.id and link.kind == "PCIe")
        width = float(first_path(hinted(root, f"GPU{at} - host bridge"))["stroke-width"])
        share = float(busy_plainly(route, up.a, up.b))
        assert width == pytest.approx(busy_stroke(share).width_px, abs=0.051)


def test_a_link_without_a_limit_is_as_busy_as_those_before_and_after_it() -> None:
    root = drawn(BOX, routed(BOX, (), Collective.all_to_all))
    widths = {
        first_path(group)["stroke-width"]
        for hint, group in hints(root)
        if hint.startswith(("host bridge - ", "PCIe switch - host bridge"))
    }
    assert widths == {number(busy_stroke(1.0).width_px)}


def test_links_used_in_one_direction_bear_an_arrow() -> None:
    route = routed(V100)
    route = with_schedule(route, ring(route.graph, Collective.all_gather, order=(0, 3, 2, 1, 5, 6, 7, 4)))
    root = drawn(V100, route)
    arrows = {hint.split(":")[0]: group for hint, group in hints(root) if group.find(f"{SVG}polygon") is not None}
    assert len(arrows) == 8
    arrow = hinted(root, "GPU0 - GPU3").find(f"{SVG}polygon")
    assert arrow is not None
    tip, *tail = ([float(value) for value in point.split(",")] for point in arrow.attrib["points"].split())
    assert tip[0] > max(x for x, _ in tail)
    back = hinted(root, "GPU2 - GPU3").find(f"{SVG}polygon")
    assert back is not None
    tip, *tail = ([float(value) for value in point.split(",")] for point in back.attrib["points"].split())
    assert tip[0] < min(x for x, _ in tail)


def test_only_the_links_of_the_cut_are_marked() -> None:
    route = routed(PAIRS, (), Collective.all_reduce)
    root = drawn(PAIRS, route)
    cut = route.bound.cut
    assert cut is not None
    marked = {hint.split(":")[0] for hint, group in hints(root) if ": " in hint and is_cut(group)}
    names = {device.id: f"GPU{at}" for at, device in enumerate(PAIRS.devices)} | {
        switch.id: "host bridge" for switch in PAIRS.switches
    }
    ends = [[names[route.graph.nodes[at].id.removesuffix("/up")] for at in (e.tail, e.head)] for e in _edges(route)]
    assert marked == {" - ".join(sorted(pair)) for pair in ends}
    assert {"GPU0", "GPU1"} == {name for pair in ends for name in pair if name.startswith("GPU")}
    fills = {at: next(hinted(root, f"GPU{at}:").iter(f"{SVG}rect")).attrib["fill"] for at in range(8)}
    assert {at for at, fill in fills.items() if fill == shade_of(Role.side).fill} == {0, 1}
    assert any("these 2 GPUs (0, 1)" in line for line in texts(root))


def _edges(route: Route) -> list[Edge]:
    return [route.graph.edges[at] for at in (route.bound.cut.edges if route.bound.cut else ())]


def test_the_mark_stands_at_the_side_that_the_words_name() -> None:
    root = drawn(BOX, routed(BOX, (), Collective.all_to_all))
    uplink = next(
        group for hint, group in hints(root) if is_cut(group) and hint.startswith("PCIe switch - host bridge")
    )
    line, *marks = [path.attrib["d"] for path in uplink.iter(f"{SVG}path")]
    lower = float(line.rsplit(" ", 1)[1])
    mark = float(marks[-1].rsplit(" ", 1)[1])
    assert 0 < lower - mark < 10
    sides = [hint for hint, group in hints(root) if hint.startswith("GPU") and _is_side(group)]
    assert len(sides) == 4


def _is_side(group: ET.Element) -> bool:
    return any(box.attrib["fill"] == shade_of(Role.side).fill for box in group.iter(f"{SVG}rect"))


def test_devices_outside_the_group_are_grey() -> None:
    root = drawn(V100, routed(V100, (0, 1, 2, 3)))
    for at in range(8):
        group = hinted(root, f"GPU{at}:")
        is_grey = next(group.iter(f"{SVG}rect")).attrib["fill"] == shade_of(Role.outside).fill
        assert is_grey == (at > 3)
        ink = {text.attrib["fill"] for text in group.iter(f"{SVG}text")}
        assert (shade_of(Role.outside).ink in ink) == (at > 3)
    assert "not in the group" in texts(root)
    assert "all-gather of 1 GiB over 4 GPUs: ring" in texts(root)


def test_sums_in_the_switch_stress_every_nvlink_of_the_group() -> None:
    topology = preset("dgx_h100")
    route = routed(topology, (), Collective.all_reduce)
    assert route.chosen.entry.schedule is None
    root = drawn(topology, route)
    widths = [float(first_path(hinted(root, f"GPU{at} - NVSwitch"))["stroke-width"]) for at in range(8)]
    assert widths == [busy_stroke(1.0).width_px] * 8
    assert {first_path(group)["stroke"] for hint, group in hints(root) if hint.startswith("GPU0 - PCIe")} == {UNUSED}


def machine(
    links: Sequence[Link], *, hosts: int = 1, gpus: int = 2, name: str = "box", network: Switch | None = None
) -> Topology:
    made, switches = (
        [],
        [Switch(id=f"{name}{at}/cpu", kind=SwitchKind.socket, host=f"{name}{at}") for at in range(hosts)],
    )
    for at in range(hosts):
        host = f"{name}{at}"
        devices = tuple(
            Device(id=f"{host}/g{g}", host=host, kind=DeviceKind.gpu, name="L4 <&>", memory_bytes=24 * GIB, index=g)
            for g in range(gpus)
        )
        nic = Nic(id=f"{host}/eth", name="eth", kind="ethernet", bytes_per_second=12.5 * GB)
        made.append(Host(name=host, memory_bytes=None, cores=8, devices=devices, nics=(nic,)))
        links = [*links, Link(a=nic.id, b=f"{host}/cpu", kind="PCIe", source="made", bytes_per_second=32 * GB)]
        links += [
            Link(a=device.id, b=f"{host}/cpu", kind="PCIe", source="made", bytes_per_second=16 * GB)
            for device in devices
        ]
    return Topology(hosts=tuple(made), links=tuple(links), switches=(*switches, *([network] if network else [])))


def test_names_are_escaped_and_shown() -> None:
    topology = machine([], name='<b> & "c" ')
    root = drawn(topology, routed(topology, (), Collective.all_reduce))
    assert "L4 <&>" in texts(root)
    assert '<b> & "c" 0' in texts(root)


def test_a_cable_between_hosts_is_marked_on_both_sides() -> None:
    cable = Link(a="box0/eth", b="box1/eth", kind="NET", source="made", bytes_per_second=GB)
    topology = machine([cable], hosts=2)
    root = drawn(topology, routed(topology, (), Collective.all_reduce))
    groups = [group for hint, group in hints(root) if "eth - direct link" in hint]
    assert len(groups) == 2
    assert all(first_path(group)["stroke"] != UNUSED for group in groups)
    assert sum(map(is_cut, groups)) == 1


def test_hosts_that_are_alike_bear_the_marks_together() -> None:
    network = Switch(id="net", kind=SwitchKind.network)
    wires = [Link(a=f"box{at}/eth", b="net", kind="NET", source="made", bytes_per_second=12.5 * GB) for at in range(10)]
    topology = machine(wires, hosts=10, gpus=1, network=network)
    # The last host is not in the group, but the one that is drawn stands for it and for nine that are.
    root = drawn(topology, routed(topology, range(9)))
    assert "box0  x 10".replace("  ", " ") in [line.replace("  ", " ") for line in texts(root)]
    assert first_path(hinted(root, "box0 eth - net"))["stroke"] != UNUSED
    assert _is_side(hinted(root, "GPU0:")) or shade_of(Role.group).fill in {
        box.attrib["fill"] for box in hinted(root, "GPU0:").iter(f"{SVG}rect")
    }
    assert not list(root.iter(f"{SVG}circle"))


def test_without_a_line_for_the_cut_the_picture_says_so() -> None:
    topology = preset("cpu")
    root = drawn(topology, routed(topology, (), Collective.all_reduce))
    assert any("no line in the" in line for line in texts(root))
    assert any(line.startswith("The cut: each CPU slot") for line in texts(root))
    assert "across the cut" not in texts(root)


def test_a_ring_is_numbered_in_its_order() -> None:
    route = routed(V100, (), Collective.all_reduce)
    root = drawn(V100, route)
    schedule = route.chosen.entry.schedule
    assert schedule is not None
    sends = {(send.source, send.target) for send in schedule.sends if send.chunk == 0}
    places = {}
    for at in range(8):
        group = hinted(root, f"GPU{at}:")
        places[int(list(group.iter(f"{SVG}text"))[-1].text or "")] = at
    assert sorted(places) == list(range(1, 9))
    assert all((places[at], places[at % 8 + 1]) in sends for at in range(1, 9))


@pytest.mark.parametrize("name", ["dgx1_v100", "2x24gb-pcie", "pcie_l40s_x8", "a100_pcie_pairs_x8", "dgx_h100", "cpu"])
def test_no_text_leaves_the_picture_and_no_label_lies_on_another_or_on_a_mark(name: str) -> None:
    topology = preset(name)
    root = drawn(topology, routed(topology, (), Collective.all_reduce))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    words = [(box, is_mark) for box, is_mark in boxes(root, 0.0, 0.0)]
    for box, _ in words:
        assert box.left >= 0
        assert box.right <= width + 0.1
        assert box.bottom <= height
    for (one, one_is_mark), (other, other_is_mark) in combinations(words, 2):
        assert (one_is_mark and other_is_mark) or not one.meets(other), f"{one} lies on {other}"


@dataclass(frozen=True)
class Area:
    what: str
    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: Area) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        return across > 0.5 and min(self.bottom, other.bottom) - max(self.top, other.top) > 0.5


def boxes(element: ET.Element, dx: float, dy: float) -> Iterator[tuple[Area, bool]]:
    """What texts and marks of the cut cover; digits and letters without what hangs below the line."""
    moved = element.attrib.get("transform", "")
    if moved:
        x, y = moved.removeprefix("translate(").removesuffix(")").split()
        dx, dy = dx + float(x), dy + float(y)
    if element.tag == f"{SVG}text":
        size = float(element.attrib["font-size"])
        wide = width_px(element.text or "", size, bold="font-weight" in element.attrib)
        x, y = float(element.attrib["x"]) + dx, float(element.attrib["y"]) + dy
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[element.attrib.get("text-anchor", "start")]
        yield Area(element.text or "", left, left + wide, y - 0.73 * size, y), False
    if element.tag == f"{SVG}path" and element.attrib["stroke"] == CUT:
        start, end = element.attrib["d"].removeprefix("M").split("L")
        (x0, y0), (x1, y1) = (map(float, point.split()) for point in (start, end))
        half = float(element.attrib["stroke-width"]) / 2
        yield Area("the cut", x0 + dx, x1 + dx, min(y0, y1) + dy - half, max(y0, y1) + dy + half), True
    for child in element:
        yield from boxes(child, dx, dy)


def test_the_same_route_gives_the_same_picture_and_the_machine_stays_as_it_was() -> None:
    before = svg(V100)
    route = routed(V100)
    assert route_svg(V100, route) == route_svg(V100, route)
    assert svg(V100) == before
    assert CUT not in before
