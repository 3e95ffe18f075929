from __future__ import annotations

from collections import Counter
from pathlib import Path
from time import process_time

import pytest
import yaml

from topology.errors import TopologyError
from topology.model import DeviceKind, Link, SwitchKind, Topology
from topology.network import NetworkKind, NetworkSpec
from topology.pcie_tree import pcie_labels
from topology.presets import cpu_host, preset, preset_names

CONFIGS = Path(__file__).parents[3] / "configs" / "topology"


@pytest.mark.parametrize(
    ("name", "gpus", "kinds", "islands"),
    [
        ("1x24gb", 1, set(), 1),
        ("2x24gb-pcie", 2, {"PHB"}, 2),
        ("2x24gb-node", 2, {"NODE"}, 2),
        ("8xa100-80gb", 8, {"NV12"}, 1),
        ("8xh100", 8, {"NV18"}, 1),
        ("4xv100-16gb", 4, {"NV1", "NV2"}, 1),
        ("2xa100-40gb+2xt4", 4, {"NODE", "SYS"}, 4),
        ("dgx1_v100", 8, {"NV1", "NV2", "SYS"}, 1),
        ("dgx2_v100", 16, {"NV6"}, 1),
        ("hgx_b200", 8, {"NV18"}, 1),
        ("pcie_4090x8", 8, {"NODE", "SYS"}, 8),
        ("pcie_l40s_x8", 8, {"PIX", "SYS"}, 8),
        ("a100_pcie_pairs_x4", 4, {"NV12", "SYS"}, 2),
        ("rtx3090_nvlink_pair", 2, {"NV4"}, 1),
        ("p4d", 8, {"NV12"}, 1),
        ("rtx4090", 1, set(), 1),
    ],
)
def test_presets_are_the_machines_they_name(name: str, gpus: int, kinds: set[str], islands: int) -> None:
    topology = preset(name)
    assert len(topology.gpus) == gpus
    assert {pair.kind for pair in topology.pairs} == kinds
    assert len(topology.islands) == islands


def test_an_nvswitch_gives_every_gpu_its_whole_rate() -> None:
    for name, rate in (("8xa100-80gb", 300e9), ("dgx_h100", 450e9), ("hgx_b200", 900e9), ("dgx2_v100", 150e9)):
        topology = preset(name)
        assert {link.bytes_per_second for link in topology.links if link.kind.startswith("NV")} == {rate}


def test_a_hybrid_cube_mesh_uses_all_six_links_of_each_gpu() -> None:
    counts: Counter[str] = Counter()
    for pair in preset("dgx1_v100").pairs:
        if pair.is_nvlink:
            counts.update({pair.a: int(pair.kind[2:]), pair.b: int(pair.kind[2:])})
    assert set(counts.values()) == {6}


@pytest.mark.parametrize("name", preset_names())
def test_every_part_is_placed_and_known(name: str) -> None:
    topology = preset(name)
    for host in topology.hosts:
        assert host.memory_bytes
        assert host.cores
        assert host.sockets
    for gpu in topology.gpus:
        assert gpu.compute_capability
        assert gpu.power_limit_watts
        assert gpu.cpus
    assert all(link.source for link in topology.links)
    assert all(link.bytes_per_second for link in topology.links if link.kind.startswith(("NV", "PCIe", "NET", "C2C")))
    assert all(nic.bytes_per_second for nic in topology.nics)
    joined = {end for link in topology.links for end in (link.a, link.b)}
    assert {gpu.id for gpu in topology.gpus} <= joined
    assert {nic.id for nic in topology.nics} <= joined


@pytest.mark.parametrize("name", [name for name in preset_names() if name not in {"gb200_nvl72", "gh200", "cpu"}])
def test_the_tree_tells_the_labels_that_nvlink_does_not_hide(name: str) -> None:
    topology = preset(name)
    labels = pcie_labels(topology)
    for pair in topology.pairs:
        assert pair.is_nvlink or labels[frozenset((pair.a, pair.b))] == pair.kind
    gpus = [{gpu.id for gpu in host.devices} for host in topology.hosts]
    assert sum(any(ends <= own for own in gpus) for ends in labels) == len(topology.pairs)


def test_the_gpus_of_a_rack_meet_in_one_switch_between_the_hosts() -> None:
    rack = preset("gb200_nvl72")
    assert len(rack.hosts) == 18
    assert len({gpu.fabric for gpu in rack.gpus}) == 1
    nvswitches = [switch for switch in rack.switches if switch.kind is SwitchKind.nvswitch]
    assert [switch.host for switch in nvswitches] == [None]
    ends = {link.a: link for link in rack.links if link.b == nvswitches[0].id}
    assert set(ends) == {gpu.id for gpu in rack.gpus}
    assert {(link.kind, link.bytes_per_second) for link in ends.values()} == {("NV18", 900e9)}
    assert {link.bytes_per_second for link in rack.links if link.kind == "C2C"} == {225e9}


def test_two_racks_are_two_fabrics() -> None:
    racks = preset("gb200_nvl72", nodes=2)
    assert len(racks.hosts) == 36
    assert Counter(gpu.fabric for gpu in racks.gpus).most_common() == [
        ("00000000-0000-0000-0000-000000000001.0", 72),
        ("00000000-0000-0000-0000-000000000002.0", 72),
    ]
    assert sum(switch.kind is SwitchKind.nvswitch for switch in racks.switches) == 2


def test_a_mixed_cluster_has_both_hosts_on_one_network() -> None:
    topology = preset("mixed_a100_h100")
    assert [host.name for host in topology.hosts] == ["dgx-a100", "dgx-h100"]
    assert Counter(gpu.name for gpu in topology.gpus) == {"NVIDIA A100-SXM4-80GB": 8, "NVIDIA H100 80GB HBM3": 8}
    assert {link.bytes_per_second for link in net_links(topology) if "/mlx5_" in link.a} == {25e9, 50e9}


def net_links(topology: Topology) -> list[Link]:
    return [link for link in topology.links if link.kind == "NET"]


def test_many_nodes_are_joined_by_rails_over_the_compute_ports() -> None:
    topology = preset("dgx_h100", nodes=3)
    assert [host.name for host in topology.hosts] == ["dgx-h100-1", "dgx-h100-2", "dgx-h100-3"]
    assert len({device.id for device in topology.devices}) == 24
    assert {device.uuid for device in topology.devices} == {device.id for device in topology.devices}
    rails: dict[str, list[str]] = {}
    for link in net_links(topology):
        if "/mlx5_" in link.a:
            rails.setdefault(link.b, []).append(link.a.split("/")[1])
    # Each rail has one port of every host, the same one; ports 1, 2, 7 and 8 are for storage.
    assert sorted(map(sorted, rails.values())) == [[f"mlx5_{at}"] * 3 for at in (0, 10, 11, 3, 4, 5, 6, 9)]
    assert topology.warnings == ()


def test_a_network_of_ones_own_goes_before_the_usual_one() -> None:
    own = NetworkSpec(kind=NetworkKind.leaf_spine, hosts_per_leaf=2, oversubscription=4.0)
    topology = preset("dgx_h100", nodes=4, network=own)
    uplinks = {link.a: link.bytes_per_second for link in net_links(topology) if link.b == "network/spine"}
    assert uplinks == {"network/leaf0": 2 * 8 * 50e9 / 4, "network/leaf1": 2 * 8 * 50e9 / 4}


def test_one_node_stands_alone() -> None:
    topology = preset("dgx_h100", network=NetworkSpec(kind=NetworkKind.rail))
    assert net_links(topology) == []


def test_the_cpu_host_has_as_many_slots_as_asked() -> None:
    topology = cpu_host(slots=5)
    assert [device.id for device in topology.devices] == [f"cpuhost/cpu{slot}" for slot in range(5)]
    assert {device.kind for device in topology.devices} == {DeviceKind.cpu}
    assert topology.hosts[0].memory_bytes == sum(device.memory_bytes or 0 for device in topology.devices)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("DGX-H100", "dgx_h100"),
        ("dgx h100", "dgx_h100"),
        ("HGX_H100", "dgx_h100"),
        ("p4d.24xlarge", "p4d"),
        ("GB200-NVL72", "gb200_nvl72"),
        ("RTX 4090", "rtx4090"),
        ("8x4090", "pcie_4090x8"),
        ("2X24GB_PCIE", "2x24gb-pcie"),
    ],
)
def test_names_are_known_in_any_spelling(spelling: str, name: str) -> None:
    assert preset(spelling) == preset(name)


@pytest.mark.parametrize(
    ("asked", "near"),
    [("dgx_h10", "dgx_h100"), ("dgxh1000", "dgx_h100"), ("2x24", "2x24gb-pcie"), ("gb200_nvl27", "gb200_nvl72")],
)
def test_an_unknown_name_is_told_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(TopologyError, match=f"use '{near}'"):
        preset(asked)


@pytest.mark.parametrize("name", ["", "?", "-"])
def test_a_name_without_letters_is_refused(name: str) -> None:
    with pytest.raises(TopologyError, match="no drawn machine of that name"):
        preset(name)


def test_cpu_hosts_are_drawn_several_times() -> None:
    one, three = preset("cpu"), preset("cpu", nodes=3)
    assert [host.name for host in three.hosts] == ["cpuhost", "cpuhost-2", "cpuhost-3"]
    assert len({device.id for device in three.devices}) == 3 * len(one.devices)
    assert {host.cores for host in three.hosts} == {one.hosts[0].cores}
    assert three.source == "preset cpu, 3 times"


def test_a_number_of_nodes_that_cannot_be_is_refused() -> None:
    for name, nodes in (("dgx_h100", 0), ("dgx_h100", 10**9), ("cpu", 0)):
        with pytest.raises(TopologyError, match="nodes"):
            preset(name, nodes=nodes)


def test_every_preset_can_be_named_on_the_command_line() -> None:
    told = {path.stem: yaml.safe_load(path.read_text()) for path in CONFIGS.glob("*.yaml")}
    drawn = {stem: data["preset"] for stem, data in told.items() if data["preset"]}
    assert drawn == {name: name for name in preset_names()}


def test_a_thousand_hosts_are_whole_within_a_second() -> None:
    # Processor time, and the best of three: other work on the machine is no fault of this one.
    for _ in range(3):
        start = process_time()
        topology = preset("dgx_h100", nodes=1024)
        seconds = process_time() - start
        if seconds < 1:
            break
    assert seconds < 1
    assert len(topology.devices) == 8192
    assert len(topology.islands) == 1024
    leaves = [switch for switch in topology.switches if switch.kind is SwitchKind.network]
    assert len(leaves) == 8 * 32 + 1
