from __future__ import annotations

import importlib.util
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Switch, SwitchKind, Topology
from topology.render.svg import svg
from topology.render.svg_style import DEGRADED, ISLANDS
from topology.units import GB, GIB

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = Path(__file__).parents[4] / "docs" / "pictures"


def gpus(
    count: int, host: str = "box", numa: int | None = None, name: str = "NVIDIA H100 80GB HBM3"
) -> tuple[Device, ...]:
    return tuple(
        Device(
            id=f"{host}-GPU{at}",
            host=host,
            kind=DeviceKind.gpu,
            name=name,
            memory_bytes=80 * GIB,
            numa=numa,
            index=at,
        )
        for at in range(count)
    )


def machine(devices: tuple[Device, ...], *links: Link, nics: tuple[Nic, ...] = (), **more: Any) -> Topology:
    host = Host(name=devices[0].host, memory_bytes=512 * GIB, cores=64, devices=devices, nics=nics)
    return Topology(hosts=(host,), links=links, **more)


def nvlink(a: str, b: str, count: int, **rate: Any) -> Link:
    return Link(a=a, b=b, kind=f"NV{count}", source="told so", **(rate or {"bytes_per_second": count * 25.0 * GB}))


def switched(counts: list[int], **rate: Any) -> Topology:
    devices = gpus(len(counts))
    links = [nvlink(d.id, "sw", count, **rate) for d, count in zip(devices, counts, strict=True)]
    switches = (Switch(id="sw", kind=SwitchKind.nvswitch, host="box"),)
    return machine(devices, *links, switches=switches)


def drawn(topology: Topology) -> ET.Element:
    return ET.fromstring(svg(topology))


def texts(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def hinted(root: ET.Element, begin: str) -> ET.Element:
    found = [group for group in root.iter(f"{SVG}g") if (group.findtext(f"{SVG}title") or "").startswith(begin)]
    assert len(found) == 1, f"{len(found)} groups begin with {begin!r}"
    return found[0]


def stroke_px(root: ET.Element, begin: str) -> float:
    line = hinted(root, begin).find(f"{SVG}path")
    assert line is not None
    return float(line.attrib["stroke-width"])


def make_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", PICTURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not PICTURES.exists(), reason="no docs beside the tests")
def test_the_pictures_of_the_docs_are_those_of_their_machines() -> None:
    made = make_module()
    for name, make in made.MACHINES.items():
        assert (PICTURES / f"{name}.svg").read_text(encoding="utf-8") == svg(make()), (
            f"run docs/pictures/make.py: {name}"
        )


def test_every_part_has_a_box_with_all_that_is_known_of_it() -> None:
    name = 'A & B <"quoted"> ' + "very " * 30 + "long"
    nic = Nic(id="box/eth0", name="eth0", kind="ethernet", bytes_per_second=12.5 * GB)
    root = drawn(machine(gpus(1, name=name), nics=(nic,)))
    hint = hinted(root, "GPU0").findtext(f"{SVG}title") or ""
    assert name in hint
    assert "id: box-GPU0" in hint
    assert "Eth 12.5 GB/s" in texts(root)
    assert any(text.endswith("\u2026") for text in texts(root))


def test_lines_widen_with_capacity_and_their_tooltips_tell_rate_and_source() -> None:
    root = drawn(switched([4, 18]))
    assert stroke_px(root, "GPU0 - NVSwitch") < stroke_px(root, "GPU1 - NVSwitch")
    hint = hinted(root, "GPU1 - NVSwitch").findtext(f"{SVG}title") or ""
    assert "NV18, 450.0 GB/s per direction" in hint
    assert "source: told so" in hint


def test_an_unknown_rate_is_dashed_and_shows_what_is_assumed() -> None:
    root = drawn(switched([4, 4], assumed_bytes_per_second=100.0 * GB))
    assert "stroke-dasharray" in next(hinted(root, "GPU0 - NVSwitch").iter(f"{SVG}path")).attrib
    assert "\u2248100" in texts(root)
    assert "NVSwitch \u00b7 \u2248100 GB/s" in texts(root)
    assert "100.0 GB/s assumed" in (hinted(root, "GPU0 - NVSwitch").findtext(f"{SVG}title") or "")
    known = drawn(switched([4, 4]))
    assert "stroke-dasharray" not in next(hinted(known, "GPU0 - NVSwitch").iter(f"{SVG}path")).attrib


def test_fewer_nvlinks_than_the_peers_have_are_red() -> None:
    root = drawn(switched([18, 18, 16, 18]))
    colours = {at: next(hinted(root, f"GPU{at} - NVSwitch").iter(f"{SVG}path")).attrib["stroke"] for at in range(4)}
    assert [at for at, colour in colours.items() if colour == DEGRADED] == [2]
    assert "fewer NVLinks than its peers" in texts(root)


def test_a_mesh_that_mixes_one_and_two_nvlinks_by_design_is_not_red() -> None:
    ids = [device.id for device in gpus(3)]
    links = [nvlink(ids[0], ids[1], 1), nvlink(ids[1], ids[2], 2), nvlink(ids[0], ids[2], 2)]
    assert DEGRADED not in svg(machine(gpus(3), *links))


def test_islands_are_tinted() -> None:
    devices = gpus(5)
    pairs = (Pair(a=devices[0].id, b=devices[1].id, kind="NV4"), Pair(a=devices[2].id, b=devices[3].id, kind="NV4"))
    root = drawn(machine(devices, pairs=pairs))
    fills = [next(hinted(root, f"GPU{at}:").iter(f"{SVG}rect")).attrib["fill"] for at in range(5)]
    assert fills[:4] == [ISLANDS[0]] * 2 + [ISLANDS[1]] * 2
    assert fills[4] not in ISLANDS
    assert "NVLink island: GPU2, GPU3" in texts(root)


def test_pairs_without_links_still_show_who_is_joined() -> None:
    devices = gpus(8)
    pairs = tuple(Pair(a=a.id, b=b.id, kind="NV12") for a, b in combinations(devices, 2))
    assert "NVLink, NV12 between any two" in texts(drawn(machine(devices, pairs=pairs)))
    two = machine(devices[:2], pairs=pairs[:1])
    assert hinted(drawn(two), "GPU0 - GPU1: NV12, rate unknown") is not None


def test_without_a_pcie_tree_devices_are_grouped_by_numa_node() -> None:
    devices = (*gpus(2, numa=0), *(replace(one, id=f"{one.id}b", index=9, numa=1) for one in gpus(1)))
    shown = texts(drawn(machine(devices)))
    assert "NUMA node 0" in shown
    assert "NUMA node 1" in shown
    assert "NUMA node unknown" in texts(drawn(machine(gpus(1))))


def test_cpu_slots_are_a_grid() -> None:
    devices = tuple(
        Device(id=f"c{at}", host="c", kind=DeviceKind.cpu, name="CPU", memory_bytes=GIB, index=at, cores=1)
        for at in range(20)
    )
    root = drawn(machine(devices))
    assert "CPU19" in texts(root)
    rows = {next(hinted(root, f"CPU{at}:").iter(f"{SVG}rect")).attrib["y"] for at in range(20)}
    assert len(rows) == 3


def test_mig_slices_are_in_the_box_of_their_gpu() -> None:
    whole = replace(gpus(1)[0], uuid="GPU-whole", mig=True)
    slices = tuple(replace(whole, id=f"MIG-{at}", uuid=None, mig=None, parent="GPU-whole", index=0) for at in (0, 1))
    root = drawn(machine((whole, *slices)))
    outer, inner = (next(hinted(root, f"{name}:").iter(f"{SVG}rect")).attrib for name in ("GPU0", "GPU0.1"))
    assert float(outer["x"]) < float(inner["x"])
    assert float(outer["y"]) < float(inner["y"]) < float(outer["y"]) + float(outer["height"])
    assert "1 host, 1 GPU, 2 MIG slices" in texts(root)


def test_an_nvlink_begins_at_the_edge_of_its_gpu() -> None:
    sliced = replace(gpus(1)[0], parent="GPU-elsewhere")
    root = drawn(machine((sliced, *gpus(2)[1:]), nvlink("box-GPU1", "box-GPU0", 4)))
    boxes = [next(hinted(root, begin).iter(f"{SVG}rect")).attrib for begin in ("MIG slices", "GPU1:")]
    bottoms = [float(box["y"]) + float(box["height"]) for box in boxes]
    line = next(hinted(root, "GPU0.0 - GPU1").iter(f"{SVG}path")).attrib["d"]
    points = [line.removeprefix("M").split("L")[0], line.rsplit("L", maxsplit=1)[-1]]
    assert [float(point.split()[1]) for point in points] == bottoms


def test_a_circle_of_links_is_drawn_all_the_same() -> None:
    ids = ("p0", "p1")
    switches = tuple(Switch(id=name, kind=SwitchKind.pcie, host="box") for name in ids)
    links = [Link(a=a, b=b, kind="PCIe", source="odd") for a, b in (("box-GPU0", "p0"), ids, ids[::-1])]
    assert texts(drawn(machine(gpus(1), *links, switches=switches))).count("PCIe switch") == 2


def test_a_long_chain_of_switches_ends_in_time() -> None:
    ids = ["box-GPU0", *(f"p{at}" for at in range(3000))]
    switches = tuple(Switch(id=name, kind=SwitchKind.pcie, host="box") for name in ids[1:])
    links = [Link(a=a, b=b, kind="PCIe", source="odd") for a, b in pairwise(ids)]
    root = drawn(machine(gpus(1), *links, switches=switches))
    assert 0 < texts(root).count("PCIe switch") < 20


def hosts(count: int, *, odd: int | None = None) -> Topology:
    made, links, switches, pairs = [], [], [Switch(id="net", kind=SwitchKind.network)], []
    for rank in range(count):
        name = f"node{rank}"
        devices = gpus(8, name, name="T4" if rank == odd else "H100")
        nic = Nic(id=f"{name}/ib0", name="ib0", kind="infiniband", bytes_per_second=50.0 * GB)
        made.append(Host(name=name, memory_bytes=None, cores=8, devices=devices, nics=(nic,)))
        switches.append(Switch(id=f"{name}/sw", kind=SwitchKind.nvswitch, host=name))
        links += [nvlink(device.id, f"{name}/sw", 18) for device in devices]
        links.append(Link(a=nic.id, b="net", kind="NET", source="made", bytes_per_second=50.0 * GB))
        pairs += [Pair(a=a.id, b=b.id, kind="NV18") for a, b in combinations(devices, 2)]
    return Topology(hosts=tuple(made), links=tuple(links), switches=tuple(switches), pairs=tuple(pairs))


def test_a_thousand_hosts_are_drawn_once_for_each_kind() -> None:
    topology = hosts(1024, odd=5)
    begin = time.process_time()
    picture = svg(topology)
    assert time.process_time() - begin < 2
    assert len(picture) < 100_000
    shown = texts(ET.fromstring(picture))
    assert "node0  x 1023" in shown
    assert "node5" in shown
    assert shown.count("GPU7") == 2
    assert any(line.startswith("node0 stands for 1023 hosts") for line in shown)


def test_two_hosts_meet_in_their_network_switch() -> None:
    root = drawn(hosts(2))
    assert "net" in texts(root)
    for rank in (0, 1):
        assert "50.0 GB/s" in (hinted(root, f"node{rank} ib0 - net").findtext(f"{SVG}title") or "")


def test_hosts_without_a_switch_between_them_are_joined_directly() -> None:
    topology = hosts(2)
    cable = Link(a="node0/ib0", b="node1/ib0", kind="NET", source="made", bytes_per_second=50.0 * GB)
    links = tuple(link for link in topology.links if link.kind != "NET")
    switches = tuple(switch for switch in topology.switches if switch.id != "net")
    assert "direct link" in texts(drawn(replace(topology, links=(*links, cable), switches=switches)))


def test_many_kinds_of_hosts_are_named_and_not_drawn() -> None:
    topology = Topology(hosts=tuple(Host(name=f"h{at}", memory_bytes=None, cores=at, devices=()) for at in range(12)))
    assert any(line.startswith("4 more hosts of other kinds") and "h11" in line for line in texts(drawn(topology)))


def test_warnings_are_counted_and_the_first_ones_shown() -> None:
    shown = texts(drawn(machine(gpus(1), warnings=tuple(f"trouble {at}" for at in range(6)))))
    assert "6 warnings, the first 4:" in shown
    assert "\u2022 trouble 3" in shown
    assert "\u2022 trouble 4" not in shown
