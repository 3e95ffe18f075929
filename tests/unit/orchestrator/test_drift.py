"""Which differences between the nodes of a job and the machine of the plan count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.config import LaunchConfig
from orchestrator.drift import Drift, Place, compare, places_of_nodes, places_of_plan
from orchestrator.planner.plan import Plan
from orchestrator.slurm_node import renamed
from topology.model import Topology
from topology.network import merge
from topology.presets import preset
from topology.units import GIB

NODES = ("n1", "n2")
PlanFor = Callable[..., Plan]


def nodes(*machines: str | Topology) -> Topology:
    """What as many nodes would tell of themselves."""
    drawn = [preset(one) if isinstance(one, str) else one for one in machines]
    return merge([renamed(one, name) for one, name in zip(drawn, NODES, strict=False)])


def compared(plan_for: PlanFor, planned: Topology, found: Topology, **changes: object) -> Drift:
    plan = plan_for("8b", planned, nodes=len(planned.hosts), **changes)
    return compare(places_of_plan(plan, planned), places_of_nodes(found, [host.name for host in found.hosts]))


def with_devices(one: Topology, **changes: object) -> Topology:
    """The topology of a host whose devices differ."""
    (host,) = one.hosts
    devices = tuple(replace(device, **changes) for device in host.devices)  # type: ignore[arg-type]
    return replace(one, hosts=(replace(host, devices=devices),))


def test_names_do_not_count(plan_for: PlanFor) -> None:
    drift = compared(plan_for, preset("dgx_h100", nodes=2), nodes("dgx_h100", "dgx_h100"))
    assert drift == Drift(nodes=NODES, differences=())


def test_more_than_the_plan_uses_does_not_count(plan_for: PlanFor) -> None:
    # Four of eight, as with gres=gpu:4; the job's node is whole.
    assert not compared(plan_for, preset("dgx_h100"), nodes("dgx_h100"), devices=4).differences
    assert not compared(plan_for, preset("rtx3090"), nodes("rtx3090", "rtx3090")).differences


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            ("dgx_a100", "dgx_h100"),
            (
                "n1: 8 x NVIDIA A100-SXM4-80GB, the plan is for 8 x NVIDIA H100 80GB HBM3",
                "n1: a network port of 25.0 GB/s, the plan is for 50.0 GB/s",
            ),
        ),
        (("dgx_h100",), ("1 node, the plan is for 2",)),
    ],
)
def test_other_devices_and_fewer_nodes_are_told(
    plan_for: PlanFor, found: tuple[str, ...], told: tuple[str, ...]
) -> None:
    assert compared(plan_for, preset("dgx_h100", nodes=2), nodes(*found)).differences == told


def test_fewer_devices_are_told(plan_for: PlanFor) -> None:
    planned = preset("2x24gb-pcie")
    one = nodes(planned)
    (host,) = one.hosts
    kept = host.devices[0]
    gone = host.devices[1].id
    found = Topology(
        hosts=(replace(host, devices=(kept,)),),
        switches=one.switches,
        links=tuple(link for link in one.links if gone not in {link.a, link.b}),
    )
    (told,) = compared(plan_for, planned, found, devices=2).differences
    assert told == f"n1: 1 x {kept.name}, the plan is for 2 x {kept.name}"


@pytest.mark.parametrize(("gib", "told"), [(79.2, ()), (40.0, ("n1: {name} with 40.0 GiB, the plan is for {old}",))])
def test_memory_counts_by_size_of_card(plan_for: PlanFor, gib: float, told: tuple[str, ...]) -> None:
    planned = preset("a100_80gb")
    device = planned.devices[0]
    found = nodes(with_devices(planned, memory_bytes=int(gib * GIB)))
    old = f"{(device.memory_bytes or 0) / GIB:.1f} GiB"
    expected = tuple(text.format(name=device.name, old=old) for text in told)
    assert compared(plan_for, planned, found).differences == expected


def test_unknown_memory_is_not_held_against_a_node(plan_for: PlanFor) -> None:
    planned = preset("a100_80gb")
    assert not compared(plan_for, planned, nodes(with_devices(planned, memory_bytes=None))).differences


def test_links_between_the_devices_that_are_used_count(plan_for: PlanFor) -> None:
    planned = preset("rtx3090_nvlink_pair")
    pairs = tuple(replace(pair, kind="PHB") for pair in planned.pairs)
    (told,) = compared(plan_for, planned, nodes(replace(planned, pairs=pairs)), devices=2).differences
    assert told == "n1: GPUs joined by one socket, the plan is for NV4"
    # Two labels of one way: a drawing need not know which bridge.
    node = nodes(replace(planned, pairs=tuple(replace(pair, kind="NODE") for pair in planned.pairs)))
    bridge = replace(planned, pairs=pairs)
    assert not compared(plan_for, bridge, node, devices=2).differences


def test_nodes_of_two_kinds_stand_where_the_plan_wants_them(plan_for: PlanFor) -> None:
    """SLURM counts the H100s first, the plan's first ranks are on the A100s."""
    planned = preset("mixed_a100_h100")
    plan = plan_for("8b", planned, nodes=2, devices=16)
    places = places_of_plan(plan, planned)
    first = places[0].devices[0].name
    swapped = ("dgx_h100", "dgx_a100") if "A100" in first else ("dgx_a100", "dgx_h100")
    found = places_of_nodes(nodes(*swapped), NODES)
    assert compare(places, found) == Drift(nodes=("n2", "n1"), differences=())


def test_no_gpu_where_the_plan_has_some(plan_for: PlanFor) -> None:
    drift = compared(plan_for, preset("a100_80gb"), nodes("cpu"))
    assert drift.is_other_kind
    assert drift.differences


def test_what_ranks_need_of_the_host(plan_for: PlanFor) -> None:
    """On CPUs: ranks of one planned host are spread over two nodes, and each needs its part."""
    planned = preset("cpu")
    plan = plan_for("tiny", planned, devices=2, launch=LaunchConfig(nodes=2))
    places = places_of_plan(plan, planned)
    assert len(places) == 2
    assert [place.ranks for place in places] == [1, 1]
    enough = places_of_nodes(nodes("cpu", "cpu"), NODES)
    assert not compare(places, enough).differences
    assert places[0].host_bytes
    tight: list[Place] = [replace(each, host_bytes=GIB // 16, cores=0) for each in enough]
    told = compare(places, tight).differences
    assert told[0].startswith("n1: 0.062 GiB of host memory, the plan needs ")
    assert told[1] == f"n1: 0 cores, the plan needs {places[0].cores}"


def test_a_slow_port_counts_between_hosts_only(plan_for: PlanFor) -> None:
    planned = preset("dgx_h100", nodes=2)
    place = places_of_plan(plan_for("8b", planned, nodes=2), planned)[0]
    slow = replace(place, port_bytes_per_second=1.25e9)
    assert compare([place], [slow]).differences == (
        f"{place.name}: a network port of 1.2 GB/s, the plan is for 50.0 GB/s",
    )
    alone = preset("dgx_h100")
    assert places_of_plan(plan_for("8b", alone), alone)[0].port_bytes_per_second is None
