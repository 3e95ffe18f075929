"""Which trial starts, and on which devices: on drawn machines."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UserError
from orchestrator.sweeps.allot import ELSEWHERE, WHOLE, Need, Place, Room, core_groups, next_start
from orchestrator.sweeps.needs import Needs, parallel_of, room_for, room_on
from topology.model import Topology
from topology.presets import preset


def _ids(machine: Topology, *numbers: int) -> tuple[str, ...]:
    return tuple(machine.devices[at].id for at in numbers)


def _needs(*devices: tuple[str, ...]) -> list[Need]:
    return [Need(devices=one) for one in devices]


def _room(machine: Topology, limit: int = 99) -> Room:
    return Room(limit=limit, machine=machine)


def test_a_plan_gets_its_own_devices_while_they_are_free_and_equal_ones_after() -> None:
    machine = preset("pcie_4090x8")
    wanted = _ids(machine, 0, 1)
    assert next_start(_room(machine), [], _needs(wanted)) == (0, Place(devices=wanted))
    second = next_start(_room(machine), [Place(devices=wanted)], _needs(wanted))
    assert second == (0, Place(devices=_ids(machine, 2, 3)))


def test_a_pair_joined_by_nvlink_is_kept_together_and_a_single_one_breaks_no_whole_pair() -> None:
    machine = preset("a100_pcie_pairs_x8")
    taken = Place(devices=_ids(machine, 0))
    alone = next_start(_room(machine), [taken], _needs(_ids(machine, 0)))
    assert alone == (0, Place(devices=_ids(machine, 1)))
    pair = next_start(_room(machine), [taken], _needs(_ids(machine, 0, 1)))
    assert pair == (0, Place(devices=_ids(machine, 2, 3)))


def test_devices_of_one_socket_come_before_devices_of_two() -> None:
    machine = preset("pcie_4090x8")
    running = [Place(devices=_ids(machine, 0, 1, 2)), Place(devices=_ids(machine, 4))]
    found = next_start(_room(machine), running, _needs(_ids(machine, 0, 1)))
    assert found is not None
    assert found[1].devices == _ids(machine, 5, 6)
    nodes = {device.numa for device in machine.devices if device.id in found[1].devices}
    assert len(nodes) == 1


def test_unequal_devices_take_no_one_elses_place() -> None:
    machine = preset("2xa100-40gb+2xt4")
    two = _ids(machine, 0, 1)
    assert next_start(_room(machine), [Place(devices=two)], _needs(two)) is None
    assert next_start(_room(machine), [Place(devices=two)], _needs(two, _ids(machine, 2))) == (
        1,
        Place(devices=_ids(machine, 2)),
    )


def test_a_trial_of_the_whole_machine_runs_alone() -> None:
    machine = preset("pcie_4090x2")
    both, one = _ids(machine, 0, 1), _ids(machine, 0)
    assert next_start(_room(machine), [], _needs(both)) == (0, WHOLE)
    assert next_start(_room(machine), [Place(devices=one)], _needs(both)) is None
    assert next_start(_room(machine), [Place(devices=one)], _needs(())) is None  # without a plan: all of it
    assert next_start(_room(machine), [WHOLE], _needs(one)) is None


def test_the_limit_holds_and_one_at_a_time_has_everything() -> None:
    machine = preset("pcie_4090x8")
    wanted = _ids(machine, 0)
    assert next_start(_room(machine, limit=1), [Place(devices=wanted)], _needs(wanted)) is None
    assert next_start(Room(), [], _needs(())) == (0, WHOLE)
    assert next_start(Room(), [WHOLE], _needs(())) is None
    assert next_start(Room(), [], []) is None


def test_cores_are_divided_without_rest() -> None:
    room = Room(limit=2, core_groups=core_groups((0, 1, 2), 2))
    assert room.core_groups == ((0,), (1, 2))
    assert next_start(room, [], _needs(())) == (0, Place(cores=(0,)))
    assert next_start(room, [Place(cores=(0,))], _needs(())) == (0, Place(cores=(1, 2)))
    assert next_start(room, [Place(cores=(0,)), Place(cores=(1, 2))], _needs(())) is None


def test_a_scheduler_holds_trials_back_itself() -> None:
    room = Room(limit=3, elsewhere=True)
    assert next_start(room, [ELSEWHERE, ELSEWHERE], [Need()]) == (0, ELSEWHERE)
    assert not ELSEWHERE.is_whole


@given(cores=st.sets(st.integers(0, 300), min_size=1), count=st.integers(1, 40))
def test_groups_of_cores_are_disjoint_and_even(cores: set[int], count: int) -> None:
    groups = core_groups(sorted(cores), count)
    assert sorted(core for group in groups for core in group) == sorted(cores)
    assert len(groups) == min(count, len(cores))
    sizes = {len(group) for group in groups}
    assert max(sizes) - min(sizes) <= 1


@given(data=st.data(), name=st.sampled_from(["dgx1_v100", "pcie_4090x8", "a100_pcie_pairs_x8", "2xa100-40gb+2xt4"]))
def test_no_device_is_given_twice(data: st.DataObject, name: str) -> None:
    machine = preset(name)
    ids = [device.id for device in machine.devices]
    waiting = data.draw(st.lists(st.lists(st.sampled_from(ids), unique=True, max_size=4).map(tuple), max_size=8))
    kinds = {device.id: (device.name, device.memory_bytes) for device in machine.devices}
    running: list[Place] = []
    while (found := next_start(_room(machine), running, _needs(*waiting))) is not None:
        at, place = found
        wanted = waiting.pop(at)
        assert place.is_whole or sorted(map(str, map(kinds.get, place.devices))) == sorted(
            map(str, map(kinds.get, wanted))
        )
        running.append(place)
    taken = [name for place in running for name in place.devices]
    assert len(taken) == len(set(taken))
    assert len(running) == 1 or not any(place.is_whole for place in running)
    if waiting and not running:
        pytest.fail("an empty machine has room for any trial")


def test_plans_on_a_drawn_machine_tell_what_a_trial_needs() -> None:
    """Four trials of two GPUs each fill eight; the fifth waits."""
    asked = ("experiment=demo", "topology=pcie_4090x8", "devices=2")
    room = room_on(preset("pcie_4090x8"), None)
    assert room.limit == 8
    needs = Needs(room.machine)
    assert len(needs.of(asked).devices) == 2
    assert needs.of(asked).host_bytes > 2**20
    running: list[Place] = []
    while (found := next_start(room, running, [needs.of(asked)])) is not None:
        running.append(found[1])
    assert [len(place.devices) for place in running] == [2, 2, 2, 2]
    assert needs.of(("experiment=demo", "topology=pcie_4090x8", "adapter.rank=0")) == Need()


def test_host_memory_is_shared_too() -> None:
    machine = preset("pcie_4090x8")
    room = Room(limit=8, machine=machine, host_bytes=100)
    first, second = (Need(devices=_ids(machine, at), host_bytes=60) for at in (0, 1))
    running = [Place(devices=first.devices, host_bytes=60)]
    assert next_start(room, [], [first]) == (0, running[0])
    assert next_start(room, running, [second]) is None
    small = Need(devices=_ids(machine, 1), host_bytes=40)
    assert next_start(room, running, [second, small]) == (1, Place(devices=small.devices, host_bytes=40))


def test_gpus_without_a_uuid_are_not_shared_out() -> None:
    machine = preset("pcie_4090x2")
    host = machine.hosts[0]
    named = tuple(replace(device, id=f"gpu{at}", uuid=None) for at, device in enumerate(host.devices))
    bare = Topology(hosts=(replace(host, devices=named),))
    assert room_on(machine, None).limit == 2
    assert room_on(bare, None) == Room()


@pytest.mark.parametrize(
    "overrides",
    [
        ("experiment=demo", "launch=slurm"),
        ("experiment=demo", "launch.hosts=[a,b]", "nodes=2"),
        ("experiment=demo", "dry_run=true"),
        ("experiment=demo", "topology=dgx_h100"),
        ("experiment=demo", "adapter.rank=0"),
    ],
)
def test_trials_elsewhere_or_without_a_plan_come_one_after_the_other(overrides: tuple[str, ...]) -> None:
    assert room_for(2, overrides) == Room()


def test_a_machine_without_gpus_takes_as_many_as_are_asked_for() -> None:
    cpu = preset("cpu")
    assert room_on(cpu, None) == Room()
    groups = room_on(cpu, 2).core_groups
    assert sorted(core for group in groups for core in group) == sorted(os.sched_getaffinity(0))


def test_how_many_at_once_is_auto_or_a_number() -> None:
    assert (parallel_of("auto"), parallel_of("3")) == (None, 3)
    for wrong in ("0", "-1", "two", "1.5", ""):
        with pytest.raises(UserError, match=r"sweep\.parallel"):
            parallel_of(wrong)
