from __future__ import annotations

import contextlib
import time
import tracemalloc
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.codec import from_json, to_json
from topology.errors import TopologyError
from topology.model import SwitchKind, Topology
from topology.probe.nccl_xml import parse_nccl_xml, recognises

CORPUS = Path(__file__).parents[5] / "shared/corpus/nccl_xml"
DATA = Path(__file__).parent / "data"
# Counts of the index that no honest reading can place: NVLinks that end at their own GPU, and a rate of 200 Tb/s.
SELF_LINKED = {"azure/ncv4-topo.xml": 48}
NO_RATE = {f"cxi{at}": 200_000_000 for at in range(4)}


def parse(*cpus: str, version: int = 1) -> Topology:
    text = f'<system version="{version}">\n' + "\n".join(cpus) + "\n</system>\n"
    return parse_nccl_xml(text.encode(), host="box")


def cpu(*inside: str, numa: int = 0, more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>\n' + "\n".join(inside) + "\n</cpu>"


def pci(address: str, *inside: str, kind: str = "0x060400", speed: str = "16 GT/s", width: str = "16") -> str:
    head = f'<pci busid="{address}" class="{kind}" link_speed="{speed}" link_width="{width}">'
    return head + "".join(inside) + "</pci>"


def gpu(address: str, *links: str, sm: int = 80, speed: str = "16 GT/s", width: str = "16") -> str:
    inside = f'<gpu dev="{int(address[5:7], 16)}" sm="{sm}" rank="0" gdr="1">' + "".join(links) + "</gpu>"
    return pci(address, inside, kind="0x030200", speed=speed, width=width)


def nvlink(target: str, count: int, tclass: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def net(name: str, speed: object = 100_000, port: int = 1) -> str:
    return f'<nic><net name="{name}" dev="0" speed="{speed}" port="{port}" guid="0x1" maxconn="1" gdr="1"/></nic>'


def kinds(topology: Topology) -> dict[frozenset[str], str]:
    return {frozenset((pair.a, pair.b)): pair.kind for pair in topology.pairs}


def rate_above(topology: Topology, address: str) -> float | None:
    return next(x.bytes_per_second for x in topology.links if x.a == f"box/{address}" and x.kind == "PCIe")


def refused(content: bytes) -> str:
    with pytest.raises(TopologyError) as caught:
        parse_nccl_xml(content, host="box")
    return caught.value.found


# The corpus.


def index() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load((CORPUS / "index.yaml").read_text(encoding="utf-8"))
    return entries


def must_refuse(entry: dict[str, Any]) -> bool:
    return not entry["complete"] or entry.get("kind") == "graphs" or "NEGATIVE" in entry["file"]


def mistakes(entry: dict[str, Any], topology: Topology) -> list[str]:
    text = (CORPUS / entry["file"]).read_text(encoding="utf-8")
    by_class = 0 if "<gpu" in text else text.count('class="0x03')
    nvlinks = sum(int(link.kind[2:]) for link in topology.links if link.kind.startswith("NV"))
    if not any(switch.kind is SwitchKind.nvswitch for switch in topology.switches):
        nvlinks *= 2
    xgmi = 2 * sum(int(link.kind[4:]) for link in topology.links if link.kind.startswith("XGMI"))
    nets = {nic.name: nic.bytes_per_second for nic in topology.nics}
    asked = dict(name.rsplit(":", 1) for name in entry.get("nets", []))
    rates = {name: None if NO_RATE.get(name) == int(speed) else int(speed) * 125_000.0 for name, speed in asked.items()}
    sockets = [switch for switch in topology.switches if switch.kind is SwitchKind.socket]
    pcie = [switch for switch in topology.switches if switch.kind is SwitchKind.pcie]
    unclassed = text.count("<pci ") - text.count("class=")
    found = {
        "gpus": (len(topology.gpus), entry["gpus"] or by_class),
        "cpus": (len(sockets), entry["cpus"]),
        "nvlinks": (nvlinks, entry["nvlinks"] - SELF_LINKED.get(entry["file"], 0)),
        "xgmi": (xgmi, entry["xgmi"]),
        "nets": ({name: nets.get(name) for name in asked}, rates),
        "pairs": (len(topology.pairs), len(topology.gpus) * (len(topology.gpus) - 1) // 2),
    }
    if "pci_devices" in entry:
        found["pci_devices"] = (
            len(topology.gpus) + len(topology.nics) + len(pcie) + unclassed,
            entry["pci_devices"],
        )
    return [f"{what}: {got}, index {wanted}" for what, (got, wanted) in found.items() if got != wanted]


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of topology files is not here")
def test_each_file_of_the_corpus_gives_the_machine_of_its_index_or_is_refused() -> None:
    rows, wrong = [], []
    for entry in index():
        content = (CORPUS / entry["file"]).read_bytes()
        try:
            topology = parse_nccl_xml(content, host="box")
        except TopologyError as error:
            state = "refused" if must_refuse(entry) and error.found.startswith("line ") else "wrong"
            rows.append((state, entry["file"], error.found))
        else:
            assert recognises(content)
            assert from_json(to_json(topology)) == topology
            faults = ["not refused"] if must_refuse(entry) else mistakes(entry, topology)
            told = f"{len(topology.gpus)} GPUs, {len(topology.nics)} NICs, {len(topology.warnings)} warnings"
            rows.append(("wrong" if faults else "parsed", entry["file"], "; ".join(faults) or told))
    for state, name, told in rows:
        print(f"{state:8} {name:56} {told[:120]}")
        wrong += [f"{name}: {told}"] if state == "wrong" else []
    print({state: sum(row[0] == state for row in rows) for state in ("parsed", "refused", "wrong")})
    assert not wrong


# Pair kinds, rates, ports.


def test_the_tree_gives_nvidia_smis_labels() -> None:
    topology = parse(
        cpu(
            pci("0000:10:00.0", gpu("0000:11:00.0"), gpu("0000:12:00.0"), pci("0000:13:00.0", gpu("0000:14:00.0"))),
            gpu("0000:20:00.0"),
            gpu("0000:20:01.0"),
            gpu("0001:20:00.0"),
        ),
        cpu(gpu("0000:80:00.0"), numa=1),
    )
    found = kinds(topology)

    def kind(a: str, b: str) -> str:
        return found[frozenset((f"box/{a}", f"box/{b}"))]

    assert kind("0000:11:00.0", "0000:12:00.0") == "PIX"
    assert kind("0000:11:00.0", "0000:14:00.0") == "PXB"
    assert kind("0000:20:00.0", "0000:20:01.0") == "PHB"
    assert kind("0000:11:00.0", "0000:20:00.0") == "NODE"
    assert kind("0000:20:00.0", "0001:20:00.0") == "NODE"
    assert kind("0000:11:00.0", "0000:80:00.0") == "SYS"
    assert {device.numa for device in topology.gpus} == {0, 1}


def test_switches_without_an_address_of_their_own_share_no_host_bridge() -> None:
    groups = [pci(f"ffff:ff:0{at}.0", gpu(f"0000:1{at}:00.0")) for at in (1, 2)]
    assert [pair.kind for pair in parse(cpu(*groups)).pairs] == ["NODE"]


def test_direct_nvlinks_hold_where_both_ends_tell_them() -> None:
    a, b, c = (f"0000:0{at}:00.0" for at in (1, 2, 3))
    inside = (gpu(a, nvlink(b, 4), nvlink(c, 2)), gpu(b, nvlink(a, 4)), gpu(c))
    topology = parse(cpu(*inside))
    assert kinds(topology)[frozenset((f"box/{a}", f"box/{b}"))] == "NV4"
    assert kinds(topology)[frozenset((f"box/{a}", f"box/{c}"))] == "NODE"
    bundle = next(link for link in topology.links if link.kind == "NV4")
    assert bundle.bytes_per_second == 100e9
    assert any("2 and 0 active NVLinks" in warning for warning in topology.warnings)


def test_nvlinks_to_switches_join_all_gpus() -> None:
    switch = [nvlink("0000:f0:00.0", 9, "0x068000"), nvlink("0000:f1:00.0", 9, "0x068000")]
    topology = parse(cpu(*(gpu(f"0000:0{at}:00.0", *switch, sm=90) for at in (1, 2, 3))))
    assert {pair.kind for pair in topology.pairs} == {"NV18"}
    assert len(topology.islands) == 1
    assert [link.bytes_per_second for link in topology.links if link.kind == "NV18"] == [450e9] * 3


def test_nvlinks_that_end_nowhere_known_are_told_and_not_counted() -> None:
    topology = parse(
        cpu(gpu("0000:01:00.0", nvlink("0000:01:00.0", 12)), gpu("0000:02:00.0", nvlink("0000:09:00.0", 4)))
    )
    assert [pair.kind for pair in topology.pairs] == ["NODE"]
    assert any("12 active NVLink(s) with an unknown far end" in warning for warning in topology.warnings)
    assert any("GPUs that are not in the file: 0000:09:00.0" in warning for warning in topology.warnings)


def test_more_nvlinks_than_a_chip_has_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"line 3: 24 NVLinks on 0000:01:00\.0; a GPU of sm 80 has at most 12"):
        parse(cpu(gpu("0000:01:00.0", nvlink("0000:02:00.0", 24)), gpu("0000:02:00.0")))


def test_a_small_rccl_file() -> None:
    topology = parse_nccl_xml((DATA / "nccl_small_rccl.xml").read_bytes(), host="box")
    assert [link.kind for link in topology.links if link.kind.startswith("XGMI")] == ["XGMI2"]
    assert [pair.kind for pair in topology.pairs] == ["PXB"]
    assert [device.compute_capability for device in topology.gpus] == [None, None]
    assert topology.hosts[0].cores == 48
    ports = {nic.id: nic for nic in topology.nics}
    assert set(ports) == {"box/mlx5_0:1", "box/mlx5_0:2", "box/eth0"}
    assert ports["box/mlx5_0:1"].kind == "roce"
    assert ports["box/eth0"].pci is None
    # Two ports of one function share one PCIe link.
    uplinks = [link for link in topology.links if link.a == "box/0000:30:00.0"]
    assert [(link.kind, link.b) for link in uplinks] == [("PCIe", "box/node0")]


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [
        ("8 GT/s", "16", 15.754),
        ("8.0 GT/s PCIe", "16", 15.754),
        ("16.0 GT/s PCIe", "8", 15.754),
        ("32.0 GT/s", "16", 63.015),
        ("5 GT/s", "4", 2.0),
        ("64.0 GT/s PCIe", "16", 118.0),
        ("", "16", None),
        ("Unknown", "16", None),
        ("16 GT/s", "0", None),
        ("16 GT/s", "", None),
        ("16 GT/s", "255", None),
        ("2.5 GT/s PCIe", "1", None),
    ],
)
def test_the_capacity_of_a_pcie_link(speed: str, width: str, gigabytes: float | None) -> None:
    topology = parse(cpu(gpu("0000:01:00.0", speed=speed, width=width)))
    rate = rate_above(topology, "0000:01:00.0")
    assert rate == (None if gigabytes is None else pytest.approx(gigabytes * 1e9, rel=1e-3))
    assert any("capacity" in warning for warning in topology.warnings) == (gigabytes is None)
    if rate is not None:
        assert {link.source for link in topology.links if link.kind == "PCIe"} == {"table"}


def test_devices_by_class_alone_are_counted_and_their_unknowns_told() -> None:
    inside = [pci(f"0000:0{at}:00.0", kind=kind) for at, kind in ((1, "0x030200"), (2, "0x020700"), (3, "0x010802"))]
    topology = parse(cpu(*inside, '<pci busid="0000:04:00.0"/>'))
    assert (len(topology.gpus), len(topology.nics)) == (1, 1)
    assert (topology.nics[0].kind, topology.nics[0].bytes_per_second) == ("infiniband", None)
    told = " ".join(topology.warnings)
    assert "0000:03:00.0 (0x010802)" in told
    assert "without a class, which NCCL looks up on the machine; they are left out: 0000:04:00.0" in told


@pytest.mark.parametrize(("more", "capability"), [("", (9, 0)), ('gcn="908"', None)])
def test_sm_is_a_compute_capability_only_without_gcn(more: str, capability: tuple[int, int] | None) -> None:
    inside = pci("0000:01:00.0", f'<gpu dev="0" sm="90" {more}/>', kind="0x030200")
    assert parse(cpu(inside)).gpus[0].compute_capability == capability


def test_known_chips_have_the_memory_of_the_table() -> None:
    named = '<pci busid="0000:01:00.0" class="0x030200" vendor="0x10DE" device="0x20b2"/>'
    device = parse(cpu(named)).gpus[0]
    assert (device.name, device.memory_bytes) == ("NVIDIA A100-SXM4-80GB", 80 * 2**30)


@pytest.mark.parametrize("speed", ["0", "-1", "200000000"])
def test_a_speed_that_no_port_has_stays_unknown(speed: str) -> None:
    topology = parse(cpu(net("eth0", speed)))
    assert topology.nics[0].bytes_per_second is None
    assert any(f"{speed} Mb/s is no rate" in warning for warning in topology.warnings)


def test_links_beside_the_tree() -> None:
    switches = [pci(f"0000:1{at}:00.0", f'<pcilink target="0000:1{1 - at}:00.0"/>') for at in (0, 1)]
    grace = gpu("0000:01:00.0", '<c2c bw="44712" count="10"/>', sm=90)
    topology = parse(cpu(*switches, grace, numa=-1))
    assert [(link.a, link.b) for link in topology.links if link.kind == "PCIe peer"] == [
        ("box/0000:10:00.0", "box/0000:11:00.0"),
    ]
    assert [link.bytes_per_second for link in topology.links if link.kind == "C2C"] == [447.12e9]
    assert topology.gpus[0].numa is None


def test_unknown_elements_are_skipped_and_told() -> None:
    topology = parse(cpu("<novel><pci busid='bad'/></novel>", gpu("0000:01:00.0")))
    assert len(topology.gpus) == 1
    assert any("unknown elements skipped: novel" in warning for warning in topology.warnings)


# Refusals.


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        ('<pci busid="0000:01:00.0">', "line 4: not well formed (mismatched tag)"),
        ("<pci/>", "line 3: <pci> without busid"),
        ('<pci busid="here"/>', "line 3: <pci> with busid='here', no PCI address"),
        ('<gpu dev="0"/>', "line 3: <gpu> directly inside <cpu>"),
        ("some text", "text between elements: 'some text'"),
        (gpu("0000:01:00.0") + "\n" + gpu("0000:01:00.0"), "line 4: the GPU 0000:01:00.0 again, first on line 3"),
        (net("a") + "\n" + net("a"), "line 4: the port a:1 again, first on line 3"),
        (pci("0000:01:00.0", "<gpu/><gpu/>"), "holds 2 GPUs"),
        (pci("0000:01:00.0", "<gpu/>", net("a")), "both a GPU and a NIC"),
        (pci("0000:01:00.0", "<gpu/>", pci("0000:02:00.0")), "is a gpu with other functions below it"),
        (pci("0000:01:00.0", width="wide"), "link_width='wide'"),
        ("</cpu><cpu>", "line 3: <cpu> without numaid"),
        ('</cpu><cpu numaid="0">', "line 3: the NUMA node 0 again, first on line 2"),
        ('</cpu><cpu numaid="1" host_hash="0x1"/><cpu numaid="2" host_hash="0x2">', "CPUs of 2 hosts"),
    ],
)
def test_what_the_format_has_not_is_refused_by_line(inside: str, told: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(cpu(inside))
    assert told in caught.value.found


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "line 1: not well formed (no element found)"),
        (b"\x00\xff", "line 1: not well formed"),
        (b"<graphs version='1'/>", "line 1: the outermost element is <graphs>, not <system> (a search result"),
        (b"<system/>", "line 1: <system> without any <cpu>"),
        (b"<system version='3'><cpu numaid='0'/></system>", "version '3'; known are 1 (NCCL) and 2 (RCCL)"),
        (b"<system version='1'>\n<cpu numaid='0'>\n<pci ", "line 3: not well formed (unclosed token); the input ends"),
        (b"<system version='1'>&amp;x;</system>", "text between elements"),
        (b"<system version='1'>&x;</system>", "not well formed (undefined entity)"),
    ],
)
def test_other_files_are_refused(content: bytes, told: str) -> None:
    assert told in refused(content)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(TopologyError) as caught:
        parse(cpu(*['<pci busid="x"/>'] * 30))
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 10 more"


LAUGHS = b"<!DOCTYPE s [<!ENTITY a 'ha'>" + b"".join(b"<!ENTITY a%d '&a;&a;'>" % at for at in range(40)) + b"]>"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<system version='1'>" + b" " * 100_000_000, "bytes, more than"),
        (b"<system version='1'><cpu numaid='0'>" + b"<pci busid='0:1:0.0'>" * 90_000, "nested deeper than 64"),
        (b"<system version='1'>" + b"<x>" * 600_000, "nested deeper than 64"),
        (b"<system version='1'>" + b"<x/>" * 500_000, "more than 8192 elements"),
        (b"<system " + b" ".join(b"a%d=''" % at for at in range(170_000)) + b"/>", "more than 64 attributes"),
        (b"<system version='" + b"1" * 2_000_000 + b"'/>", "a value longer than"),
        (LAUGHS + b"<system version='1'>&a39;</system>", "DOCTYPE"),
        (b"<!DOCTYPE s SYSTEM 'file:///etc/passwd'><system version='1'/>", "DOCTYPE"),
    ],
    ids=["large", "deep", "deep-unknown", "many", "attributes", "value", "laughs", "external"],
)
def test_hostile_input_is_refused_in_bounded_time_and_memory(content: bytes, told: str) -> None:
    started = time.perf_counter()
    assert told in refused(content)
    assert time.perf_counter() - started < 2
    tracemalloc.start()
    refused(content)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000_000


@pytest.mark.parametrize(
    ("content", "is_ours"),
    [
        (b"<system version='1'>", True),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- <graphs> -->\n<!--x--><system name='a'\n version='2'", True),
        (b"<graphs version='1'>", False),
        (b"<systems version='1'>", False),
        (b"<!-- <system version='1'> ", False),
        (b"{}", False),
        (b"", False),
    ],
)
def test_files_are_recognised_by_their_content(content: bytes, is_ours: bool) -> None:
    assert recognises(content) == is_ours


# Drawn trees.

Tree = tuple[str, str, list[Any]]


def draw_tree(draw: st.DrawFn, depth: int, addresses: list[str]) -> Tree:
    # Three slots a bus, so that some roots share one.
    at = len(addresses)
    address = f"{draw(st.integers(0, 1)):04x}:{at // 3:02x}:{at % 3:02x}.0"
    addresses.append(address)
    role = draw(st.sampled_from(["gpu", "nic", "switch", "switch"] if depth < 4 else ["gpu", "nic"]))
    num_below = draw(st.integers(0, 3)) if role == "switch" else 0
    return role, address, [draw_tree(draw, depth + 1, addresses) for _ in range(num_below)]


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[list[Tree]], dict[frozenset[str], int]]:
    addresses: list[str] = []
    nodes = [[draw_tree(draw, 0, addresses) for _ in range(draw(st.integers(0, 4)))] for _ in range(3)]
    gpus = [spot[-1] for spot in spots(nodes)]
    bundles, free = {}, dict.fromkeys(gpus, 12)
    for a, b in combinations(gpus, 2):
        count = draw(st.integers(0, min(free[a], free[b], 4)))
        if count and draw(st.booleans()):
            bundles[frozenset((a, b))] = count
            free[a], free[b] = free[a] - count, free[b] - count
    return nodes, bundles


def spots(nodes: list[list[Tree]], wanted: str = "gpu") -> list[tuple[str, ...]]:
    # Each part of one role as the chain of names that leads to it.
    found: list[tuple[str, ...]] = []

    def visit(tree: Tree, above: tuple[str, ...]) -> None:
        role, address, below = tree
        if role == wanted:
            found.append((*above, address))
        for child in below:
            visit(child, (*above, address))

    for at, trees in enumerate(nodes):
        for tree in trees:
            visit(tree, (str(at),))
    return found


def expected(a: tuple[str, ...], b: tuple[str, ...]) -> str:
    if a[0] != b[0]:
        return "SYS"
    if a[1][:7] == b[1][:7] and a[1] != b[1]:
        return "PHB"
    if a[1] != b[1]:
        return "NODE"
    return "PIX" if a[:-1] == b[:-1] else "PXB"


def written(tree: Tree, bundles: dict[frozenset[str], int]) -> str:
    role, address, below = tree
    if role == "switch":
        return pci(address, *(written(child, bundles) for child in below))
    if role == "nic":
        return pci(address, net(f"mlx5_{address}"), kind="0x020700")
    links = [nvlink(other, count) for pair, count in bundles.items() if address in pair for other in pair - {address}]
    return gpu(address, *links)


@settings(max_examples=60, deadline=None)
@given(machines())
def test_a_drawn_tree_reads_back_with_the_same_counts_and_pair_kinds(
    machine: tuple[list[list[Tree]], dict[frozenset[str], int]],
) -> None:
    nodes, bundles = machine
    cpus = [cpu(*(written(tree, bundles) for tree in trees), numa=at) for at, trees in enumerate(nodes)]
    topology = parse(*cpus)
    gpus = spots(nodes)
    assert {device.pci for device in topology.gpus} == {spot[-1] for spot in gpus}
    assert {nic.pci for nic in topology.nics} == {spot[-1] for spot in spots(nodes, "nic")}
    switches = [switch.id for switch in topology.switches if switch.kind is SwitchKind.pcie]
    assert sorted(switches) == sorted(f"box/{spot[-1]}" for spot in spots(nodes, "switch"))
    wanted = {}
    for a, b in combinations(gpus, 2):
        count = bundles.get(frozenset((a[-1], b[-1])))
        wanted[frozenset((f"box/{a[-1]}", f"box/{b[-1]}"))] = f"NV{count}" if count else expected(a, b)
    assert kinds(topology) == wanted
    pcie = [link for link in topology.links if link.kind == "PCIe"]
    assert len(pcie) == len(gpus) + len(topology.nics) + len(switches)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_cut_or_change_of_a_file_is_read_or_refused(data: st.DataObject) -> None:
    content = (DATA / "nccl_small_rccl.xml").read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    changed = content[:at] + data.draw(st.binary(max_size=3)) + content[at + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(TopologyError):  # anything else would be a crash
        parse_nccl_xml(changed, host="box")
    if at < len(content) - 12:
        assert "line " in refused(content[:at])
