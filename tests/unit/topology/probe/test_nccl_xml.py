from __future__ import annotations

from pathlib import Path

import pytest

from topology.errors import TopologyError
from topology.model import Pcie, SwitchKind, Topology
from topology.pcie_tree import pcie_labels
from topology.probe.nccl_xml import parse_nccl_xml, recognises

DATA = Path(__file__).parent / "data"


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
    assert pcie_labels(topology) == found
    bridges = [switch.id for switch in topology.switches if switch.kind is SwitchKind.bridge]
    assert bridges == ["box/bridge0000:20"]
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
        assert all(link.source.startswith("table: PCIe Gen") for link in topology.links if link.kind == "PCIe")
    else:
        assumed = next(link for link in topology.links if link.kind == "PCIe")
        assert assumed.assumed_bytes_per_second == pytest.approx(15.754e9, rel=1e-3)
        assert assumed.source.startswith("unknown; assumed: ")


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


@pytest.mark.parametrize(
    ("content", "is_ours"),
    [
        (b"<system version='1'>", True),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- <graphs> -->\n<!--x--><system name='a'\n version='2'", True),
        (b"<graphs version='1'>", False),
        (b"<systems version='1'>", False),
        (b"<!-- <system version='1'> ", True),
        (b"<!DOCTYPE system [<!ENTITY a 'a'>]><system version='1'>", True),
        (b"<!DOCTYPE topology SYSTEM 'hwloc2.dtd'><topology version='2.0'/>", False),
        (b"<!doctype html><pre>&lt;system version=&quot;1&quot;&gt;", True),
        ("<system version='1'>".encode("utf-16"), True),
        ("a fence:\n```<system version='1'>".encode("utf-16"), True),
        (b"\xff\xfe<system version='1'>\0", True),
        ("<?xml version='1.0'?><system version='1'>".encode("utf-32-be"), True),
        (b'{"warnings": ["<system version=1>"]}', False),
        (b"\tGPU0\tGPU1\tCPU Affinity\n<system version='1'>", False),
        (b"{}", False),
        (b"", False),
    ],
)
def test_files_are_recognised_by_their_content(content: bytes, is_ours: bool) -> None:
    assert recognises(content) == is_ours


@pytest.mark.parametrize(
    ("speed", "width", "pcie"),
    [
        ("16.0 GT/s PCIe", "16", Pcie(max_generation=4, max_width=16)),
        ("128.0 GT/s PCIe", "0", Pcie(max_generation=7)),
        ("", "8", Pcie(max_width=8)),
        ("2.5 GT/s PCIe", "1", None),
        ("", "", None),
    ],
)
def test_the_slot_of_a_gpu(speed: str, width: str, pcie: Pcie | None) -> None:
    assert parse(cpu(gpu("0000:01:00.0", speed=speed, width=width))).gpus[0].pcie == pcie


@pytest.mark.parametrize(
    ("mask", "cpus", "cores"),
    [
        ("ffff", "0-15", 16),
        ("0000,0fffff00,000fffff", "0-19,40-59", 40),
        ("1,00000000,00000001", "0,64", 2),
        ("00000000,00000000", None, None),
        ("", None, None),
    ],
)
def test_the_logical_cpus_of_a_mask(mask: str, cpus: str | None, cores: int | None) -> None:
    topology = parse(cpu(gpu("0000:01:00.0"), more=f'affinity="{mask}"'))
    assert (topology.gpus[0].cpus, topology.hosts[0].cores) == (cpus, cores)
    # The number of a host's CPUs is known only where every node tells its own.
    assert parse(cpu(more=f'affinity="{mask}"'), cpu(numa=1)).hosts[0].cores is None


def test_bridges_of_the_first_pcie_are_those_of_a_virtual_machine() -> None:
    slow = pci("0000:10:00.0", gpu("0000:11:00.0"), speed="2.5 GT/s PCIe", width="1")
    assert parse(cpu(slow)).hosts[0].is_virtual is True
    assert parse(cpu(slow, pci("0000:20:00.0", gpu("0000:21:00.0")))).hosts[0].is_virtual is None
    assert parse(cpu(gpu("0000:01:00.0", speed="2.5 GT/s"))).hosts[0].is_virtual is None


def test_the_links_of_the_tree_point_upwards_and_tell_what_they_assume() -> None:
    ports = pci("0000:12:00.0", net("mlx5_0"), net("mlx5_0", port=2), kind="0x020700")
    topology = parse(cpu(pci("0000:10:00.0", gpu("0000:11:00.0"), ports), net("eth0")), cpu(numa=1))
    ends = {(link.a.removeprefix("box/"), link.kind, link.b.removeprefix("box/")) for link in topology.links}
    assert ends == {
        ("0000:10:00.0", "PCIe", "node0"),
        ("0000:11:00.0", "PCIe", "0000:10:00.0"),
        ("0000:12:00.0", "PCIe", "0000:10:00.0"),
        ("mlx5_0:1", "port", "0000:12:00.0"),
        ("mlx5_0:2", "port", "0000:12:00.0"),
        ("eth0", "virtual", "node0"),
        ("node0", "SYS", "node1"),
    }
    labels = {
        frozenset(name.removeprefix("box/") for name in pair): label for pair, label in pcie_labels(topology).items()
    }
    assert labels[frozenset(("mlx5_0:1", "mlx5_0:2"))] == "PIX"
    assert labels[frozenset(("mlx5_0:1", "0000:11:00.0"))] == "PIX"
    assert labels[frozenset(("eth0", "0000:11:00.0"))] == "NODE"
    limits = [link for link in topology.links if link.kind in {"PCIe", "SYS"}]
    assert all(link.capacity_bytes_per_second for link in limits)
    assert all("not counted as a limit" in link.source for link in topology.links if link not in limits)


def test_links_of_unknown_rate_tell_what_to_reckon_with() -> None:
    a, b = "0000:01:00.0", "0000:02:00.0"
    amd = [f'<gpu dev="0" gcn="gfx942"><xgmi target="{other}" count="2"/></gpu>' for other in (b, a)]
    both = [pci(at, inside, kind="0x120000") for at, inside in zip((a, b), amd, strict=True)]
    link = next(link for link in parse(cpu(*both), version=2).links if link.kind == "XGMI2")
    assert (link.bytes_per_second, link.source.startswith("unknown; assumed: ")) == (None, True)
    assert link.assumed_bytes_per_second == pytest.approx(31.508e9, rel=1e-3)
    pair = parse(cpu(gpu(a, nvlink(b, 2), sm=123), gpu(b, nvlink(a, 2), sm=123)))
    link = next(link for link in pair.links if link.kind == "NV2")
    assert (link.bytes_per_second, link.assumed_bytes_per_second) == (None, 28.125e9)
    silent = next(link for link in parse(cpu(gpu(a, "<c2c/>", sm=90))).links if link.kind == "C2C")
    assert silent.source.startswith("unknown; assumed: ")
