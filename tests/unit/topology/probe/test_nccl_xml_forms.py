"""Forms that NCCL 2.4 to 2.30 and RCCL write, each made up from what their sources say."""

from __future__ import annotations

import pytest

from topology.model import SwitchKind, Topology
from topology.pcie_tree import pcie_labels
from topology.probe.nccl_xml import parse_nccl_xml

HIDDEN = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'


def parse(*cpus: str) -> Topology:
    text = '<system version="1">\n' + "\n".join(cpus) + "\n</system>\n"
    return parse_nccl_xml(text.encode(), host="box")


def cpu(*inside: str, numa: int = 0, host_hash: str | None = None) -> str:
    mark = "" if host_hash is None else f'host_hash="{host_hash}" '
    return f'<cpu {mark}numaid="{numa}" affinity="ff" arch="arm64">' + "".join(inside) + "</cpu>"


def gpu(address: str, *inside: str, sm: int = 100, more: str = "") -> str:
    head = f'<pci busid="{address}" class="0x030200" vendor="0x10de" device="0x2941" link_speed="" link_width="">'
    return head + f'<gpu dev="0" sm="{sm}" rank="0" gdr="1" {more}>' + "".join(inside) + "</gpu></pci>"


def adapter(address: str, *nets: str, speed: str = "32.0 GT/s PCIe") -> str:
    head = f'<pci busid="{address}" class="0x020700" link_speed="{speed}" link_width="16"><nic>'
    return head + "".join(nets) + "</nic></pci>"


def net(name: str, more: str = 'speed="400000" port="1"') -> str:
    return f'<net name="{name}" dev="0" latency="0" guid="0xae0f9c0003a1420c" maxconn="131072" gdr="1" {more}/>'


def told(topology: Topology, text: str) -> bool:
    return any(text in warning for warning in topology.warnings)


def test_cpus_of_several_hosts_are_several_hosts_on_one_nvlink_fabric() -> None:
    c2c = '<c2c bw="44712" count="5"/>'
    tray = [
        (cpu(gpu("0008:01:00.0", HIDDEN, c2c), gpu("0009:01:00.0", HIDDEN, c2c), host_hash=at)) for at in ("0xa", "0xb")
    ]
    other = [cpu(adapter("0010:01:00.0", net("mlx5_0")), numa=1, host_hash=at) for at in ("0xa", "0xb")]
    topology = parse(*tray, *other)
    assert [host.name for host in topology.hosts] == ["box-0", "box-1"]
    assert [len(host.devices) for host in topology.hosts] == [2, 2]
    assert [nic.id for nic in topology.nics] == ["box-0/mlx5_0", "box-1/mlx5_0"]
    assert [(pair.a, pair.b, pair.kind) for pair in topology.pairs] == [
        (f"box-{at}/0008:01:00.0", f"box-{at}/0009:01:00.0", "NV18") for at in (0, 1)
    ]
    switches = [switch for switch in topology.switches if switch.kind is SwitchKind.nvswitch]
    assert [(switch.id, switch.host) for switch in switches] == [("box/nvswitch", None)]
    assert {link.b for link in topology.links if link.kind == "NV18"} == {"box/nvswitch"}
    assert {device.fabric for device in topology.gpus} == {"box/nvswitch"}
    assert [link.bytes_per_second for link in topology.links if link.kind == "C2C"] == [223.56e9] * 4
    assert {link.a.split("/")[0] == link.b.split("/")[0] for link in topology.links if link.kind == "SYS"} == {True}


def test_a_gpu_outside_the_fabric_of_several_hosts_is_not_in_it() -> None:
    topology = parse(cpu(gpu("0008:01:00.0", HIDDEN), host_hash="0xa"), cpu(gpu("0008:01:00.0"), host_hash="0xb"))
    assert [device.fabric for device in topology.gpus] == ["box/nvswitch", None]


@pytest.mark.parametrize("second", ["0xa", "0x000a", None])
def test_one_hash_is_one_host(second: str | None) -> None:
    topology = parse(cpu(gpu("0000:01:00.0"), host_hash="0xA"), cpu(numa=1, host_hash=second))
    assert [host.name for host in topology.hosts] == ["box"]
    assert topology.gpus[0].fabric is None


def test_parts_and_ranks_of_one_gpu_are_one_gpu() -> None:
    part = '<gpu dev="0" sm="107" mlopart="{0}" rank="{0}" gdr="1"><nvlink target="fffffff:ff:ff.0" count="36"/></gpu>'
    inside = "".join(part.format(at) for at in (0, 1))
    topology = parse(cpu(f'<pci busid="0002:81:00.0" class="0x030200">{inside}</pci>'))
    assert [device.compute_capability for device in topology.gpus] == [(10, 7)]
    assert [link.kind for link in topology.links if link.kind.startswith("NV")] == ["NV36"]
    assert told(topology, "several ranks or parts, taken as one each: 0002:81:00.0")


def test_an_adapter_merged_of_others_is_not_counted_beside_them() -> None:
    parts = [adapter(f"0000:0{at}:00.0", net(f"mlx5_{at}")) for at in (0, 1)]
    merged = adapter("0000:00:00.1", net("mlx5_0+mlx5_1", 'speed="800000" port="1"'))
    topology = parse(cpu(*parts, merged))
    assert [nic.name for nic in topology.nics] == ["mlx5_0", "mlx5_1"]
    assert told(topology, "merged of others in the file, left out: box/mlx5_0+mlx5_1")
    alone = parse(cpu(f"<nic>{net('mlx5_0+mlx5_1')}</nic>"))
    assert [nic.name for nic in alone.nics] == ["mlx5_0+mlx5_1"]


def test_an_interface_that_every_cpu_lists_is_one_and_near_none() -> None:
    loose = "<nic>" + net("eth0", 'speed="10000" port="0"') + "</nic>"
    topology = parse(cpu(gpu("0000:01:00.0"), loose), cpu(gpu("0000:02:00.0"), loose, numa=1))
    assert [(nic.id, nic.numa, nic.bytes_per_second) for nic in topology.nics] == [("box/eth0", None, 1.25e9)]
    assert not [link for link in topology.links if link.kind == "virtual"]
    assert not [pair for pair in pcie_labels(topology) if "box/eth0" in pair]


@pytest.mark.parametrize(
    "more",
    [
        'speed="400000" port="1" net="1" gin="1" rma="1" rail="3" plane="0"',
        'speed="400000" port="1" coll="1" keep="1"',
        'speed=" 400000 "',
    ],
)
def test_attributes_of_later_versions_change_nothing(more: str) -> None:
    topology = parse(cpu(adapter("0000:01:00.0", net("rdmap82s0", more))))
    assert [(nic.name, nic.bytes_per_second) for nic in topology.nics] == [("rdmap82s0", 50e9)]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("00000000:c1:00.0", "0000:c1:00.0"),
        ("c1:00.0", "0000:c1:00.0"),
        ("10000:c1:00.0", "10000:c1:00.0"),
        ("0000:c1:00", "0000:c1:00.0"),
    ],
)
def test_bus_ids_in_all_their_forms(written: str, meant: str) -> None:
    assert parse(cpu(gpu(written))).gpus[0].pci == meant


def test_nvlinks_to_a_processor() -> None:
    power = '<nvlink target="0004:00:00.0" count="3" tclass="0x068001"/>'
    topology = parse(cpu(gpu("0004:04:00.0", power, sm=70)))
    links = [link for link in topology.links if link.kind == "NV3"]
    assert [(link.b, link.bytes_per_second) for link in links] == [("box/node0", 75e9)]
    assert not told(topology, "unknown far end")


def test_the_switch_of_an_adapter_that_reads_memory_directly() -> None:
    inside = adapter("0000:11:00.0", net("mlx5_0")) + gpu("0000:12:00.0")
    topology = parse(cpu(f'<pci busid="0000:10:00.0" class="0x080100">{inside}</pci>'))
    assert pcie_labels(topology) == {frozenset(("box/mlx5_0", "box/0000:12:00.0")): "PIX"}


def test_a_virtual_machine_without_nodes_or_nvswitches() -> None:
    topology = parse(cpu(gpu("0000:05:00.0", HIDDEN, sm=90), gpu("0000:06:00.0", HIDDEN, sm=90), numa=-1))
    assert [pair.kind for pair in topology.pairs] == ["NV18"]
    assert {device.numa for device in topology.gpus} == {None}
    assert [switch.id for switch in topology.switches if switch.kind is SwitchKind.socket] == ["box/node?"]
