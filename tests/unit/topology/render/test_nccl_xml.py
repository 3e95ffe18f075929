from __future__ import annotations

from dataclasses import replace

import pytest

from topology.checks import printable
from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Pcie, Switch, SwitchKind, Topology
from topology.presets import preset, preset_names
from topology.probe.nccl_xml import parse_nccl_xml
from topology.render.nccl_xml import nccl_xml
from topology.units import GIB

GEN5 = Pcie(max_generation=5, max_width=16)


def link(a: str, b: str, kind: str, rate: float | None = None) -> Link:
    return Link(a=a, b=b, kind=kind, source="drawn", bytes_per_second=rate)


def gpu(name: str, pci: str | None, numa: int | None = 0, **more: object) -> Device:
    made = Device(id=name, host="box", kind=DeviceKind.gpu, name="a GPU", memory_bytes=None, numa=numa, pci=pci)
    return replace(made, **more)  # type: ignore[arg-type]


def one_host(*devices: Device, nics: tuple[Nic, ...] = (), **more: object) -> Topology:
    host = Host(name="box", memory_bytes=None, cores=None, devices=devices, nics=nics)
    return replace(Topology(hosts=(host,)), **more)  # type: ignore[arg-type]


def back(text: str) -> Topology:
    return parse_nccl_xml(text.encode(), host="back")


def test_the_file_of_a_small_machine() -> None:
    node, switch = "box/node0", "box/0000:10:00.0"
    topology = one_host(
        gpu("GPU-0", "0000:11:00.0", index=0, compute_capability=(9, 0), cpus="0-3,32-33", pcie=GEN5),
        gpu("GPU-1", "0000:12:00.0", index=1, compute_capability=(9, 0), cpus="0-3,32-33", pcie=GEN5),
        nics=(Nic(id="box/mlx5_0", name="mlx5_0", kind="infiniband", bytes_per_second=50e9, pci="0000:13:00.0"),),
        switches=(
            Switch(id=node, kind=SwitchKind.socket, host="box", numa=0),
            Switch(id=switch, kind=SwitchKind.pcie, host="box"),
            Switch(id="box/nvswitch", kind=SwitchKind.nvswitch, host="box"),
        ),
        links=(
            link("GPU-0", switch, "PCIe"),
            link("GPU-1", switch, "PCIe"),
            link("box/mlx5_0", switch, "PCIe", 16 * 256 / 65 * 1e9),
            link(switch, node, "PCIe"),
            link("GPU-0", "box/nvswitch", "NV18"),
            link("GPU-1", "box/nvswitch", "NV18"),
        ),
        pairs=(Pair(a="GPU-0", b="GPU-1", kind="NV18"),),
    )
    assert (
        nccl_xml(topology)
        == """\
<system version="1">
  <cpu numaid="0" affinity="00000003,0000000f">
    <pci busid="0000:10:00.0" class="0x060400">
      <pci busid="0000:11:00.0" class="0x03" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" trainmaster_name="a GPU">
          <nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x03" link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="90" rank="1" trainmaster_name="a GPU">
          <nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="400000"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"""
    )


def test_a_machine_known_by_its_labels_alone_gets_their_tree() -> None:
    gpus = [gpu(f"GPU-{at}", f"0000:1{at}:00.0", at // 2, index=at) for at in range(4)]
    kinds = {(0, 1): "PIX", (2, 3): "NODE"}
    ends = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    pairs = tuple(Pair(a=f"GPU-{a}", b=f"GPU-{b}", kind=kinds.get((a, b), "SYS")) for a, b in ends)
    text = nccl_xml(one_host(*gpus, pairs=pairs))
    assert 'busid="ffff:00:00.0" class="0x060400"' in text
    assert [pair.kind for pair in back(text).pairs] == [pair.kind for pair in pairs]


def test_presets_survive_their_files() -> None:
    for name in preset_names():
        topology = preset(name)
        for host in topology.hosts:
            try:
                text = nccl_xml(topology, host.name)
            except TopologyError as error:
                assert not [device for device in host.devices if device.pci], error  # noqa: PT017
                continue
            again = back(text)
            pci = {device.id: device.pci for device in (*host.devices, *again.devices)}
            wanted = {frozenset((pci[pair.a], pci[pair.b])): pair.kind for pair in topology.pairs if pair.a in pci}
            assert {frozenset((pci[p.a], pci[p.b])): p.kind for p in again.pairs} == wanted, name
            gpus = [device for device in host.devices if device.kind is DeviceKind.gpu]
            assert [(gpu.name, gpu.memory_bytes) for gpu in again.gpus] == [
                (gpu.name, gpu.memory_bytes) for gpu in sorted(gpus, key=lambda gpu: gpu.index or 0)
            ], name
            assert nccl_xml(again) == text, name


def test_gpus_of_amd_make_a_file_of_rccl() -> None:
    topology = one_host(gpu("a", "0000:01:00.0"), gpu("b", "0000:02:00.0"), links=(link("a", "b", "XGMI4"),))
    text = nccl_xml(topology)
    assert text.startswith('<system version="2">')
    assert [item.kind for item in back(text).links if item.kind.startswith("XGMI")] == ["XGMI4"]


def test_an_rdma_port_and_its_interface_are_written_once() -> None:
    nics = tuple(
        Nic(id=f"box/{name}", name=name, kind=kind, pci="0000:01:00.0")
        for name, kind in (("eth0", "ethernet"), ("mlx5_0", "roce"))
    )
    assert [nic.name for nic in back(nccl_xml(one_host(nics=nics))).nics] == ["mlx5_0"]


def test_switches_of_one_chip_stay_joined() -> None:
    node = Switch(id="box/node0", kind=SwitchKind.socket, host="box", numa=0)
    chips = tuple(Switch(id=f"box/0000:0{at}:00.0", kind=SwitchKind.pcie, host="box") for at in (1, 2))
    up = tuple(link(chip.id, node.id, "PCIe") for chip in chips)
    peer = link(chips[0].id, chips[1].id, "PCIe peer")
    topology = one_host(switches=(node, *chips), links=(*up, peer))
    assert [item.kind for item in back(nccl_xml(topology)).links].count("PCIe peer") == 1


def test_one_host_of_several_is_named() -> None:
    hosts = tuple(Host(name=name, memory_bytes=None, cores=None, devices=()) for name in ("a", "b"))
    topology = Topology(
        hosts=hosts,
        switches=tuple(Switch(id=f"{host.name}/n", kind=SwitchKind.socket, host=host.name) for host in hosts),
    )
    assert nccl_xml(topology, "b") == '<system version="1">\n  <cpu numaid="-1"/>\n</system>\n'
    for name in (None, "c"):
        with pytest.raises(TopologyError, match="among 2; do: name one of a, b"):
            nccl_xml(topology, name)


def test_all_that_a_file_cannot_carry_is_told_at_once() -> None:
    topology = one_host(
        gpu("GPU-0", None),
        gpu("GPU-1", "0000:01:00.0"),
        gpu("GPU-2", "0000:01:00.0"),
        gpu("MIG-0", "0000:02:00.0", parent="GPU-1"),
        pairs=(Pair(a="GPU-0", b="GPU-1", kind="NV4"),),
    )
    with pytest.raises(TopologyError) as caught:
        nccl_xml(topology)
    assert caught.value.problems == (
        "GPU-0 has no PCI address",
        "MIG-0 is a part of a GPU (MIG)",
        "GPU-0 - GPU-1 is NV4, but no link tells between what",
        "two GPUs of the PCI address 0000:01:00.0",
    )


@pytest.mark.parametrize(
    ("topology", "told"),
    [
        (one_host(), "neither a GPU nor a network adapter"),
        (one_host(nics=(Nic(id="box/a", name="a\x01", kind="ethernet"),)), "characters XML has not"),
        (one_host(nics=(Nic(id="box/a", name="\ud800", kind="ethernet"),)), "characters XML has not"),
        (one_host(nics=(Nic(id="box/a", name=" a", kind="ethernet"),)), "begins or ends with a blank"),
        (one_host(nics=(Nic(id="box/a", name="", kind="ethernet"),)), "is empty"),
        (one_host(nics=tuple(Nic(id=f"box/{at}", name="a", kind="ethernet") for at in "ab")), "two ports of the name"),
        (one_host(gpu("a", "0000:01:00.0", uuid="u"), gpu("b", "0000:02:00.0", uuid="u")), "two GPUs of the UUID 'u'"),
        (one_host(nics=(Nic(id="box/a", name="&" * 60, kind="ethernet"),)), "longer than the 253 bytes NCCL reads"),
        (
            one_host(switches=tuple(Switch(id=f"box/{at}", kind=SwitchKind.socket, host="box", numa=0) for at in "ab")),
            "two NUMA nodes of the number 0",
        ),
        (
            one_host(
                gpu("a", "0000:01:00.0"),
                switches=tuple(Switch(id=at, kind=SwitchKind.pcie, host="box") for at in ("s", "t")),
                links=(link("a", "s", "PCIe"), link("s", "t", "PCIe"), link("t", "s", "PCIe")),
            ),
            "the links above a go round in a circle",
        ),
    ],
)
def test_what_no_file_can_carry_is_refused(topology: Topology, told: str) -> None:
    with pytest.raises(TopologyError) as caught:
        nccl_xml(topology)
    assert told in caught.value.found


@pytest.mark.parametrize("name", ["a\x00b", "a\x1b[2Jb", "\ud800", "a\nb", "\x85", "\u202e'\"<&>", " x "])
def test_a_name_no_terminal_should_get_is_written_as_an_escape(name: str) -> None:
    text = nccl_xml(one_host(replace(gpu("a", "0000:01:00.0"), name=name, memory_bytes=GIB, uuid="GPU-1")))
    assert text.replace("\n", "").isprintable()
    again = back(text).gpus[0]
    assert (again.name, again.memory_bytes, again.uuid) == (printable(name), GIB, "GPU-1")


def test_what_shares_a_host_bridge_is_told_whatever_the_buses() -> None:
    node = Switch(id="box/node0", kind=SwitchKind.socket, host="box", numa=0)
    bridges = tuple(Switch(id=f"box/pci0000:{at}0", kind=SwitchKind.bridge, host="box", numa=0) for at in (0, 1))
    places = {"a": ("0000:01:00.0", 0), "b": ("0000:02:00.0", 0), "c": ("0000:11:00.0", 1), "d": ("0000:02:00.1", 1)}
    up = tuple(link(name, bridges[at].id, "PCIe") for name, (_, at) in places.items())
    topology = one_host(
        *(gpu(name, pci) for name, (pci, _) in places.items()),
        switches=(node, *bridges),
        links=(*up, *(link(bridge.id, node.id, "CPU") for bridge in bridges)),
    )
    text = nccl_xml(topology)
    assert '<pci busid="0000:11:00.0" class="0x03" trainmaster_bridge="pci0000:10">' in text
    again = back(text)
    pci = {device.id: str(device.pci) for device in again.gpus}
    found = {"".join(sorted((pci[pair.a][5:], pci[pair.b][5:]))): pair.kind for pair in again.pairs}
    assert [ends for ends, kind in found.items() if kind == "PHB"] == ["01:00.002:00.0", "02:00.111:00.0"]
    assert set(found.values()) == {"PHB", "NODE"}


def test_parts_of_several_nodes_below_one_bridge_stay_below_it() -> None:
    bridge = Switch(id="box/root", kind=SwitchKind.bridge, host="box")
    gpus = (gpu("a", "0000:01:00.0", 0), gpu("b", "0000:02:00.0", 1))
    up = tuple(link(name, bridge.id, "PCIe") for name in "ab")
    text = nccl_xml(one_host(*gpus, switches=(bridge,), links=up))
    assert text.count('trainmaster_bridge="bridge0"') == 2
    assert [pair.kind for pair in back(text).pairs] == ["PHB"]


def test_nodes_of_one_number_are_told_apart_in_a_file_for_reading() -> None:
    gpus = (gpu("a", None, None), gpu("b", None, None))
    text = nccl_xml(one_host(*gpus, pairs=(Pair(a="a", b="b", kind="SYS"),)), invent_addresses=True)
    assert [pair.kind for pair in back(text).pairs] == ["SYS"]


@pytest.mark.parametrize("cpus", ["0-9000", "x", "", "3-1", "0-"])
def test_a_list_of_cpus_that_no_mask_can_tell_is_left_out(cpus: str) -> None:
    assert 'numaid="0">' in nccl_xml(one_host(gpu("a", "0000:01:00.0", cpus=cpus)))
