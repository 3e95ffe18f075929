"""Topology files inside other text, and what this package adds to them."""

from __future__ import annotations

import html
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.checks import normal_pci
from topology.errors import TopologyError
from topology.hardware import peak
from topology.model import SwitchKind, Topology
from topology.probe.files import read_topology
from topology.probe.nccl_xml import parse_nccl_xml, recognises
from topology.tables.pci_ids import AMD, NVIDIA, NVIDIA_BOARDS, NVIDIA_MEMORY_GIB
from topology.units import GIB

TEXT = """\
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2684">
        <gpu dev="0" sm="89" rank="0"/>
      </pci>
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2684">
        <gpu dev="1" sm="89" rank="1"/>
      </pci>
    </pci>
  </cpu>
</system>
"""
LOG = "node{0}:{1}:{1} [0] 2026-01-0{0} NCCL INFO "


def marked(mark: str, text: str = TEXT) -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


def logged(text: str = TEXT) -> str:
    return "".join(f"{LOG.format(at % 9 + 1, 100 + at)}{line}\n" for at, line in enumerate(text.splitlines()))


INSIDE = {
    "fence": f"My topology is\n\n```xml\n{TEXT}```\nand more words.\n",
    "quoted": marked("> "),
    "quoted twice": "Someone wrote:\n" + marked(">> ") + "> thanks\n",
    "comment": marked("# "),
    "difference": "+++ b/topo.xml\n" + marked("+"),
    "here document": f"#!/bin/bash\ncat > /opt/topo.xml <<'EOF'\n{TEXT}EOF\ncat > graph.xml <<'EOF'\n<graphs/>\nEOF\n",
    "log": "node1:1:1 [0] NCCL INFO Bootstrap\n" + logged() + "node1:1:1 [0] NCCL INFO done\n",
    "numbered": "".join(f"{at:4}\t{line}\n" for at, line in enumerate(TEXT.splitlines(), 1)),
    "escaped": f"<html><body><pre>{html.escape(TEXT)}</pre></body></html>",
    "escaped, quoted": marked("> ", html.escape(TEXT)),
    "escaped page": f"<!doctype html><pre>{html.escape(TEXT, quote=False)}</pre>",
    "prompt after": TEXT + "root@box:~# ",
    "one line": "found " + TEXT.replace("\n", " "),
    "copies": TEXT + marked("  "),
    "comments around": f"<!-- <system version='1'> -->\n{TEXT}<!-- </system> -->\n",
    "returns": marked("> ").replace("\n", "\r\n"),
    "wrapped": marked("> ").replace(' link_speed="16', '\n> link_speed="16'),
}


def kinds(topology: Topology) -> list[tuple[str | None, str, str]]:
    return [(device.pci, device.name, topology.pairs[0].kind) for device in topology.gpus]


def refused(content: bytes) -> TopologyError:
    with pytest.raises(TopologyError) as caught:
        parse_nccl_xml(content, host="box")
    return caught.value


@pytest.mark.parametrize("form", INSIDE)
def test_a_file_inside_other_text_is_found(form: str, tmp_path: Path) -> None:
    name = "NVIDIA GeForce RTX 4090"
    wanted = [("0000:11:00.0", name, "PIX"), ("0000:12:00.0", name, "PIX")]
    assert recognises(INSIDE[form].encode())
    assert kinds(parse_nccl_xml(INSIDE[form].encode(), host="box")) == wanted
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        path = tmp_path / f"{encoding}.txt"
        path.write_bytes(INSIDE[form].encode(encoding))
        assert kinds(read_topology(path)) == wanted


@pytest.mark.parametrize("form", ["fence", "quoted", "comment", "here document", "log", "numbered", "escaped"])
def test_damage_inside_other_text_is_refused_by_line(form: str) -> None:
    text = INSIDE[form]
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if "0000:12:00.0" in line)
    broken = "".join([*lines[:at], lines[at].replace("busid=", "busid "), *lines[at + 1 :]])
    cut = "".join(lines[:at])
    for damaged in (broken, cut):
        assert recognises(damaged.encode())
        error = refused(damaged.encode())
        assert "XML" in error.found
        line = int(error.found.split()[1].rstrip(":"))
        assert line == at + 1 or (damaged is cut and at <= line <= at + 1)


def test_lines_of_another_rank_between_are_no_part_of_it() -> None:
    lines = logged().splitlines(keepends=True)
    error = refused("".join([*lines[:3], "node2:7:7 [1] NCCL INFO Channel 00\n", *lines[3:]]).encode())
    assert error.found.startswith("line ")
    assert "text between XML elements: 'node2:7:7" in error.found


def test_one_of_several_machines_is_not_chosen() -> None:
    other = TEXT.replace("0000:12", "0000:13")
    found = refused(f"a\n{TEXT}\nb\n{other}".encode()).found
    assert found.startswith("line 16: another XML <system> element, which differs from that on line 2")
    cut = TEXT[:200]
    assert "line 5: " in refused(f"a\n{cut}\n{TEXT}".encode()).found


def test_a_matrix_beside_it_goes_first() -> None:
    assert not recognises(f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\n{TEXT}".encode())


@pytest.mark.parametrize(
    "content",
    [
        b"x<system version='1'>" * 100_000,
        b"x" + b"<system " * 500_000 + b"version='1'>",
        b"x&lt;system version=" + b"&amp;" * 1_000_000,
        b"> <system version='1'>\n" + b"> a\n" * 1_000_000,
        TEXT.encode() + b" " * 4_000_000 + b"x",
        TEXT.encode() + b"<!--" * 1_000_000,
        b"a\n" + (b"y" * 100 + b"\n") * 40_000 + TEXT.encode() * 60,
        b"<!---->" * 500_000,
    ],
    ids=["starts", "open", "escapes", "prefixes", "blanks", "comments", "copies", "empty-comments"],
)
def test_hostile_text_takes_bounded_time(content: bytes) -> None:
    started = time.process_time()
    recognises(content)
    try:
        parse_nccl_xml(content, host="box")
    except TopologyError as error:
        assert error.found.startswith("line ")  # noqa: PT017
    assert time.process_time() - started < 2


@given(st.text(), st.text(), st.sampled_from(["", "> ", "1: ", "<b>", "&"]))
def test_any_text_around_is_refused_or_passed_over(before: str, after: str, mark: str) -> None:
    content = (before + marked(mark) + after).encode("utf-8", "replace")
    recognises(content)
    try:
        found = parse_nccl_xml(content, host="box")
    except TopologyError as error:
        assert error.found.startswith("line ")  # noqa: PT017
    else:
        assert len(found.gpus) == 2


def test_functions_without_a_class_are_no_gpus_and_said_so() -> None:
    bare = '<system version="1"><cpu numaid="0"><pci busid="0000:00:1b.0"/><pci busid="0000:00:1c.0"/></cpu></system>'
    topology = parse_nccl_xml(bare.encode(), host="box")
    text = "no GPU is classed in this file: 2 function(s) without a class, of which NCCL finds the kind on the machine"
    assert topology.warnings[0] == text
    empty = parse_nccl_xml(b"<system version='1'><cpu numaid='0'/></system>", host="box")
    assert empty.warnings[0] == "no GPU is in this file"
    assert not [text for text in parse_nccl_xml(TEXT.encode(), host="box").warnings if "no GPU is" in text]


def own(*tops: tuple[str, str], numa: int = 0) -> str:
    gpus = (f'<pci busid="{at}" class="0x03" {more}><gpu dev="0"/></pci>' for at, more in tops)
    return f'<cpu numaid="{numa}">{"".join(gpus)}</cpu>'


def told(name: str) -> str:
    return f'trainmaster_bridge="{name}"'


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        (("0000:01:00.0", told("pci0000:00")), ("0000:02:00.0", told("pci0000:00")), "PHB"),
        (("0000:01:00.0", told("pci0000:00")), ("0000:02:00.0", told("pci0000:01")), "NODE"),
        (("0000:01:00.0", told("pci0000:00")), ("0000:01:00.1", told("pci0000:01")), "NODE"),
        (("0000:01:00.0", told("")), ("0000:01:00.1", told("")), "NODE"),
        (("0000:01:00.0", ""), ("0000:01:00.1", ""), "PHB"),
        (("0000:01:00.0", told("bridge0000:02")), ("0000:02:00.1", ""), "PHB"),
    ],
)
def test_host_bridges_that_the_file_tells(a: tuple[str, str], b: tuple[str, str], kind: str) -> None:
    topology = parse_nccl_xml(f"<system version='1'>{own(a, b)}</system>".encode(), host="box")
    assert [pair.kind for pair in topology.pairs] == [kind]
    bridges = {switch.id for switch in topology.switches if switch.kind is SwitchKind.bridge}
    assert all(name.startswith(("box/pci0000:0", "box/bridge0000:0")) for name in bridges)


def test_one_bridge_under_two_nodes_is_two() -> None:
    tops = [(f"0000:0{at}:00.0", told("pci0")) for at in (1, 2)]
    text = f"<system version='1'>{own(tops[0])}{own(tops[1], numa=1)}</system>"
    topology = parse_nccl_xml(text.encode(), host="box")
    assert [pair.kind for pair in topology.pairs] == ["SYS"]
    assert [s.id for s in topology.switches if s.kind is SwitchKind.bridge] == ["box/pci0", "box/pci0.1"]


@pytest.mark.parametrize("name", ["node0", "pci 1", "pci/1", "pci" + "1" * 90])
def test_a_bridge_of_another_name_is_refused(name: str) -> None:
    content = f"<system version='1'>{own(('0000:01:00.0', told(name)))}</system>"
    assert "line 1: <pci> with trainmaster_bridge=" in refused(content.encode()).found


def test_every_id_has_a_name_and_every_figure_an_id() -> None:
    for device in (*NVIDIA, *AMD, *(one for pair in NVIDIA_BOARDS for one in pair), *NVIDIA_MEMORY_GIB):
        assert len(device) == 4
        assert normal_pci(f"{device}:00:00.0") is not None
    for device, size in NVIDIA_MEMORY_GIB.items():
        found = peak(NVIDIA[device], size * GIB)
        assert found is not None
        assert found.memory_bytes == size * GIB


@pytest.mark.parametrize(
    ("vendor", "device", "board", "name", "gib"),
    [
        ("10de", "2684", "", "NVIDIA GeForce RTX 4090", 24),
        ("10de", "2230", "1459", "NVIDIA RTX A6000", 48),
        ("10de", "2324", "17a6", "NVIDIA H800", 80),
        ("10de", "26BA", "1957", "NVIDIA L20", 48),
        ("10de", "25b6", "157e", "NVIDIA A2", 16),
        ("10de", "25b6", "0000", "NVIDIA GPU 10de:25b6", None),
        ("10de", "2805", "", "NVIDIA GeForce RTX 4060 Ti", 16),
        ("10de", "2803", "", "NVIDIA GeForce RTX 4060 Ti", 8),
        ("1002", "74a1", "", "AMD Instinct MI300X", 192),
        ("1002", "0001", "", "AMD GPU 1002:0001", None),
        ("1234", "2684", "", "0x1234 GPU 1234:2684", None),
    ],
)
def test_names_and_memory_by_pci_id(vendor: str, device: str, board: str, name: str, gib: int | None) -> None:
    ids = f'vendor="0x{vendor}" device="0x{device}" subsystem_device="0x{board}"'
    content = f"<system version='1'>{own(('0000:01:00.0', ids))}</system>"
    gpu = parse_nccl_xml(content.encode(), host="box").gpus[0]
    assert gpu.name == name
    assert gpu.memory_bytes == (None if gib is None else gib * GIB)
