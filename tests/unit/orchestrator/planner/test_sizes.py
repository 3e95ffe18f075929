"""A number of devices is taken where it is best; what cannot be had is refused with what can."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import BatchConfig, DataConfig, ModelConfig, RunConfig, TopologyConfig
from orchestrator.errors import UserError
from orchestrator.planner.groups import near_of
from orchestrator.planner.plan import Plan
from orchestrator.planner.sizes import selections
from orchestrator.planner.subsets import choose_worlds
from orchestrator.planner.world import World
from topology.model import Device, DeviceKind, Host, Topology
from topology.presets import preset
from topology.units import GIB

from .test_ways_out import Planner

MIXED = "4xa100-40gb+4xh100-80gb"


def _worlds(machine: str | Topology, devices: int, rows: int = 64, **changes: object) -> tuple[World, ...]:
    fields = {"model": ModelConfig(path="m"), "data": DataConfig(path="r"), "batch": BatchConfig(global_=rows)}
    if isinstance(machine, str):
        fields["topology"] = TopologyConfig(preset=machine)
    config = RunConfig(**{**fields, "devices": devices, **changes})  # type: ignore[arg-type]
    nodes = config.nodes if isinstance(machine, str) else 1
    return choose_worlds(config, preset(machine, nodes=nodes) if isinstance(machine, str) else machine)


def test_four_of_a_mixed_machine_are_offered_on_each_host_and_on_both() -> None:
    worlds = _worlds(MIXED, 4)
    assert {world.label for world in worlds} == {
        "4 GPUs of four-a100",
        "4 GPUs of four-h100",
        "2 GPUs of each of 2 hosts",
    }
    assert {world.size for world in worlds} == {4}


def test_the_best_four_are_those_of_the_faster_host(plan_for: Planner) -> None:
    plan: Plan = plan_for("8b", MIXED, devices=4, topology=TopologyConfig(preset=MIXED))
    assert plan.machine.startswith("four-h100: 4 x NVIDIA H100")
    reason = next(reason for reason in plan.reasons if reason.startswith("Of the ways to take 4 devices"))
    assert "4 GPUs of four-h100 is the best: " in reason
    assert "would take" in reason
    for other in plan.ranked:
        assert plan.chosen.estimate.tokens_per_second >= 0.99 * other.estimate.tokens_per_second


@pytest.mark.parametrize(("devices", "size"), [(1, 1), (3, 3), (6, 6), (8, 8)])
def test_odd_numbers_fit_on_one_host_and_even_ones_on_both(devices: int, size: int) -> None:
    assert {world.size for world in _worlds(MIXED, devices)} == {size}


@pytest.mark.parametrize(
    ("devices", "counts"),
    [(5, {(4, 1), (1, 4), (3, 2), (2, 3)}), (7, {(4, 3), (3, 4)})],
)
def test_numbers_that_no_equal_hosts_make_up_are_offered_on_unequal_ones(
    devices: int, counts: set[tuple[int, ...]]
) -> None:
    assert {world.ranks_per_host for world in _worlds(MIXED, devices)} == counts


def test_what_cannot_be_had_is_refused_with_what_can() -> None:
    with pytest.raises(UserError) as caught:
        _worlds(MIXED, 9)
    for word in ("9 GPUs asked for", "4 (NVIDIA A100-SXM4-40GB) on one host", "Use 8 or fewer, or 0 for all"):
        assert word in str(caught.value)


def test_one_host_of_two_kinds_offers_each() -> None:
    worlds = _worlds("2xa100-40gb+2xt4", 2)
    kinds = [tuple(device.name for device in world.devices) for world in worlds]
    for name in {device.name for device in preset("2xa100-40gb+2xt4").devices}:
        assert (name, name) in kinds


def test_nodes_of_a_machine_of_two_hosts_are_told() -> None:
    first, *_ = _worlds(MIXED, 0, nodes=3)
    assert "is a machine of 2 hosts, which counts as one node, so there are 6 hosts." in first.reasons[0]
    assert not _worlds(MIXED, 0)[0].reasons
    assert not _worlds("dgx_h100", 0, nodes=2)[0].reasons


def _cluster(counts: list[tuple[str, int]]) -> Topology:
    hosts = []
    for at, (name, count) in enumerate(counts):
        devices = tuple(
            Device(id=f"h{at}/{n}", host=f"h{at}", kind=DeviceKind.gpu, name=name, memory_bytes=GIB)
            for n in range(count)
        )
        hosts.append(Host(name=f"h{at}", memory_bytes=GIB, cores=8, devices=devices))
    return Topology(hosts=tuple(hosts))


@given(counts=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 4)), min_size=1, max_size=4))
def test_every_number_of_devices_can_be_selected(counts: list[tuple[str, int]]) -> None:
    machine = _cluster(counts)
    gpus = [host.devices for host in machine.hosts]
    near = near_of(machine)
    total = sum(count for _, count in counts)
    selected = {count: tuple(selections(near, machine.hosts, gpus, count)) for count in range(1, total + 2)}
    assert not selected.pop(total + 1)
    for count, found in selected.items():
        assert found
        for one in found:
            assert sum(map(len, one.devices)) == count
            assert min(map(len, one.devices)) > 0
            assert all(set(d) <= set(gpus[at]) for at, d in zip(one.hosts, one.devices, strict=True))
    # A slow plain reference: equally many of like hosts, or of all, and then nothing unequal.
    kinds: dict[tuple[str, ...], int] = {}
    for devices in gpus:
        key = tuple(device.name for device in devices)
        kinds[key] = kinds.get(key, 0) + 1
    expected = {
        k * own for key, most in kinds.items() for k, own in product(range(1, most + 1), range(1, len(key) + 1))
    }
    expected |= {len(gpus) * own for own in range(1, min(map(len, gpus)) + 1)}
    equal = {count: all(len(set(map(len, one.devices))) == 1 for one in found) for count, found in selected.items()}
    assert {count for count, found in equal.items() if found} >= expected
