"""Who sums the gradients: the choice, its place in plan.json, and the schedule that every rank builds from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.calibration_file import Calibration, Measured, Section
from orchestrator.collectives.program import fingerprint, sums_alike
from orchestrator.config import (
    BatchConfig,
    Compress,
    CompressConfig,
    DataConfig,
    Engine,
    EngineConfig,
    ModelConfig,
    RunConfig,
)
from orchestrator.config import GradientRoute as Wanted
from orchestrator.engines.gradient_route import schedule_of, with_gradient_route
from orchestrator.errors import UserError
from orchestrator.measure.use import measured_software
from orchestrator.planner.build import make_plan
from orchestrator.planner.explain import explain
from orchestrator.planner.gradient_route import GradientRoute
from orchestrator.planner.plan import Plan, dumps, loads
from orchestrator.workload.batch import DataStats
from orchestrator.workload.families import shape_from_config
from topology.codec import from_json, to_json
from topology.collectives import Collective
from topology.fingerprint import fingerprint as machine_of
from topology.model import Device, DeviceKind, Host, Link, Nic, Switch, SwitchKind, Topology
from topology.presets import preset
from topology.routing.software import Runner

SHAPE = shape_from_config(
    "tiny",
    {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 4096,
        "max_position_embeddings": 1024,
    },
)
STATS = DataStats(rows=500, eval_rows=20, mean_tokens=64, max_tokens=128, total_tokens=32_000, source="counted")
PORT_BYTES_PER_SECOND = 25e6


def hosts(count: int, slots: int = 2) -> Topology:
    """Hosts of CPU slots behind one slow port each."""
    drawn, links, switches = [], [], [Switch(id="network", kind=SwitchKind.network)]
    for name in (f"h{at}" for at in range(count)):
        devices = tuple(
            Device(
                id=f"{name}/cpu{at}", host=name, kind=DeviceKind.cpu, name="CPU", memory_bytes=2**34, cores=1, numa=0
            )
            for at in range(slots)
        )
        nic = Nic(id=f"{name}/eth0", name="eth0", kind="ethernet", bytes_per_second=PORT_BYTES_PER_SECOND)
        drawn.append(Host(name=name, memory_bytes=2**36, cores=slots, devices=devices, nics=(nic,)))
        switches.append(Switch(id=f"{name}/node0", kind=SwitchKind.socket, host=name, numa=0))
        links.append(Link(a=nic.id, b=f"{name}/node0", kind="virtual", source="drawn"))
        links.append(Link(a=nic.id, b="network", kind="NET", source="drawn", bytes_per_second=PORT_BYTES_PER_SECOND))
    return Topology(hosts=tuple(drawn), links=tuple(links), switches=tuple(switches))


def calibration(topology: Topology, *, sections: Sequence[str] = ("links", "collectives")) -> Calibration:
    """As if every port had reached 20 MB/s, one large message each way hindered the other, and steps cost little."""

    def one(name: str, value: float, unit: str) -> Measured:
        return Measured(name=name, value=value, unit=unit, repeats=3, spread=0.0, how="drawn")

    ports = [link for link in topology.links if link.kind == "NET"]
    numbers = {
        "links": (
            *(one(f"{link.a}|{link.b}", 20e6, "bytes/s") for link in ports),
            one("one_way_share", 0.5, "share"),
            one("host_copy", 2e9, "bytes/s"),
            one("piece", 256 << 10, "bytes"),
        ),
        "collectives": (
            *(one(name, 1e-4, "s") for name in ("launch", "step", "executor_launch", "executor_step")),
            one("sum", 1e9, "bytes/s"),
        ),
    }
    made = "2026-11-30"
    return Calibration(
        made=made,
        fingerprint=machine_of(topology),
        hosts=tuple(host.name for host in topology.hosts),
        devices=("CPU",),
        versions=(),
        ranks=2,
        threads=1,
        sections=tuple(Section(name=name, made=made, measured=numbers[name]) for name in sections),
    )


def planned(
    topology: Topology,
    wanted: Wanted,
    known: Calibration | None = None,
    *,
    devices: int = 0,
    engine: Engine = Engine.ddp,
    rank: int = 64,
) -> Plan:
    config = RunConfig(
        model=ModelConfig(path="tiny"),
        data=DataConfig(path="rows.jsonl"),
        batch=BatchConfig(global_=16),
        compress=CompressConfig(name=Compress.none),  # where they travel sparse, no route of ours is weighed
        engine=EngineConfig(name=engine, gradient_route=wanted),
        devices=devices,
        nodes=len(topology.hosts),
    )
    config = replace(config, adapter=replace(config.adapter, rank=rank))
    plan = make_plan(config, topology, SHAPE, STATS, "run")
    return with_gradient_route(plan, topology, known, measured_software)


def route_of(plan: Plan) -> GradientRoute:
    route = plan.chosen.strategy.gradient_route
    assert route is not None
    return route


def test_auto_stays_with_the_library_without_measurements() -> None:
    machine = hosts(2)
    for known in (None, calibration(machine, sections=("links",)), calibration(machine, sections=("collectives",))):
        route = route_of(planned(machine, Wanted.auto, known, devices=4))
        assert route.runner is Runner.builtin
        assert "not measured" in route.why
        assert route.seconds is None


def test_auto_takes_the_executor_where_it_was_measured_to_be_faster() -> None:
    machine = hosts(2)
    route = route_of(planned(machine, Wanted.auto, calibration(machine), devices=4))
    assert route.runner is Runner.executor
    assert route.seconds is not None
    assert route.builtin_seconds is not None
    assert route.seconds * 1.15 < route.builtin_seconds
    # Every byte must leave a host and enter the other at least once over its port.
    assert route.seconds > route.nbytes / 20e6
    assert "measured 2026-11-30" in route.why
    assert route.algorithm in route.why


def test_auto_stays_with_the_library_where_both_take_as_long() -> None:
    machine = hosts(1)
    route = route_of(planned(machine, Wanted.auto, calibration(machine), devices=2, rank=1))
    assert route.runner is Runner.builtin
    assert route.seconds == route.builtin_seconds
    assert "would take" in route.why


def test_a_calibration_of_another_machine_decides_nothing() -> None:
    machine = hosts(2)
    other = replace(calibration(machine), fingerprint="another")
    route = route_of(planned(machine, Wanted.auto, other, devices=4))
    assert route.runner is Runner.builtin
    assert "another machine" in route.why


def test_the_user_may_forbid_it() -> None:
    machine = hosts(2)
    route = route_of(planned(machine, Wanted.builtin, calibration(machine), devices=4))
    assert (route.runner, route.algorithm) == (Runner.builtin, "")


@pytest.mark.parametrize("name", ["a100_pcie_pairs_x4", "pcie_4090x8"])
def test_the_user_may_ask_for_it_on_any_machine(name: str) -> None:
    machine = preset(name)
    plan = planned(machine, Wanted.executor, devices=len(machine.gpus))
    route = route_of(plan)
    assert route.runner is Runner.executor
    schedule = schedule_of(plan.chosen.strategy, machine)
    assert schedule.collective is Collective.all_reduce
    assert schedule.size == plan.chosen.strategy.world_size
    assert sums_alike(schedule)


def test_ranks_that_share_a_cpu_slot_are_told_apart() -> None:
    machine = hosts(1)
    plan = planned(machine, Wanted.executor, devices=5)
    assert len(set(plan.chosen.strategy.device_ids)) == 2
    assert schedule_of(plan.chosen.strategy, machine).size == 5
    left_open = route_of(planned(machine, Wanted.auto, calibration(machine), devices=5))
    assert left_open.runner is Runner.builtin
    assert "share a CPU slot" in left_open.why


def test_one_rank_and_zero3_have_nothing_to_route() -> None:
    assert planned(hosts(1), Wanted.auto, devices=1).chosen.strategy.gradient_route is None
    assert "one rank" in route_of(planned(hosts(1), Wanted.executor, devices=1)).why
    zero3 = route_of(planned(hosts(1), Wanted.executor, devices=2, engine=Engine.zero3))
    assert zero3.runner is Runner.builtin
    assert "DeepSpeed" in zero3.why


def test_hosts_that_nothing_joins_are_refused_by_name() -> None:
    machine = hosts(2)
    apart = replace(machine, links=tuple(link for link in machine.links if link.kind != "NET"))
    with pytest.raises(UserError) as caught:
        planned(apart, Wanted.executor, devices=4)
    (problem,) = caught.value.problems
    assert problem.where == "engine.gradient_route=executor"
    assert "nothing joins" in problem.found


def test_plan_json_keeps_it_and_the_text_says_why() -> None:
    machine = hosts(2)
    plan = planned(machine, Wanted.auto, calibration(machine), devices=4)
    again = loads(dumps(plan))
    assert again == plan
    assert route_of(again).links
    saved = json.loads(dumps(plan))["chosen"]["strategy"]["gradient_route"]
    assert saved["runner"] == "executor"
    assert {"algorithm", "pieces", "seconds", "builtin_seconds", "why"} <= set(saved)
    assert [line.strip() for line in explain(plan).splitlines()].count(route_of(plan).why) == 1


def test_a_rank_builds_the_planned_schedule_from_the_files() -> None:
    machine = hosts(3)
    plan = loads(dumps(planned(machine, Wanted.executor, calibration(machine), devices=6)))
    read = from_json(json.loads(json.dumps(to_json(machine))))
    built = schedule_of(plan.chosen.strategy, read)
    assert fingerprint(built).hex() == route_of(plan).fingerprint


def test_a_rank_refuses_another_machine() -> None:
    machine = hosts(2)
    strategy = planned(machine, Wanted.executor, devices=4).chosen.strategy
    with pytest.raises(UserError, match="no device"):
        schedule_of(strategy, hosts(1))
    route = strategy.gradient_route
    assert route is not None
    changed = replace(strategy, gradient_route=replace(route, fingerprint="00" * 32))
    with pytest.raises(UserError, match="schedule than the plan's"):
        schedule_of(changed, machine)
    unknown = replace(strategy, gradient_route=replace(route, algorithm="no such tree"))
    with pytest.raises(UserError, match="no such tree"):
        schedule_of(unknown, machine)


@pytest.mark.parametrize(
    "wrong", [{"runner": Runner.paper}, {"runner": Runner.executor}, {"runner": Runner.executor, "algorithm": "ring"}]
)
def test_routes_that_no_rank_could_build_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"gradients|executor"):
        GradientRoute(why="", **wrong)  # type: ignore[arg-type]
