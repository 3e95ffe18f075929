"""All detectors on one run: healthy ones stay silent, faults come out once each, memory stays bounded."""

from __future__ import annotations

import math
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.monitor.facts import Facts, facts_of
from orchestrator.monitor.finding import Finding, Kind, Severity
from orchestrator.monitor.readings import (
    BeatReading,
    CopyReading,
    DeviceReading,
    HostReading,
    LinkReading,
    RankReading,
    Xid,
)
from orchestrator.monitor.steps import Steps
from orchestrator.monitor.watch import Detectors

GIB, MIB = 2**30, 2**20
FACTS = Facts(
    world_size=2,
    num_steps=1000,
    step_seconds=1.0,
    communication_seconds=0.1,
    device_limit_bytes=24 * GIB,
    link_bytes_per_second=(("a-b", 10e9),),
)
CAUSES = ("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake")


class Run:
    """A healthy run of two ranks on two GPUs, second by second; faults are values put over it."""

    def __init__(self, seed: int, facts: Facts = FACTS) -> None:
        self.chance = random.Random(seed)
        self.detectors = Detectors(facts)
        self.found: list[Finding] = []
        self.held = dict.fromkeys(CAUSES, 0)
        self.held_at = dict.fromkeys(CAUSES, 0)
        self.clock = 1e9

    def second(self, step: int, rank: dict[str, Any] | None = None, device: dict[str, Any] | None = None) -> None:
        """One step, in a second: rank 1 and device gpu1 get the values of the fault."""
        self.clock += 1
        pause = step % 25 == 0  # an evaluation: idle links, other memory
        for cause in CAUSES:  # a second of it now and then
            if step - self.held_at[cause] >= 8 and self.chance.random() < 0.2:
                self.held[cause], self.held_at[cause] = self.held[cause] + int(1e9), step
        for at in (0, 1):
            self.found += self.detectors.update(self._device(at, pause, device or {} if at else {}))
            self.found += self.detectors.update(self._rank(at, step, pause, rank or {} if at else {}))
        left = 40 * GIB + self.chance.randrange(GIB)
        host = HostReading(time=self.clock, host=0, memory_used_bytes=20 * GIB, memory_available_bytes=left)
        self.found += self.detectors.update(host)
        rate = 10e9 * self.chance.uniform(0.7, 1.1)
        self.found += self.detectors.update(LinkReading(time=self.clock, link="a-b", bytes_per_second=rate))
        self.found += self.detectors.look(
            [BeatReading(rank=at, phase="training", step=step, count=step) for at in (0, 1)], float(step)
        )

    def _rank(self, at: int, step: int, pause: bool, values: dict[str, Any]) -> RankReading:
        gauss = self.chance.gauss
        slow = 4.0 if step <= 2 else 1.0
        usual: dict[str, Any] = {
            "step_seconds": slow,
            "busy_seconds": slow * 0.8 * gauss(1, 0.05),
            "communication_seconds": slow * 0.1 * max(0.1, gauss(1, 0.3)),
            "tokens": 4096.0,
            "loss": 2 * math.exp(-step / 300) * math.exp(gauss(0, 0.05)),
            "grad_norm": math.exp(gauss(0, 0.5)),
            "device_bytes": 10 * GIB + (3 * GIB if pause else 0) + self.chance.randrange(MIB),
            "host_bytes": 4 * GIB + self.chance.randrange(8 * MIB) + min(step, 50) * MIB,
            "live_bytes": (("adapter", GIB), ("optimizer", 2 * GIB)),
        }
        return RankReading(time=self.clock, rank=at, host=0, step=step, **{**usual, **values})

    def _device(self, at: int, pause: bool, values: dict[str, Any]) -> DeviceReading:
        usual: dict[str, Any] = {
            "utilisation": 0.1 if pause else 0.97,
            "pcie_generation": 1 if pause else 4,
            "pcie_width": 16,
            "max_pcie_generation": 4,
            "max_pcie_width": 16,
            "throttle_reasons": self.chance.choice([0, 1, 2, 4]),
            "throttle_ns": tuple(self.held.items()),
            "ecc_uncorrected": 3,
            "nvlink_errors": 12,
            "recovery_action": 0,
        }
        return DeviceReading(time=self.clock, device=f"gpu{at}", host=0, **{**usual, **values})


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), jump=st.sampled_from([-3600, -1, 0, 1800]))
def test_a_healthy_run_is_silent(seed: int, jump: int) -> None:
    run = Run(seed)
    for step in range(1, 151):
        run.clock += jump if step == 77 else 0  # somebody sets the clock
        run.second(step)
    assert run.found == []


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "straggler": ({"busy_seconds": 1.6}, {}, 6),
    "loss_not_finite": ({"loss": math.nan}, {}, 1),
    "device_lost": ({}, {"lost": True}, 1),
    "ecc_uncorrected": ({}, {"ecc_uncorrected": 4}, 1),
    "pcie_downgrade_suspected": ({}, {"pcie_generation": 2}, 8),
    "thermal_throttle": ({}, {"throttle_ns": (), "throttle_reasons": 0x40}, 10),
    "xid": ({}, {"recovery_action": 1}, 1),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_found_in_time_and_told_once(kind: str) -> None:
    rank, device, readings = FAULTS[kind]
    run = Run(1)
    for step in range(1, 31):
        run.second(step)
    for step in range(31, 31 + readings):
        run.second(step, rank, device)
    assert [one.kind.value for one in run.found] == [kind]
    for step in range(31 + readings, 60):
        run.second(step, rank, device)
    assert [one.kind.value for one in run.found] == [kind]
    (found,) = run.found
    assert (found.rank, found.device) == ((1, None) if rank else (None, "gpu1"))


def test_a_leak_is_found_and_its_term_named() -> None:
    run = Run(2)
    for step in range(1, 60):
        grown = 60 * MIB * max(0, step - 20)
        run.second(step, {"device_bytes": 10 * GIB + grown, "live_bytes": (("adapter", GIB), ("logits", grown))})
    assert [one.kind for one in run.found] == [Kind.device_memory_leak]
    assert "logits" in run.found[0].evidence


def test_suspicion_copy_and_fault() -> None:
    run = Run(3)
    for step in range(1, 15):
        run.second(step, None, {"pcie_generation": 2})
    run.found += run.detectors.update(CopyReading(time=run.clock, device="gpu1", host=0, bytes_per_second=6e9))
    assert [one.kind for one in run.found] == [Kind.pcie_downgrade_suspected, Kind.pcie_downgrade]


def test_a_hang_comes_from_beats() -> None:
    detectors, found = Detectors(FACTS), []
    for at in range(200):
        beats = [
            BeatReading(rank=rank, phase="training", step=min(at // 2, 40), count=min(at // 2, 40)) for rank in (0, 1)
        ]
        found += detectors.look(beats, at / 2)
    assert [one.kind for one in found] == [Kind.hang]


def test_the_memory_is_bounded() -> None:
    run = Run(4)
    sizes = []
    for step in range(1, 701):
        run.second(step)
        if step in {350, 700}:
            sizes.append(len(pickle.dumps(vars(run.detectors))))
    assert sizes[1] < 1.5 * sizes[0]


def test_xids_are_handed_to_the_next_attempt() -> None:
    first = Detectors(FACTS)
    first.update(DeviceReading(time=1e9, device="gpu0", host=0, xids=(Xid(time=1e9, number=94),)))
    second = Detectors(FACTS, first.xid_history())
    again = DeviceReading(time=1e9 + 900, device="gpu0", host=0, xids=(Xid(time=1e9 + 900, number=94),))
    assert [one.quarantine for one in second.update(again)] == [True]
    assert len(second.xid_history()["gpu0"]) == 2


def test_speeds_of_ranks() -> None:
    run = Run(5)
    assert run.detectors.relative_speeds() == ()
    for step in range(1, 21):
        run.second(step, {"busy_seconds": 1.6})
    fast, slow = run.detectors.relative_speeds()
    assert fast / slow == pytest.approx(2.0, rel=0.1)


def test_steps_are_put_together_however_they_come() -> None:
    def reading(step: int, rank: int) -> RankReading:
        return RankReading(time=0.0, rank=rank, host=0, step=step, step_seconds=1.0)

    steps, complete = Steps(), []
    for step, rank in [(1, 1), (2, 1), (1, 0), (3, 0), (2, 0), (3, 1), (9, 0), (2, 0), (2, 1)]:
        steps, group = steps.take(reading(step, rank), 2)
        complete += [(group[0].step, [one.rank for one in group])] if group else []
    assert complete == [(1, [0, 1]), (2, [0, 1]), (3, [0, 1]), (2, [0, 1])]
    for step in range(10, 200):
        steps, _ = steps.take(reading(step, 0), 2)
    assert len(steps.open) <= 8


def test_findings_are_plain_json_and_never_empty() -> None:
    found = Finding(kind=Kind.hang, severity=Severity.error, time=1.0, evidence="e", advice="a", rank=1)
    assert found.as_dict() == {"kind": "hang", "severity": "error", "rank": 1, "evidence": "e", "advice": "a"}
    with pytest.raises(ValueError, match="evidence"):
        Finding(kind=Kind.hang, severity=Severity.error, time=1.0, evidence="", advice="a")
    with pytest.raises(ValueError, match="finite"):
        Finding(kind=Kind.hang, severity=Severity.error, time=1.0, evidence="e", advice="a", numbers=(("x", math.nan),))


def test_facts_come_from_a_plan(plan_for: Any) -> None:
    plan = plan_for("8b", "2x24gb-pcie", tokens=2048)
    facts = facts_of(plan, num_steps=10)
    assert facts.world_size == plan.chosen.strategy.world_size
    assert facts.step_seconds == plan.chosen.estimate.step_seconds
    assert facts.num_steps == 10
    assert facts.device_limit_bytes == plan.device_memory_bytes
    assert facts.speeds == ()
