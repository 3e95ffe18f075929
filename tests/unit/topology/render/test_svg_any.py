"""Whatever a topology holds, its picture is well-formed, the same every time, and no text leaves its box."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, SwitchKind, Topology
from topology.render.svg import svg
from topology.render.svg_text import width_px

SVG = "{http://www.w3.org/2000/svg}"
NAMES = st.one_of(
    st.sampled_from(
        ["eth0", "mlx5_0", "H100 80GB HBM3", "a" * 90, "<&\"'>", "]]>", "\U0001f600 \u202e", "\x00\x1b[1m"]
    ),
    st.text(st.characters(), min_size=1, max_size=40),
)
RATES = st.sampled_from([None, 0.0, 1e6, 12.5e9, 4.5e11, 1e14])
KINDS = st.sampled_from(["PCIe", "CPU", "SYS", "port", "virtual", "NV1", "NV4", "NV18", "XGMI4", "C2C", "NET", "odd"])
NUMAS = st.sampled_from([None, 0, 1, 7])


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    hosts = [draw(_host(f"{draw(NAMES)}{at}", at)) for at in range(draw(st.integers(1, 3)))]
    owners = st.sampled_from([None, *(host.name for host in hosts)])
    switches = [
        Switch(
            id=f"s{at}",
            kind=draw(st.sampled_from(SwitchKind)),
            host=draw(owners),
            name=draw(st.none() | NAMES),
            numa=draw(NUMAS),
        )
        for at in range(draw(st.integers(0, 6)))
    ]
    devices = [device for host in hosts for device in host.devices]
    ids = [*(d.id for d in devices), *(n.id for host in hosts for n in host.nics), *(s.id for s in switches)]
    links = (
        [
            Link(
                a=a,
                b=b,
                kind=draw(KINDS),
                source=draw(NAMES),
                bytes_per_second=draw(RATES),
                assumed_bytes_per_second=draw(RATES),
            )
            for a, b in draw(st.lists(st.permutations(ids).map(lambda some: some[:2]), max_size=14))
        ]
        if len(ids) > 1
        else []
    )
    pairs = [
        Pair(a=a.id, b=b.id, kind=draw(st.sampled_from(["NV4", "NV12", "PIX", "SYS"])))
        for a, b in combinations(devices, 2)
        if a.host == b.host and draw(st.booleans())
    ]
    return Topology(
        hosts=tuple(hosts),
        switches=tuple(switches),
        links=tuple(links),
        pairs=tuple(pairs),
        warnings=tuple(draw(st.lists(NAMES, max_size=6))),
        source=draw(NAMES),
    )


@st.composite
def _host(draw: st.DrawFn, name: str, rank: int) -> Host:
    def device(at: int) -> Device:
        is_cpu = draw(st.integers(0, 4)) == 0
        return Device(
            id=f"{rank}.d{at}",
            host=name,
            kind=DeviceKind.cpu if is_cpu else DeviceKind.gpu,
            name=draw(NAMES),
            memory_bytes=draw(st.sampled_from([None, 0, 80 * 2**30])),
            numa=draw(NUMAS),
            cores=1 if is_cpu else 0,
            index=draw(st.sampled_from([None, at])),
            parent=draw(st.sampled_from([None, None, f"{rank}.d0", "elsewhere"])),
            cpus=draw(st.none() | NAMES),
            pcie=draw(st.sampled_from([None, Pcie(), Pcie(max_generation=5, max_width=16)])),
        )

    nics = tuple(
        Nic(id=f"{rank}.n{at}", name=draw(NAMES), kind=draw(NAMES), bytes_per_second=draw(RATES), numa=draw(NUMAS))
        for at in range(draw(st.integers(0, 3)))
    )
    return Host(
        name=name,
        memory_bytes=None,
        cores=draw(st.sampled_from([None, 8])),
        cpu_name=draw(st.none() | NAMES),
        devices=tuple(device(at) for at in range(draw(st.integers(0, 5)))),
        nics=nics,
    )


@given(topologies())
@settings(max_examples=60)
def test_any_topology_gives_a_picture(topology: Topology) -> None:
    picture = svg(topology)
    assert picture == svg(topology)
    root = ET.fromstring(picture.encode())
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title") is not None
    assert root.find(f"{SVG}desc") is not None


@given(topologies())
@settings(max_examples=30)
def test_no_text_leaves_the_box_it_is_in_or_the_picture(topology: Topology) -> None:
    root = ET.fromstring(svg(topology).encode())
    for group in root.iter(f"{SVG}g"):
        boxes, texts = group.findall(f"{SVG}rect"), group.findall(f"{SVG}text")
        if len(boxes) == 1 and "port of" not in (group.findtext(f"{SVG}title") or ""):
            for text in texts:
                left, right = _range(text)
                start = float(boxes[0].attrib["x"])
                assert start <= left
                assert right <= start + float(boxes[0].attrib["width"]) + 0.1
    for element, shift in _placed(root, 0.0):
        if element.tag == f"{SVG}text":
            assert shift + _range(element)[1] <= float(root.attrib["width"])


def _placed(element: Any, shift: float) -> Any:
    moved = element.attrib.get("transform", "")
    if moved:
        shift += float(moved.removeprefix("translate(").split()[0])
    yield element, shift
    for child in element:
        yield from _placed(child, shift)


def _range(text: Any) -> tuple[float, float]:
    width = width_px(text.text, float(text.attrib["font-size"]), bold="font-weight" in text.attrib)
    at = float(text.attrib["x"])
    left = {"start": at, "middle": at - width / 2, "end": at - width}[text.attrib.get("text-anchor", "start")]
    return left, left + width
