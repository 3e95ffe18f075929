"""When a fault is due, and which can be tried where."""

from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.compose import compose, config_folder, groups
from orchestrator.config import Fault, FaultPhase, FaultsConfig
from orchestrator.errors import UserError
from orchestrator.faults.fault import KINDS, Facts, Moment, Who, due, listing, rank_of, why_not

KILL = FaultsConfig(name=Fault.kill_rank, step=5)
ALL = Facts(can_mount=True, has_network_namespaces=True, is_monitored=True, commands=frozenset({"sbatch", "scontrol"}))


def at(step: int, phase: FaultPhase = FaultPhase.training, micro: int = 0) -> Moment:
    return Moment(phase=phase, step=step, micro=micro)


def steps_hit(config: FaultsConfig, last: int, attempt: int = 1) -> list[int]:
    """Step by step, as a rank goes: each boundary of a step is asked, and what has come is remembered."""
    fired: set[int] = set()
    hit = []
    for step in range(1, last + 1):
        for micro in range(3):
            wanted = due(config, at(step, micro=micro), attempt, fired)
            if wanted is not None:
                fired.add(wanted)
                hit.append(step)
    return hit


def test_it_comes_once_at_its_step() -> None:
    assert steps_hit(KILL, 20) == [5]


@given(step=st.integers(0, 12), every=st.integers(1, 7), last=st.integers(1, 40))
def test_again_each_so_many_steps(step: int, every: int, last: int) -> None:
    wanted = [at_step for at_step in range(1, last + 1) if at_step >= step and (at_step - step) % every == 0]
    assert steps_hit(replace(KILL, step=step, every=every), last) == wanted


def test_a_step_that_is_done_again_is_no_new_one() -> None:
    assert due(KILL, at(5), 2, {5}) is None
    assert due(replace(KILL, every=3), at(8), 2, {5, 8}) is None
    assert due(replace(KILL, every=3), at(11), 2, {5, 8}) == 11


def test_a_restart_beyond_the_step_brings_nothing() -> None:
    assert due(KILL, at(6), 2, set()) is None


def test_what_needs_a_checkpoint_may_come_later() -> None:
    assert due(replace(KILL, name=Fault.corrupt_checkpoint), at(8), 1, set()) == 5
    assert due(replace(KILL, name=Fault.corrupt_checkpoint), at(9), 1, {5}) is None


def test_one_attempt_alone() -> None:
    config = replace(KILL, attempt=2)
    assert due(config, at(5), 1, set()) is None
    assert due(config, at(5), 2, set()) == 5


def test_phases() -> None:
    config = replace(KILL, phase=FaultPhase.saving)
    assert due(config, at(5), 1, set()) is None
    assert due(config, at(3, FaultPhase.saving), 1, set()) is None
    assert due(config, at(6, FaultPhase.saving), 1, set()) == 5
    loading = replace(KILL, phase=FaultPhase.loading)
    assert due(loading, at(0, FaultPhase.loading), 1, set()) == 1
    assert due(loading, at(0, FaultPhase.loading), 2, {1}) is None


def test_no_fault_is_never_due() -> None:
    assert due(FaultsConfig(step=1), at(1), 1, set()) is None


def test_the_rank_exists() -> None:
    assert [rank_of(replace(KILL, rank=rank), 2) for rank in (None, 0, 1, 7)] == [1, 0, 1, 1]


def test_each_fault_has_an_option_and_a_line() -> None:
    assert set(KINDS) == set(Fault) - {Fault.none}
    assert set(groups()["faults"]) == {fault.value for fault in Fault}
    for fault in KINDS:
        body = yaml.safe_load((config_folder() / "faults" / f"{fault.value}.yaml").read_text())
        assert body == {"defaults": ["none", "_self_"], "name": fault.value}
    config, _ = compose(["experiment=demo", "faults=hang", "faults.only=hang,kill_rank"])
    assert config.faults == FaultsConfig(name=Fault.hang, only=("hang", "kill_rank"))
    assert [entry["fault"] for entry in listing()] == [fault.value for fault in KINDS]


@pytest.mark.parametrize(
    ("given_", "where"),
    [
        ("faults.step=-1", "faults.step"),
        ("faults.rank=-1", "faults.rank"),
        ("faults.factor=0.5", "faults.factor"),
        ("faults.limit_seconds=0", "faults.limit_seconds"),
        ("faults=kil_rank", "faults"),
    ],
)
def test_wrong_values_are_told(given_: str, where: str) -> None:
    with pytest.raises(UserError) as told:
        compose(["experiment=demo", given_])
    assert told.value.problems[0].where == where


def test_each_that_cannot_be_tried_has_a_reason() -> None:
    config, _ = compose(["experiment=demo"])
    slurm, _ = compose(["experiment=demo", "launch=slurm", "faults.partition=high"])
    for fault, kind in KINDS.items():
        by_slurm = kind.who is Who.scheduler
        assert bool(why_not(fault, config, ALL)) == by_slurm
        assert bool(why_not(fault, slurm, ALL)) != by_slurm
    nothing = {fault for fault in KINDS if why_not(fault, config, Facts(is_monitored=False))}
    links = {Fault.slow_link, Fault.cut_link, Fault.disk_full}
    assert nothing == links | {fault for fault, kind in KINDS.items() if kind.who is not Who.rank}
    alone = compose(["experiment=demo", "launch=local", "devices=1"])[0]
    launchers = {fault for fault in KINDS if "needs a launcher" in why_not(fault, alone, ALL)}
    assert launchers == {Fault.kill_launcher, Fault.stop_launcher}
    assert "no scontrol" in why_not(Fault.slurm_node_down, slurm, replace(ALL, commands=frozenset({"sbatch"})))
    assert "faults.partition" in why_not(Fault.slurm_preempt, compose(["experiment=demo", "launch=slurm"])[0], ALL)
