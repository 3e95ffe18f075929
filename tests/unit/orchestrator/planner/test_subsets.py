"""Which parts of a machine are weighed against each other."""

from __future__ import annotations

import pytest

from orchestrator.config import Backend, BatchConfig, DataConfig, LaunchConfig, ModelConfig, RunConfig, TopologyConfig
from orchestrator.planner.rates import CPU_LINK_RATES, bottleneck, link_rates, pair_rate
from orchestrator.planner.subsets import choose_worlds
from orchestrator.planner.world import World, device_classes
from topology.model import Device, DeviceKind, Host, Link, Nic, Pair, Switch, SwitchKind, Topology
from topology.presets import preset
from topology.units import GB, GIB


def _worlds(machine: Topology, **changes: object) -> dict[str, World]:
    config = RunConfig(model=ModelConfig(path="m"), data=DataConfig(path="r"), batch=BatchConfig(global_=4096))
    worlds = choose_worlds(RunConfig(**{**_fields(config), **changes}), machine)  # type: ignore[arg-type]
    assert [world.size for world in worlds] == sorted((world.size for world in worlds), reverse=True)
    return {world.label: world for world in worlds}


def _fields(config: RunConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in ("model", "data", "batch")}


def test_a_server_offers_all_a_socket_and_one() -> None:
    worlds = _worlds(preset("dgx_h100"))
    assert {label: world.size for label, world in worlds.items()} == {"all GPUs": 8, "one socket": 4, "one GPU": 1}
    assert {device.numa for device in worlds["one socket"].devices} == {0}


def test_pairs_on_bridges_offer_an_island() -> None:
    topology = preset("a100_pcie_pairs_x8")
    island = _worlds(topology)["one island"]
    assert tuple(device.id for device in island.devices) in topology.islands
    assert island.link_rates[0] > _worlds(topology)["all GPUs"].link_rates[0]


def test_a_number_of_devices_is_taken_from_one_island() -> None:
    topology = preset("a100_pcie_pairs_x8")
    (two,) = _worlds(topology, devices=2).values()
    assert tuple(device.id for device in two.devices) in topology.islands
    (local,) = _worlds(topology, launch=LaunchConfig(backend=Backend.local)).values()
    assert local.size == 1


def test_several_hosts_offer_fewer_of_them() -> None:
    worlds = _worlds(preset("dgx_h100", nodes=16), nodes=16)
    assert {len(world.hosts) for world in worlds.values()} == {16, 8, 1}
    assert worlds["all GPUs"].size == 128
    assert worlds["one host"].size == 8


def test_a_drawn_unit_of_several_hosts_counts_as_one_node() -> None:
    worlds = _worlds(preset("gb200_nvl72"), topology=TopologyConfig(preset="gb200_nvl72"))
    assert max(world.size for world in worlds.values()) == 72


def test_each_kind_of_host_and_of_device_is_an_offer() -> None:
    worlds = _worlds(preset("mixed_a100_h100"), nodes=2)
    kinds = {frozenset(device.name for device in world.devices) for world in worlds.values()}
    assert len(kinds) == 3
    assert len(set(device_classes(worlds["all GPUs"]))) == 2


def test_small_batches_take_whole_hosts_first() -> None:
    topology = preset("dgx_h100", nodes=4)
    worlds = _worlds(topology, nodes=4, batch=BatchConfig(global_=16))
    assert max(world.size for world in worlds.values()) == 16
    assert any("feeds only 16 of 32" in warning for world in worlds.values() for warning in world.warnings)


def test_a_ring_goes_around_a_slow_pair() -> None:
    ids = [Device(id=name, host="h", kind=DeviceKind.gpu, name="g", memory_bytes=GIB) for name in ("a", "b", "c")]
    pairs = [Pair(a="a", b="b", kind="NV4"), Pair(a="b", b="c", kind="NV2"), Pair(a="a", b="c", kind="SYS")]
    assert bottleneck(ids, pairs) == pair_rate("NV2")
    assert bottleneck(ids[:2], pairs) == pair_rate("NV4")
    assert bottleneck(ids, pairs[:1]) == pair_rate("SYS")


def test_the_network_counts_all_of_the_fastest_ports() -> None:
    ports = tuple(
        Nic(id=f"h/{at}", name=f"p{at}", kind="IB", bytes_per_second=rate * GB) for at, rate in enumerate((50, 50, 1))
    )
    hosts = [Host(name=name, memory_bytes=GIB, cores=1, devices=(), nics=ports) for name in ("a", "b")]
    rate, _ = link_rates(hosts, 8, 400 * GB)
    assert rate == pytest.approx(0.8 * 100 * GB)


def _cpu_hosts(gigabits: float) -> Topology:
    ids = ("a", "b")
    hosts = tuple(
        Host(
            name=name,
            memory_bytes=16 * GIB,
            cores=2,
            devices=(
                Device(id=f"{name}/cpu0", host=name, kind=DeviceKind.cpu, name="cpu", memory_bytes=16 * GIB, cores=2),
            ),
            nics=(Nic(id=f"{name}/eth0", name="eth0", kind="ethernet", bytes_per_second=gigabits * GB / 8),),
        )
        for name in ids
    )
    links = tuple(
        link
        for name in ids
        for link in (
            Link(a=f"{name}/cpu0", b=f"{name}/node0", kind="CPU", source="test"),
            Link(a=f"{name}/node0", b=f"{name}/eth0", kind="PCIe", source="test"),
            Link(a=f"{name}/eth0", b="net", kind="NET", source="test", bytes_per_second=gigabits * GB / 8),
        )
    )
    switches = (
        Switch(id="net", kind=SwitchKind.network),
        *(Switch(id=f"{name}/node0", kind=SwitchKind.socket, host=name) for name in ids),
    )
    return Topology(hosts=hosts, links=links, switches=switches)


def test_cpu_ranks_of_two_hosts_wait_for_their_network() -> None:
    slow, fast = (next(iter(_worlds(_cpu_hosts(gigabits), nodes=2).values())) for gigabits in (1, 400))
    assert slow.link_rates == pytest.approx((0.95 * GB / 8, 0.95 * GB / 8))
    assert fast.link_rates == CPU_LINK_RATES
    (one,) = _worlds(_cpu_hosts(1), nodes=1).values()
    assert one.link_rates == CPU_LINK_RATES
