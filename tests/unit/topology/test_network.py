from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Switch, SwitchKind, Topology
from topology.network import NetworkKind, NetworkSpec, merge, network_from_json, network_to_json
from topology.presets import preset

GBIT = 1e9 / 8


def nic(host: str, name: str, gbit: float | None = 100, kind: str = "infiniband", **changes: Any) -> Nic:
    rate = None if gbit is None else gbit * GBIT
    return Nic(id=f"{host}/{name}", name=name, kind=kind, bytes_per_second=rate, **changes)


def box(name: str = "node", *nics: Nic, gpu: str | None = None, **changes: Any) -> Topology:
    """One host with a GPU; its id is a UUID."""
    uuid = gpu or f"GPU-{name}"
    device = Device(id=uuid, uuid=uuid, host=name, kind=DeviceKind.gpu, name="T4", memory_bytes=1)
    return Topology(hosts=(Host(name=name, memory_bytes=1, cores=1, devices=(device,), nics=nics),), **changes)


def boxes(names: Iterable[str], ports: int = 1) -> list[Topology]:
    return [box(name, *(nic(name, f"ib{at}") for at in range(ports))) for name in names]


def net(topology: Topology) -> dict[str, tuple[str, float | None]]:
    return {link.a: (link.b, link.bytes_per_second) for link in topology.links if link.kind == "NET"}


kinds = st.sampled_from(NetworkKind)


@st.composite
def networks(draw: st.DrawFn) -> NetworkSpec:
    kind = draw(kinds)
    is_flat = kind is NetworkKind.flat
    per_leaf = None if is_flat else draw(st.none() | st.integers(1, 5))
    has_one_leaf = is_flat or (kind is NetworkKind.leaf_spine and per_leaf is None)
    return NetworkSpec(
        kind=kind,
        bytes_per_second=draw(st.none() | st.floats(1, 1e12)),
        hosts_per_leaf=per_leaf,
        oversubscription=1.0 if has_one_leaf else draw(st.floats(1, 16)),
        rails=draw(st.none() | st.integers(1, 4)) if kind is NetworkKind.rail else None,
    )


@given(networks())
def test_a_description_survives_json(network: NetworkSpec) -> None:
    assert network_from_json(network_to_json(network)) == network


def test_every_field_may_be_left_out_and_kinds_take_a_dash() -> None:
    assert network_from_json({}) == NetworkSpec()
    assert network_from_json({"kind": "Leaf-Spine"}).kind is NetworkKind.leaf_spine


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes_per_second": 0.0}, "bytes_per_second 0.0 not above 0"),
        ({"bytes_per_second": float("nan")}, "bytes_per_second nan"),
        ({"kind": NetworkKind.rail, "hosts_per_leaf": 0}, "hosts_per_leaf 0 below 1"),
        ({"kind": NetworkKind.rail, "oversubscription": 0.5}, "oversubscription 0.5 not 1 or more"),
        ({"kind": NetworkKind.rail, "oversubscription": float("inf")}, "oversubscription inf"),
        ({"kind": NetworkKind.rail, "rails": 0}, "rails 0 below 1"),
        ({"kind": NetworkKind.leaf_spine, "oversubscription": 2.0}, "all hosts share one leaf"),
        ({"oversubscription": 2.0}, "a flat network has no uplinks"),
        ({"hosts_per_leaf": 2}, "a flat network has one switch"),
        ({"kind": NetworkKind.leaf_spine, "rails": 2}, "rails on a leaf_spine network"),
    ],
)
def test_a_description_rejects_what_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        NetworkSpec(**changes)


def test_all_faults_of_a_description_come_at_once() -> None:
    with pytest.raises(TopologyError) as caught:
        network_from_json({"kind": "torus", "bytes_per_second": "fast", "oversubscription": 0, "speed": 1})
    problems = [problem.split(":")[0] for problem in caught.value.problems]
    assert problems == ["$.speed", "$.kind", "$.bytes_per_second", "$"]


@pytest.mark.parametrize("data", [None, [], "rail", 1, {"schema": "trainmaster.network/9"}, {"kind": []}])
def test_what_is_no_description_is_refused(data: object) -> None:
    with pytest.raises(TopologyError, match="network description"):
        network_from_json(data)


def test_nothing_is_added_to_one_host() -> None:
    one = box("node", nic("node", "ib0"))
    assert merge([one], NetworkSpec(kind=NetworkKind.rail)) == one
    with pytest.raises(TopologyError, match="no host"):
        merge([])


def test_hosts_come_in_the_natural_order_of_their_names_whatever_the_order_given() -> None:
    given_hosts = boxes(["node10", "node2", "node1"])
    topology = merge(given_hosts, NetworkSpec())
    assert [host.name for host in topology.hosts] == ["node1", "node2", "node10"]
    assert merge(given_hosts[::-1], NetworkSpec()) == topology


def test_without_a_description_one_switch_joins_all_and_a_warning_says_so() -> None:
    topology = merge(boxes(["a", "b"]))
    assert net(topology) == {"a/ib0": ("network", 100 * GBIT), "b/ib0": ("network", 100 * GBIT)}
    assert len(topology.warnings) == 1
    assert "no description of the network" in topology.warnings[0]
    assert merge(boxes(["a", "b"]), NetworkSpec()).warnings == ()


def test_hosts_of_one_name_are_told_apart_with_all_their_parts() -> None:
    twin = box(
        "node",
        nic("node", "ib0"),
        gpu="GPU-2",
        switches=(Switch(id="node/node0", kind=SwitchKind.socket, host="node"),),
        links=(Link(a="node/ib0", b="node/node0", kind="PCIe", source="s"),),
    )
    topology = merge([box("node", nic("node", "ib0"), gpu="GPU-1"), twin], NetworkSpec())
    assert [host.name for host in topology.hosts] == ["node", "node-2"]
    assert [(device.id, device.host) for device in topology.devices] == [("GPU-1", "node"), ("GPU-2", "node-2")]
    assert [part.id for part in topology.nics] == ["node/ib0", "node-2/ib0"]
    assert next((part.id, part.host) for part in topology.switches) == ("node-2/node0", "node-2")
    assert topology.links[0].a == "node-2/ib0"
    assert topology.warnings == ("2 hosts are called node: here node, node-2",)


def test_a_copied_snapshot_gets_ids_of_its_own_and_a_warning() -> None:
    pair = preset("2x24gb-pcie")
    topology = merge([pair, pair], NetworkSpec())
    first, second = topology.hosts
    assert [device.id for device in second.devices] == [f"{device.id}-2" for device in first.devices]
    assert [device.uuid for device in second.devices] == [device.uuid for device in first.devices]
    assert len(topology.pairs) == 2
    assert any("the same GPU UUIDs" in warning for warning in topology.warnings)


def test_many_copies_are_told_in_few_words() -> None:
    topology = merge([box("node", nic("node", "ib0"))] * 300, NetworkSpec())
    assert topology.hosts[299].devices[0].id == "GPU-node-300"
    assert topology.warnings == (
        "300 hosts are called node: here node, node-2, node-3, node-4 and 296 more",
        (
            "hosts node, node-2, node-3, node-4 and 296 more tell the same GPU UUIDs: are they copies of one snapshot? "
            "The ids of all but the first got a suffix"
        ),
    )


def test_pci_addresses_as_ids_are_no_sign_of_a_copy() -> None:
    def host(name: str) -> Topology:
        return Topology(
            hosts=(
                Host(
                    name=name,
                    memory_bytes=1,
                    cores=1,
                    devices=(
                        Device(id="0000:18:00.0", host=name, kind=DeviceKind.gpu, name="T4", memory_bytes=1),
                        Device(id="0000:19:00.0", host=name, kind=DeviceKind.gpu, name="T4", memory_bytes=1),
                    ),
                ),
            ),
            pairs=(Pair(a="0000:18:00.0", b="0000:19:00.0", kind="PIX"),),
        )

    topology = merge([host("a"), host("b")], NetworkSpec())
    assert [device.id for device in topology.hosts[1].devices] == ["b/0000:18:00.0", "b/0000:19:00.0"]
    assert topology.pairs[1].a == "b/0000:18:00.0"
    assert not any("UUID" in warning for warning in topology.warnings)


def test_rails_take_the_port_of_each_number() -> None:
    topology = merge(boxes(["a", "b"], ports=4), NetworkSpec(kind=NetworkKind.rail, rails=2))
    assert {end: leaf for end, (leaf, _) in net(topology).items() if "ib" in end} == {
        f"{host}/ib{at}": f"network/rail{at % 2}" for host in "ab" for at in range(4)
    }


def test_rails_of_many_hosts_are_in_groups() -> None:
    topology = merge(boxes("abc", ports=2), NetworkSpec(kind=NetworkKind.rail, hosts_per_leaf=2))
    leaves = Counter(leaf for leaf, _ in net(topology).values())
    assert leaves == {
        "network/rail0.0": 2,
        "network/rail1.0": 2,
        "network/rail0.1": 1,
        "network/rail1.1": 1,
        "network/spine": 4,
    }


def test_uplinks_carry_the_downlinks_divided_by_the_oversubscription() -> None:
    spec = NetworkSpec(kind=NetworkKind.leaf_spine, hosts_per_leaf=2, oversubscription=3.0, bytes_per_second=40 * GBIT)
    topology = merge(boxes("abc", ports=2), spec)
    up = {leaf: rate for leaf, (end, rate) in net(topology).items() if end == "network/spine"}
    assert up == {"network/leaf0": pytest.approx(4 * 40 * GBIT / 3), "network/leaf1": pytest.approx(2 * 40 * GBIT / 3)}


def test_one_leaf_needs_no_spine() -> None:
    topology = merge(boxes("ab"), NetworkSpec(kind=NetworkKind.leaf_spine, hosts_per_leaf=8, oversubscription=4.0))
    assert [switch.id for switch in topology.switches] == ["network/leaf0"]


@pytest.mark.parametrize(("port", "rate"), [(None, 100), (40, 40), (400, 100)])
def test_a_link_is_as_fast_as_the_slower_of_nic_and_port(port: float | None, rate: float) -> None:
    spec = NetworkSpec(bytes_per_second=None if port is None else port * GBIT)
    assert {told for _, told in net(merge(boxes("ab"), spec)).values()} == {rate * GBIT}


@pytest.mark.parametrize(
    ("rates", "port", "assumed"),
    [((None, 100), None, 100), ((None, None), None, 10), ((None, 100), 40, 40), ((None, None), 40, 40)],
)
def test_a_port_of_unknown_rate_is_reckoned_with_and_told(
    rates: tuple[float | None, ...], port: float | None, assumed: float
) -> None:
    first = box("a", *(nic("a", f"ib{at}", rate) for at, rate in enumerate(rates)))
    spec = NetworkSpec(bytes_per_second=None if port is None else port * GBIT)
    topology = merge([first, box("b", nic("b", "ib0"))], spec)
    link = next(link for link in topology.links if link.a == "a/ib0")
    assert link.bytes_per_second is None
    assert link.assumed_bytes_per_second == assumed * GBIT
    assert link.source.startswith("unknown; assumed:")
    assert any("rate of port ib0 unknown" in warning for warning in topology.warnings)


def test_the_uplink_of_assumed_rates_is_assumed() -> None:
    hosts = [box(name, nic(name, "ib0", None)) for name in "ab"]
    topology = merge(hosts, NetworkSpec(kind=NetworkKind.leaf_spine, hosts_per_leaf=1))
    assert [link.assumed_bytes_per_second for link in topology.links] == [10 * GBIT] * 4


def test_rdma_goes_before_ethernet_then_the_fastest() -> None:
    ports = (nic("a", "eth0", 400, "ethernet"), nic("a", "ib0", 200), nic("a", "ib1", 100), nic("a", "ib2", 200))
    topology = merge([box("a", *ports), *boxes("b")], NetworkSpec())
    assert {end for end in net(topology) if end.startswith("a/")} == {"a/ib0", "a/ib2"}
    (told,) = topology.warnings
    assert told == "a: ports ib0, ib2 (RDMA, the fastest) carry the traffic between hosts; eth0, ib1 left out"


def test_ports_beside_a_gpu_go_before_others() -> None:
    topology = merge([preset("dgx_a100"), *boxes("z")], NetworkSpec())
    used = {end for end in net(topology) if end.startswith("dgx-a100/")}
    assert used == {f"dgx-a100/mlx5_{at}" for at in (0, 1, 2, 3, 6, 7, 8, 9)}
    assert any("beside a GPU" in warning for warning in topology.warnings)


def test_a_roce_port_and_its_interface_are_one() -> None:
    pci = "0000:18:00.0"
    ports = (nic("a", "eth0", 100, "ethernet", pci=pci), nic("a", "mlx5_0", 100, "roce", pci=pci))
    topology = merge([box("a", *ports), *boxes("b")], NetworkSpec())
    assert set(net(topology)) == {"a/mlx5_0", "b/ib0"}
    assert topology.warnings == ()


def test_a_host_without_ports_is_told() -> None:
    topology = merge([box("a"), *boxes("b")], NetworkSpec())
    assert topology.warnings == ("a: no network port known: nothing joins it to other hosts",)


def test_what_many_hosts_say_is_told_once() -> None:
    hosts = [box(f"n{at}", nic(f"n{at}", "ib0"), warnings=("the fan is loud",)) for at in range(6)]
    assert merge(hosts, NetworkSpec()).warnings == ("n0, n1, n2, n3 and 2 more: the fan is loud",)


def test_the_switches_of_a_network_described_before_are_replaced() -> None:
    before = merge(boxes("ab"), NetworkSpec())
    topology = merge([before, *boxes("c")], NetworkSpec(kind=NetworkKind.rail))
    assert [switch.id for switch in topology.switches] == ["network/rail0"]
    assert set(net(topology)) == {"a/ib0", "b/ib0", "c/ib0"}
    assert any("are replaced" in warning for warning in topology.warnings)
    assert merge([before]) == before


def test_ids_of_the_network_do_not_meet_those_of_a_host() -> None:
    topology = merge([box("network", nic("network", "spine")), *boxes("b")], NetworkSpec())
    assert net(topology)["network/spine"] == ("network-", 100 * GBIT)


def tray(name: str, gpus: int, *, switched: bool) -> Topology:
    """A host of an NVLink fabric as a probe sees it: behind an NVSwitch of its own, or by labels alone."""
    devices = tuple(
        Device(
            id=f"GPU-{name}{at}",
            host=name,
            kind=DeviceKind.gpu,
            name="NVIDIA GB200",
            memory_bytes=1,
            compute_capability=(10, 0),
            fabric="f.1",
        )
        for at in range(gpus)
    )
    host = Host(name=name, memory_bytes=1, cores=1, devices=devices, nics=(nic(name, "ib0"),))
    pairs = [Pair(a=a.id, b=b.id, kind="NV18") for a in devices for b in devices if a.id < b.id]
    if not switched:
        return Topology(hosts=(host,), pairs=tuple(pairs))
    switch = Switch(id=f"{name}/nvswitch", kind=SwitchKind.nvswitch, host=name)
    links = tuple(
        Link(a=device.id, b=switch.id, kind="NV18", bytes_per_second=900e9, source="driver") for device in devices
    )
    return Topology(hosts=(host,), pairs=tuple(pairs), links=links, switches=(switch,))


@pytest.mark.parametrize("switched", [True, False])
def test_hosts_of_one_nvlink_fabric_share_a_switch(*, switched: bool) -> None:
    trays = [tray("a", 2, switched=switched), tray("b", 2, switched=switched), tray("c", 1, switched=False)]
    topology = merge(trays, NetworkSpec())
    (switch,) = [switch for switch in topology.switches if switch.kind is SwitchKind.nvswitch]
    assert switch.host is None
    links = {link.a: (link.b, link.kind, link.bytes_per_second) for link in topology.links if link.kind != "NET"}
    assert links == {device.id: (switch.id, "NV18", 900e9) for device in topology.devices}
    assert merge([topology]) == topology


def test_a_fabric_on_one_host_stays_as_it_is() -> None:
    alone = tray("a", 2, switched=True)
    topology = merge([alone, *boxes("b")], NetworkSpec())
    assert topology.switches[0] == alone.switches[0]


def test_gpus_of_a_fabric_without_any_count_are_told() -> None:
    topology = merge([tray("a", 1, switched=False), tray("b", 1, switched=False)], NetworkSpec())
    assert any("2 GPUs of the NVLink fabric f.1 tell no NVLink count" in warning for warning in topology.warnings)


@given(
    names=st.lists(st.sampled_from(["a", "b", "n1", "n2", "n10", "a-2"]), min_size=2, max_size=6),
    ports=st.lists(st.sampled_from([None, 10.0, 100.0]), max_size=3),
    network=st.none() | networks(),
)
@settings(max_examples=60)
def test_whatever_is_merged_keeps_every_part_once(
    names: list[str], ports: list[float | None], network: NetworkSpec | None
) -> None:
    hosts = [box(name, *(nic(name, f"ib{at}", rate) for at, rate in enumerate(ports))) for name in names]
    topology = merge(hosts, network)
    assert len(topology.hosts) == len(topology.devices) == len(names)
    assert len(topology.nics) == len(names) * len(ports)
    down = [link for link in topology.links if link.a in {part.id for part in topology.nics}]
    rate = network.bytes_per_second if network else None
    assert all((link.capacity_bytes_per_second or 0) <= (rate or 1e12) for link in down)
    ends = {link.b for link in topology.links}
    assert {switch.id for switch in topology.switches} == ends
    known = [told for told in ports if told is not None]
    used = [told for told in ports if told is None or told == max(known)]
    assert len(down) == len(names) * len(used)


def test_a_merged_topology_is_no_longer_than_its_parts() -> None:
    first, second = preset("dgx_h100"), replace(preset("dgx_a100"), warnings=("hot",))
    topology = merge([first, second], NetworkSpec())
    own = len(first.links) + len(second.links)
    assert len(topology.links) == own + 16
    assert topology.pairs == (*second.pairs, *((Pair(a=f"{p.a}-2", b=f"{p.b}-2", kind=p.kind)) for p in first.pairs))
