"""Classes, islands and judgements of small drawn machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from topology.errors import TopologyError
from topology.judge import (
    MachineClass,
    contradictions,
    islands_at,
    judge,
    judged,
    machine_classes,
    short_names,
)
from topology.model import Device, DeviceKind, Host, Link, Pair, Pcie, Switch, SwitchKind, Topology

Kinds = Mapping[tuple[int, int], str]


def gpus(number: int, name: str = "NVIDIA A40", numa: tuple[int | None, ...] = (), host: str = "h") -> list[Device]:
    return [
        Device(
            id=f"{host}/gpu{at}",
            host=host,
            kind=DeviceKind.gpu,
            name=name,
            memory_bytes=None,
            index=at,
            numa=numa[at] if numa else None,
        )
        for at in range(number)
    ]


def machine(devices: list[Device], kind_of: Callable[[int, int], str | None], **host: Any) -> Topology:
    pairs = tuple(
        Pair(a=devices[a].id, b=devices[b].id, kind=kind)
        for a, b in combinations(range(len(devices)), 2)
        if (kind := kind_of(a, b)) is not None
    )
    parts = Host(name=devices[0].host, memory_bytes=None, cores=None, devices=tuple(devices), **host)
    return Topology(hosts=(parts,), pairs=pairs)


def switched(devices: list[Device], counts: list[int]) -> Topology:
    topology = machine(devices, lambda a, b: f"NV{min(counts[a], counts[b])}")
    switch = Switch(id="h/nvswitch", kind=SwitchKind.nvswitch, host="h")
    links = tuple(
        Link(a=device.id, b=switch.id, kind=f"NV{count}", source="test")
        for device, count in zip(devices, counts, strict=True)
    )
    return replace(topology, switches=(switch,), links=links)


def the_class(topology: Topology) -> MachineClass:
    (kind,) = machine_classes(topology)
    return kind


CUBE = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2}


def test_every_class_is_told() -> None:
    assert the_class(machine(gpus(1), lambda a, b: "SYS")) is MachineClass.single
    assert the_class(machine(gpus(4), lambda a, b: "PHB")) is MachineClass.pcie
    assert the_class(machine(gpus(4), lambda a, b: "NV4")) is MachineClass.full_mesh
    assert the_class(machine(gpus(4), lambda a, b: "NV4" if a // 2 == b // 2 else "SYS")) is MachineClass.pairs
    ring = machine(gpus(4), lambda a, b: "NV2" if b - a in {1, 3} else "SYS")
    assert the_class(ring) is MachineClass.partial_mesh
    assert the_class(switched(gpus(8), [12] * 8)) is MachineClass.nvswitch
    cpu = Device(id="h/cpu0", host="h", kind=DeviceKind.cpu, name="C", memory_bytes=None, cores=1)
    assert the_class(machine([cpu], lambda a, b: None)) is MachineClass.cpu


def test_a_fabric_joins_hosts() -> None:
    hosts = []
    for name in ("a", "b"):
        devices = tuple(replace(device, fabric="rack/1") for device in gpus(2, host=name))
        hosts.append(Host(name=name, memory_bytes=None, cores=None, devices=devices))
    assert machine_classes(Topology(hosts=tuple(hosts))) == (MachineClass.fabric,) * 2
    assert the_class(Topology(hosts=(hosts[0],))) is MachineClass.pcie


def test_islands_grow_from_level_to_level() -> None:
    def kind(a: int, b: int) -> str:
        return "NV4" if a // 2 == b // 2 else "PXB" if a // 4 == b // 4 else "SYS"

    topology = machine(gpus(8), kind)
    assert [len(islands_at(topology, level)) for level in ("NV", "PIX", "PXB", "NODE", "SYS")] == [4, 4, 2, 2, 1]
    with pytest.raises(ValueError, match="FAR"):
        islands_at(topology, "FAR")


def test_a_gpu_with_fewer_links_is_named() -> None:
    (text,) = judge(switched(gpus(8), [12] * 7 + [10]))
    assert text.startswith("GPU7: 10 of 12 NVLinks active")
    assert "nvidia-smi nvlink -s" in text
    (text,) = judge(machine(gpus(4), lambda a, b: "NV10" if 3 in {a, b} else "NV12"))
    assert text.startswith("GPU3: 10 of 12 NVLinks")


def test_a_gpu_without_any_link_among_linked_ones_is_named() -> None:
    whole = switched(gpus(8, "NVIDIA H200"), [18] * 8)
    pairs = tuple(replace(pair, kind="NODE") if pair.b == "h/gpu7" else pair for pair in whole.pairs)
    (text,) = judge(replace(whole, pairs=pairs, links=whole.links[:-1]))
    assert text.startswith("GPU7: 0 of 18 NVLinks active")
    mesh = machine(gpus(4, "NVIDIA A100-SXM4-40GB"), lambda a, b: "NODE" if b == 3 else "NV4")
    (text,) = judge(mesh)
    assert text.startswith("GPU3: 0 of 4 NVLinks active")
    assert judge(machine(gpus(3, "NVIDIA RTX A6000"), lambda a, b: "NV4" if b < 2 else "PHB")) == ()


def test_cards_sold_with_more_links_are_named() -> None:
    (text,) = judge(switched(gpus(4, "NVIDIA A100-SXM4-80GB"), [10] * 4))
    assert text.startswith("GPU0, GPU1, GPU2, GPU3: 10 of 12 NVLinks active")
    assert judge(switched(gpus(4, "NVIDIA A100-SXM4-80GB"), [12] * 4)) == ()


def test_a_mesh_of_unlike_bundles_is_no_fault() -> None:
    assert judge(machine(gpus(4), lambda a, b: f"NV{CUBE[a, b]}")) == ()


def test_boards_made_for_nvlink_need_it() -> None:
    for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200"):
        (text,) = judge(machine(gpus(8, name), lambda a, b: "PHB"))
        assert "nvidia-fabricmanager" in text
    for name in ("NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090"):
        assert judge(machine(gpus(8, name), lambda a, b: "PHB")) == ()
    assert judge(machine(gpus(1, "NVIDIA H200"), lambda a, b: "PHB")) == ()


def test_slots_below_the_card_are_named() -> None:
    slow = Pcie(max_generation=3, max_width=8, generation=1, width=8, device_max_generation=4)
    fine = Pcie(max_generation=4, max_width=16, generation=1, width=16, device_max_generation=4)
    devices = [replace(device, pcie=slow if at == 1 else fine) for at, device in enumerate(gpus(3))]
    found = judge(machine(devices, lambda a, b: "PHB"))
    assert [text.split(";")[0] for text in found] == [
        "GPU1: PCIe Gen3 slot under a Gen4 card",
        "GPU1: PCIe x8 where its like have x16",
    ]


def test_virtual_machines_are_not_believed() -> None:
    one = Pcie(max_generation=1, max_width=1)
    devices = [replace(device, pcie=one) for device in gpus(2)]
    found = " ".join(judge(machine(devices, lambda a, b: "PHB", is_virtual=True, sockets=2)))
    assert "a virtual machine" in found
    assert "2.5 GT/s" in found
    assert "NUMA node unknown on 2 sockets" in found


def test_numa_nodes_against_labels_are_named() -> None:
    (text,) = judge(machine(gpus(2, numa=(0, 0)), lambda a, b: "SYS"))
    assert text.startswith("GPU0 - GPU1: SYS although on one NUMA node")
    (text,) = judge(machine(gpus(2, numa=(0, 1)), lambda a, b: "PHB"))
    assert text.startswith("GPU0 - GPU1: nearer than SYS although on two NUMA nodes")
    assert judge(machine(gpus(2, numa=(0, 1)), lambda a, b: "SYS")) == ()


def test_labels_no_tree_has_are_contradictions() -> None:
    labels: Kinds = {(0, 1): "PIX", (1, 2): "PIX", (0, 2): "SYS"}
    topology = machine(gpus(3), lambda a, b: labels[a, b])
    (text,) = contradictions(topology)
    assert text.startswith("h/gpu0 - h/gpu2 is SYS")
    assert judge(topology)[0] == text


def test_a_tree_against_the_driver_is_told() -> None:
    topology = machine(gpus(2), lambda a, b: "PIX")
    bridges = [Switch(id=f"h/b{at}", kind=SwitchKind.bridge, host="h") for at in range(2)]
    socket = Switch(id="h/node0", kind=SwitchKind.socket, host="h")
    up = [Link(a=f"h/gpu{at}", b=f"h/b{at}", kind="PCIe", source="test") for at in range(2)]
    inside = [Link(a=bridge.id, b=socket.id, kind="CPU", source="test") for bridge in bridges]
    (text,) = judge(replace(topology, switches=(*bridges, socket), links=(*up, *inside)))
    assert text.startswith("GPU0 - GPU1: PIX by the driver, NODE by the PCIe tree")


def test_judging_twice_adds_nothing() -> None:
    topology = judged(machine(gpus(8, "NVIDIA H200"), lambda a, b: "PHB"))
    assert len(topology.warnings) == 1
    assert judged(topology) == topology


def test_names_are_the_drivers_indices() -> None:
    devices = [replace(device, index=at) for device, at in zip(gpus(3), (2, None, 2), strict=True)]
    assert list(short_names(machine(devices, lambda a, b: None).hosts[0]).values()) == ["GPU2", "GPU1", "GPU2.1"]


def test_many_hosts_are_judged_one_by_one() -> None:
    parts = [machine(gpus(2, numa=(0, 0), host=name), lambda a, b: "SYS") for name in ("a", "b")]
    both = Topology(hosts=tuple(part.hosts[0] for part in parts), pairs=tuple(part.pairs[0] for part in parts))
    assert [text[:3] for text in judge(both)] == ["a: ", "b: "]


def test_a_quantity_is_finite() -> None:
    with pytest.raises(TopologyError):
        replace(gpus(1)[0], memory_bytes=10**400)


def test_one_thin_bundle_of_a_mesh_is_named() -> None:
    (text,) = judge(machine(gpus(4), lambda a, b: "NV3" if (a, b) == (1, 2) else "NV4"))
    assert text.startswith("GPU1, GPU2: 3 of 4 NVLinks active")


def test_a_gpu_without_a_name_that_is_off_the_switch_is_named() -> None:
    whole = switched(gpus(8, "unknown GPU"), [18] * 8)
    pairs = tuple(replace(pair, kind="NODE") if "h/gpu2" in {pair.a, pair.b} else pair for pair in whole.pairs)
    links = tuple(link for link in whole.links if link.a != "h/gpu2")
    (text,) = judge(replace(whole, pairs=pairs, links=links))
    assert text.startswith("GPU2: 0 of 18 NVLinks active")


def test_links_and_pairs_that_disagree_are_contradictions() -> None:
    topology = machine(gpus(2), lambda a, b: "NV4")
    link = Link(a="h/gpu0", b="h/gpu1", kind="NV99", source="test")
    assert contradictions(topology) == ()
    assert contradictions(replace(topology, links=(replace(link, kind="NV4"),))) == ()
    (text,) = contradictions(replace(topology, links=(link,)))
    assert text == "h/gpu0 - h/gpu1 is NV4, but its links are NV99"
    (text,) = contradictions(replace(machine(gpus(2), lambda a, b: "SYS"), links=(link,)))
    assert "is SYS" in text
    three = machine(gpus(3), lambda a, b: "NV4")
    texts = contradictions(replace(three, links=(replace(link, kind="NV4"),)))
    assert [text.split(",")[1] for text in texts] == [" but its links are no NVLinks"] * 2


def test_two_gpus_at_one_address_are_a_contradiction() -> None:
    devices = [replace(device, pci="0000:01:00.0") for device in gpus(2)]
    assert contradictions(machine(devices, lambda a, b: "PHB")) == ("two GPUs at the PCI address 0000:01:00.0",)


@pytest.mark.parametrize("ups", [[("s0", "s1"), ("s1", "s0")], [("s0", "s0b"), ("h/gpu0", "s0"), ("h/gpu0", "s1")]])
def test_what_is_no_tree_is_a_contradiction(ups: list[tuple[str, str]]) -> None:
    topology = machine(gpus(1), lambda a, b: "PHB")
    switches = tuple(Switch(id=name, kind=SwitchKind.pcie, host="h") for name in ("s0", "s0b", "s1"))
    links = tuple(Link(a=a, b=b, kind="PCIe", source="test") for a, b in ups)
    assert contradictions(replace(topology, switches=switches, links=links))


def test_links_that_were_not_read_are_not_called_down() -> None:
    whole = switched(gpus(8, "NVIDIA H200"), [18] * 8)
    (host,) = whole.hosts
    devices = tuple(replace(device, unread=("nvlink",)) if device.index == 2 else device for device in host.devices)
    pairs = tuple(replace(pair, kind="NODE") if "h/gpu2" in {pair.a, pair.b} else pair for pair in whole.pairs)
    links = tuple(link for link in whole.links if link.a != "h/gpu2")
    found = Topology(hosts=(replace(host, devices=devices),), pairs=pairs, links=links, switches=whole.switches)
    (text,) = judge(found)
    assert text.startswith("GPU2: the state of the NVLinks cannot be read")
    all_hidden = [replace(device, unread=("nvlink",)) for device in gpus(8, "NVIDIA H200")]
    (text,) = judge(machine(all_hidden, lambda a, b: "NODE"))
    assert "cannot be read" in text
    geforce = [replace(device, unread=("nvlink",)) for device in gpus(2, "NVIDIA GeForce RTX 4090")]
    assert judge(machine(geforce, lambda a, b: "PHB")) == ()


def test_slices_do_not_take_the_name_of_another_card() -> None:
    card = replace(gpus(2)[1], id="whole")
    slices = [replace(gpus(1)[0], id=f"mig{at}", parent="GPU-0", mig=True) for at in range(2)]
    names = short_names(machine([*slices, card], lambda a, b: None).hosts[0])
    assert list(names.values()) == ["GPU0.0", "GPU0.1", "GPU1"]
