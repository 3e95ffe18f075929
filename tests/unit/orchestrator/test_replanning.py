"""Plans after something has happened, with inputs as a command reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.compose import compose
from orchestrator.errors import NothingFits
from orchestrator.inputs import Inputs, gather
from orchestrator.planner.events import Back, Lost, OutOfMemory, SlowRanks
from orchestrator.planner.plan import Plan, dumps, loads
from orchestrator.planning import plan_of
from orchestrator.quarantine import add, quarantined, words
from orchestrator.recovery.event import Ended, Kind
from orchestrator.replanning import event_of, replanned, resumed

Planned = tuple[Any, Inputs, Plan]


def planned(*words: str) -> Planned:
    config, _ = compose(["experiment=demo", "engine=ddp", *words])
    inputs = gather(config)
    return config, inputs, plan_of(config, inputs, "run", {})


@pytest.fixture(scope="module")
def pair() -> Planned:
    return planned("topology=2x24gb-pcie")


def test_what_the_planner_is_told(pair: Planned) -> None:
    _, _, plan = pair
    oom = Ended(kind=Kind.out_of_memory, attempt=1, rank=1, phase="evaluating", where="device", peak_bytes=7)
    assert event_of(oom, plan) == OutOfMemory(where="device", phase="train", rank=1, used_bytes=7)
    host = Ended(kind=Kind.out_of_memory, attempt=1, phase="loading", where="host")
    assert event_of(host, plan) == OutOfMemory(where="host", phase="load")
    assert event_of(Ended(kind=Kind.device_lost, attempt=1, devices=("d",)), plan) == Lost(devices=("d",))
    assert event_of(Ended(kind=Kind.device_lost, attempt=1, rank=1), plan) == Lost(ranks=(1,))
    assert event_of(Ended(kind=Kind.host_lost, attempt=1, hosts=("h",)), plan) == Lost(hosts=("h",))
    assert event_of(Ended(kind=Kind.host_back, attempt=1, hosts=("h",)), plan) == Back(hosts=("h",))
    assert event_of(Ended(kind=Kind.slow_rank, attempt=1, speeds=(1.0, 0.5)), plan) == SlowRanks(speeds=(1.0, 0.5))
    with pytest.raises(ValueError, match="hang"):
        event_of(Ended(kind=Kind.hang, attempt=1), plan)


def test_cpu_ranks_have_the_hosts_memory_alone() -> None:
    _, _, plan = planned("topology=cpu")
    found = event_of(Ended(kind=Kind.out_of_memory, attempt=1, phase="training", where="device"), plan)
    assert found == OutOfMemory(where="host", phase="train")


def test_a_lost_device_leaves_the_other_with_all_rows(pair: Planned) -> None:
    config, inputs, plan = pair
    lost = plan.chosen.strategy.device_ids[1]
    found = replanned(config, plan, inputs, Ended(kind=Kind.device_lost, attempt=1, devices=(lost,)), {})
    assert found.plan.chosen.strategy.device_ids == plan.chosen.strategy.device_ids[:1]
    assert found.plan.chosen.strategy.global_batch == plan.chosen.strategy.global_batch
    assert found.changes


def test_a_run_that_goes_on_remembers_memory_that_ran_out(pair: Planned) -> None:
    config, inputs, plan = pair
    ended = Ended(kind=Kind.out_of_memory, attempt=1, rank=0, phase="training", where="device")
    less = replanned(config, plan, inputs, ended, {})
    saved = loads(dumps(less.plan))
    found = resumed(config, plan, inputs, saved, (), {})
    assert found is not None
    assert found.plan.chosen.strategy == less.plan.chosen.strategy
    assert resumed(config, plan, inputs, loads(dumps(plan)), (), {}) is None


def test_a_run_that_goes_on_tries_a_lost_device_again_unless_it_is_on_the_list(pair: Planned, tmp_path: Path) -> None:
    config, inputs, plan = pair
    lost = plan.chosen.strategy.device_ids[1]
    less = replanned(config, plan, inputs, Ended(kind=Kind.device_lost, attempt=1, devices=(lost,)), {})
    found = resumed(config, plan, inputs, less.plan, (), {})
    assert found is None or found.plan.chosen.strategy.world_size == 2
    add(tmp_path, [lost], "XID 79")
    add(tmp_path, [lost], "again")
    assert quarantined(tmp_path) == {lost: "XID 79"}
    assert "XID 79" in words(tmp_path)[0]
    found = resumed(config, plan, inputs, less.plan, quarantined(tmp_path), {})
    assert found is not None
    assert found.plan.chosen.strategy.world_size == 1


@pytest.mark.parametrize("content", ["", "[]", "{", '{"devices": 3}', '{"devices": {"a": 1}}'])
def test_a_damaged_list(tmp_path: Path, content: str) -> None:
    (tmp_path / "quarantine.json").write_text(content)
    assert set(quarantined(tmp_path)) <= {"a"}
    add(tmp_path, ["b"], "why")
    assert quarantined(tmp_path)["b"] == "why"


def test_memory_that_runs_out_again_and_again_ends_with_all_that_was_tried(pair: Planned) -> None:
    config, inputs, plan = pair
    seen = [plan.plan_hash]

    def go_on(plan: Plan) -> None:
        for number in range(100):
            ended = Ended(kind=Kind.out_of_memory, attempt=number, rank=0, phase="training", where="device")
            plan = replanned(config, plan, inputs, ended, {}).plan
            assert plan.plan_hash not in seen
            seen.append(plan.plan_hash)

    with pytest.raises(NothingFits, match="no plan that needs less is left"):
        go_on(plan)
    assert len(seen) > 2
