"""A host written as nvidia-smi does is read back as the same host."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Host, Nic, Pair, Topology
from topology.pcie_tree import LEVELS, Member, pcie_labels, tree_from_labels
from topology.presets import preset, preset_names
from topology.probe.smi import parse_smi
from topology.render.smi import smi_text

WORDS = list(LEVELS)


def label_of(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return WORDS[len(a) - same]


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    address = st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 1), st.integers(0, 1))
    indices = draw(st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True))
    nic_names = draw(st.lists(st.sampled_from(["mlx5_0", "bnxt_re1", "efa_0", "ib0", "ens1f0np0"]), unique=True))
    place = {f"h/gpu{at}": draw(address) for at in indices} | {f"h/{name}": draw(address) for name in nic_names}
    cpus = st.sampled_from([None, "0-15,32-47", "0,2,4", "7"])
    devices = tuple(
        Device(
            id=f"h/gpu{at}",
            host="h",
            kind=DeviceKind.gpu,
            name="unknown GPU",
            memory_bytes=None,
            numa=draw(st.sampled_from([None, place[f"h/gpu{at}"][0]])),
            index=at,
            cpus=draw(cpus),
        )
        for at in sorted(indices)
    )
    nics = tuple(Nic(id=f"h/{name}", name=name, kind="unknown") for name in nic_names)
    labels = {(a, b): label_of(place[a], place[b]) for a, b in combinations(place, 2)}
    numa = {device.id: device.numa for device in devices}
    tree = tree_from_labels("h", [Member(id=name, numa=numa.get(name)) for name in place], labels)
    pairs = tuple(
        Pair(a=a.id, b=b.id, kind=f"NV{draw(st.integers(1, 18))}" if draw(st.booleans()) else "SYS")
        for a, b in combinations(devices, 2)
    )
    host = Host(name="h", memory_bytes=None, cores=None, devices=devices, nics=nics)
    kept = tuple(pair for pair in pairs if pair.is_nvlink)
    return Topology(hosts=(host,), links=tree.links, switches=tree.switches, pairs=kept)


def shape(topology: Topology) -> tuple[object, ...]:
    (host,) = topology.hosts
    return (
        [(device.index, device.numa, device.cpus) for device in host.devices],
        [nic.name for nic in host.nics],
        {frozenset((pair.a, pair.b)): pair.kind for pair in topology.pairs if pair.is_nvlink},
    )


@settings(max_examples=60, deadline=None)
@given(machines())
def test_a_drawn_machine_comes_back(machine: Topology) -> None:
    text = smi_text(machine)
    again = parse_smi(text, host="h")
    assert shape(again) == shape(machine)
    assert smi_text(again) == text
    joined = {frozenset((pair.a, pair.b)) for pair in machine.pairs}
    places = {ends: label for ends, label in pcie_labels(machine).items() if ends not in joined}
    assert {ends: label for ends, label in pcie_labels(again).items() if ends not in joined} == places


@settings(max_examples=40, deadline=None)
@given(machines())
def test_pcie_labels_alone_come_back(machine: Topology) -> None:
    text = smi_text(machine, is_pcie_only=True)
    again = parse_smi(text, host="h")
    assert pcie_labels(again) == pcie_labels(machine)
    assert smi_text(again, is_pcie_only=True) == text
    both = parse_smi(smi_text(machine) + "\n" + text, host="h")
    assert pcie_labels(both) == pcie_labels(machine)
    assert shape(both) == shape(machine)


@pytest.mark.parametrize("name", preset_names())
def test_presets_come_back(name: str) -> None:
    topology = preset(name)
    for host in topology.hosts[:2]:
        if not any(device.kind is DeviceKind.gpu for device in host.devices):
            continue
        text = smi_text(topology, host.name)
        again = parse_smi(text, host=host.name)
        matrix, _, left_out = text.partition("\nNICs left out")
        assert smi_text(again) == matrix
        assert any("NICs left out" in warning for warning in again.warnings) == bool(left_out)
        assert [nic.name for nic in host.nics if nic.name not in left_out] == [nic.name for nic in again.nics]
        assert [device.numa for device in again.gpus] == [device.numa for device in host.devices]


def test_the_text() -> None:
    devices = tuple(
        Device(
            id=f"u{at}", host="h", kind=DeviceKind.gpu, name="G", memory_bytes=None, numa=at, index=at, cpus=f"{at}-9"
        )
        for at in (1, 0)
    )
    host = Host(name="h", memory_bytes=None, cores=None, devices=devices)
    topology = Topology(hosts=(host,), pairs=(Pair(a="u0", b="u1", kind="NV2"),))
    lines = smi_text(topology).splitlines()
    assert lines[0] == "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity"
    assert lines[1] == "GPU0\t X \tNV2\t0-9\t0"
    assert lines[2] == "GPU1\tNV2\t X \t1-9\t1"
    assert any(line.startswith("  NV#  = ") for line in lines)


def test_what_cannot_be_written_is_told() -> None:
    devices = tuple(Device(id=f"u{at}", host="h", kind=DeviceKind.gpu, name="G", memory_bytes=None) for at in range(2))
    host = Host(name="h", memory_bytes=None, cores=None, devices=devices)
    with pytest.raises(TopologyError, match="GPU0 - GPU1: no label is known"):
        smi_text(Topology(hosts=(host,)))
    joined = Topology(hosts=(host,), pairs=(Pair(a="u0", b="u1", kind="NV2"),))
    with pytest.raises(TopologyError, match="GPU0 - GPU1: no label is known"):
        smi_text(joined, is_pcie_only=True)
    with pytest.raises(TopologyError, match="no GPU"):
        smi_text(Topology(hosts=(replace(host, devices=()),)))
    with pytest.raises(TopologyError, match="the hosts h"):
        smi_text(joined, "x")


def with_nics(names: list[str], num_gpus: int = 2, **changes: Any) -> Topology:
    devices = tuple(
        replace(
            Device(id=f"u{at}", host="h", kind=DeviceKind.gpu, name="G", memory_bytes=None, index=at, numa=0),
            **(changes if at else {}),
        )
        for at in range(num_gpus)
    )
    nics = tuple(Nic(id=f"n{at}", name=name, kind="unknown") for at, name in enumerate(names))
    ids = [*(device.id for device in devices), *(nic.id for nic in nics)]
    tree = tree_from_labels("h", [Member(id=one) for one in ids], dict.fromkeys(combinations(ids, 2), "PHB"))
    host = Host(name="h", memory_bytes=None, cores=None, devices=devices, nics=nics)
    return Topology(hosts=(host,), links=tree.links, switches=tree.switches)


ODD_NAMES = [
    "a\x1b[31mred\x07",
    "l1\nGPU9\tX\nrow",
    "GPU0",
    "GPU0GPU1",
    "9p",
    "",
    "p\u202eg",
    "eth 0",
    "\U0001f525",
    "N" * 999,
]
ODD_NAMES += [
    "gpu0",
    "node0",
    "bridge0",
    "pcie0",
    "nvswitch",
    "mlx5_0",
    "mlx5_0",
    "mlx5_0.1",
    "NIC7",
    "X",
    "PIX",
    "X = Y",
]


def test_odd_names_are_written_as_text_that_is_read_back() -> None:
    text = smi_text(with_nics(ODD_NAMES))
    assert text.isascii()
    assert text.replace("\n", "").replace("\t", "").isprintable()
    again = parse_smi(text, host="h")
    assert len(again.nics) == len(ODD_NAMES)
    assert smi_text(again) == text
    names = [nic.name for nic in again.nics]
    assert names[0] == "a??31mred?"
    assert names[2] == "?GPU0"
    assert names[10:18] == ["gpu0", "node0", "bridge0", "pcie0", "nvswitch", "mlx5_0", "mlx5_0.1", "mlx5_0.1.1"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=70), max_size=5))
def test_any_names_come_back_as_text(names: list[str]) -> None:
    text = smi_text(with_nics(names))
    again = parse_smi(text, host="h")
    assert len(again.nics) == len(names)
    assert smi_text(again) == text


@pytest.mark.parametrize(
    "changes",
    [{"index": 10**6}, {"cpus": "5\nGPU9 X"}, {"numa": 10**9}, {"numa": None}, {"index": None}],
)
def test_odd_values_are_written_as_unknown(changes: dict[str, Any]) -> None:
    text = smi_text(with_nics(["mlx5_0"], **changes))
    assert smi_text(parse_smi(text, host="h")) == text
    assert text.splitlines()[2].startswith("GPU1\tPHB\t X \tPHB\t")


def test_nics_of_unknown_places_are_left_out_by_name() -> None:
    whole = with_nics(["mlx5_0", "mlx5_1"])
    links = tuple(link for link in whole.links if link.a != "n0")
    text = smi_text(replace(whole, links=links))
    assert text.splitlines()[0] == "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity"
    assert "  NIC0: mlx5_1" in text.splitlines()
    assert text.splitlines()[-1] == "NICs left out, as their places are not known: mlx5_0"
    again = parse_smi(text, host="h")
    assert [nic.name for nic in again.nics] == ["mlx5_1"]
    assert "NICs left out, as their places are not known: mlx5_0" in again.warnings


def test_more_than_such_a_text_can_hold_is_refused() -> None:
    with pytest.raises(TopologyError, match="258 GPUs and NICs, more than 256"):
        smi_text(with_nics([f"n{at}" for at in range(256)]))
    devices = with_nics([]).hosts
    with pytest.raises(TopologyError, match="GPU0 - GPU1: NV99, but no GPU has more than 36"):
        smi_text(Topology(hosts=devices, pairs=(Pair(a="u0", b="u1", kind="NV99"),)))
