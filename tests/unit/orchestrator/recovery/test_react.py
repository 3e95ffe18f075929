"""What a finding asks of a running attempt, and an observer that follows readings on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.monitor.copy_request import take
from orchestrator.monitor.facts import Facts
from orchestrator.monitor.finding import Finding, Response, Severity
from orchestrator.monitor.finding import Kind as FindingKind
from orchestrator.monitor.readings import CopyReading, DeviceReading, RankReading, Xid
from orchestrator.monitor.store import host_file, line_of, rank_file
from orchestrator.recovery.event import Kind
from orchestrator.recovery.observer import Observer
from orchestrator.recovery.react import Moment, gain, react

NOW = Moment(
    attempt=2,
    step=40,
    checkpoint_step=30,
    num_steps=1000,
    step_seconds=2.0,
    start_seconds=30.0,
    speeds=(1.0, 1 / 3),
    shares=(8, 8),
    hosts=("n1", "n2"),
)
SLOW = Finding(
    kind=FindingKind.straggler,
    severity=Severity.warning,
    time=1.0,
    step=40,
    rank=1,
    evidence="rank 1 takes 3.00 times as long as the others",
    advice="Share the rows out anew.",
)


def xid(response: Response | None, **values: Any) -> Finding:
    given: dict[str, Any] = {"host": 1, "device": "GPU-7", "evidence": "XID 79", "advice": "A person must: reboot."}
    return Finding(kind=FindingKind.xid, severity=Severity.error, time=1.0, response=response, **{**given, **values})


@pytest.mark.parametrize(
    ("response", "kind", "devices", "hosts", "person"),
    [
        (Response.drop_device, Kind.device_lost, ("GPU-7",), (), ""),
        (Response.drop_host, Kind.host_lost, (), ("n2",), ""),
        (Response.stop, Kind.died, (), (), "A person must: reboot."),
    ],
)
def test_hardware_ends_the_attempt_at_once(
    response: Response, kind: Kind, devices: tuple[str, ...], hosts: tuple[str, ...], person: str
) -> None:
    found = react(xid(response), NOW)
    assert found is not None
    assert not found.is_soft
    ended = found.ended
    assert (ended.kind, ended.devices, ended.hosts, ended.person_must) == (kind, devices, hosts, person)
    assert (ended.attempt, ended.step, ended.checkpoint_step) == (2, 40, 30)


@pytest.mark.parametrize("response", [None, Response.ignore, Response.restart])
def test_what_is_only_told_changes_nothing(response: Response | None) -> None:
    """A rank that is hit by an error of its own ends by itself."""
    assert react(xid(response), NOW) is None


def test_an_error_of_some_program_takes_no_device_away() -> None:
    """Others may use the GPU, too; what the driver asks for counts whatever the error was."""
    mine = xid(Response.drop_device, numbers=(("xid", 31.0),))
    assert react(mine, NOW) is None
    assert react(xid(Response.drop_device, numbers=(("xid", 31.0), ("recovery_action", 1.0))), NOW) is not None
    assert react(xid(Response.drop_device, numbers=(("xid", 79.0),)), NOW) is not None


def test_a_slow_rank_is_given_less_at_the_next_step() -> None:
    found = react(SLOW, NOW)
    assert found is not None
    assert found.is_soft
    assert found.ended.speeds == NOW.speeds
    assert "50% shorter, 960 steps" in found.ended.evidence


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": 60},  # 20 steps of 2 s, half of each won: no more than a start costs
        {"num_steps": None},
        {"step_seconds": None},
        {"speeds": ()},
        {"speeds": (1.0, 1.0)},
        {"reweighted": 3},
        {"shares": (16,), "speeds": (1.0,)},
    ],
)
def test_where_a_new_start_costs_more_than_it_wins(changes: dict[str, Any]) -> None:
    assert react(SLOW, replace(NOW, **changes)) is None


WAITS = Finding(
    kind=FindingKind.slow_link,
    severity=Severity.warning,
    time=0.0,
    step=40,
    evidence="even the last rank waits",
    advice="measure the links",
    numbers=(("communication_seconds", 1.0), ("expected_seconds", 0.1), ("step_seconds", 2.0)),
)


def test_a_slow_network_between_hosts_is_planned_for_at_the_next_step() -> None:
    found = react(WAITS, replace(NOW, hosts=("a", "b")))
    assert found is not None
    assert found.is_soft
    assert (found.ended.kind, found.ended.link_share) == (Kind.slow_link, 0.1)
    assert "960 steps are left" in found.ended.evidence


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": 80},  # 40 steps of 0.9 s, half of it won: no more than a start costs
        {"num_steps": None},
        {"hosts": ("a",)},
        {"rerouted": 2},
    ],
)
def test_a_slow_network_that_costs_less_than_a_start_is_only_told(changes: dict[str, Any]) -> None:
    assert react(WAITS, replace(NOW, **{"hosts": ("a", "b"), **changes})) is None


def test_a_link_measured_alone_has_no_wait_to_win_back() -> None:
    assert react(replace(WAITS, numbers=(("bytes_per_second", 1e8),)), replace(NOW, hosts=("a", "b"))) is None


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.05, 20.0)), min_size=1, max_size=8))
def test_gain_is_a_share_and_none_where_rows_follow_speeds(ranks: list[tuple[int, float]]) -> None:
    shares, speeds = zip(*ranks, strict=True)
    assert -1e-12 <= gain(shares, speeds) < 1
    assert gain(shares, tuple(float(rows) for rows in shares)) == pytest.approx(0.0, abs=1e-12)


class Said:
    """An observer on a folder, and what it said and asked for."""

    def __init__(self, folder: Path, facts: Facts, moment: Moment) -> None:
        self.folder, self.lines, self.events, self.stops = folder, [], [], 0  # type: ignore[var-annotated]
        self.observer = Observer(
            run_dir=folder,
            facts=facts,
            moment=moment,
            say=self.lines.append,
            tell=lambda name, **values: self.events.append({"event": name, **values}),
            stop=self.stop,
        )

    def stop(self) -> None:
        self.stops += 1

    def take(self, *readings: RankReading | DeviceReading) -> str | None:
        for reading in readings:
            path = rank_file(self.folder, reading.rank) if isinstance(reading, RankReading) else None
            path = path or host_file(self.folder, reading.host)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as stream:
                stream.write(line_of(reading))
        self.observer._next_seconds = 0.0
        return self.observer.look()


def rank_reading(rank: int, step: int, busy: float) -> RankReading:
    return RankReading(
        time=1000.0 + step, rank=rank, host=0, step=step, step_seconds=3.0, busy_seconds=busy, tokens=512.0, rows=8
    )


def test_a_lost_device_ends_the_attempt(tmp_path: Path) -> None:
    said = Said(tmp_path, Facts(world_size=2), NOW)
    reading = DeviceReading(time=5.0, device="GPU-7", host=0)
    assert said.take(reading) is None
    why = said.take(replace(reading, time=6.0, xids=(Xid(time=6.0, number=79),)))
    assert why is not None
    assert said.observer.asked is not None
    assert said.observer.asked.kind in {Kind.host_lost, Kind.device_lost}
    assert said.events[0]["event"] == "finding"
    assert said.stops == 0
    assert "GPU-7" in said.observer.history()


def test_a_suspected_link_is_judged_by_a_timed_copy(tmp_path: Path) -> None:
    said = Said(tmp_path, Facts(world_size=2), replace(NOW, step=0))
    said.observer.devices = ("GPU-6", "GPU-7")
    (tmp_path / "beats").mkdir()
    loaded = DeviceReading(
        time=0.0,
        device="GPU-7",
        host=0,
        utilisation=0.97,
        pcie_generation=2,
        pcie_width=16,
        max_pcie_generation=4,
        max_pcie_width=16,
        pcie_rx_bytes_per_second=6e9,
    )
    for second in range(30):
        said.take(replace(loaded, time=float(second)))
    assert [event["kind"] for event in said.events] == ["pcie_downgrade_suspected"]
    assert not take(tmp_path, 0)
    assert take(tmp_path, 1)
    assert not take(tmp_path, 1)
    copy = CopyReading(time=31.0, device="GPU-7", host=0, bytes_per_second=7e9)
    with rank_file(tmp_path, 1).open("ab") as stream:
        stream.write(line_of(copy))
    assert said.take() is None
    assert said.events[-1]["kind"] == "pcie_downgrade"
    assert "22%" in said.events[-1]["evidence"]


def test_readings_of_earlier_attempts_are_passed_over(tmp_path: Path) -> None:
    bad = DeviceReading(time=6.0, device="GPU-7", host=0, xids=(Xid(time=6.0, number=79),))
    Said(tmp_path, Facts(world_size=2), NOW).take(bad)
    assert Said(tmp_path, Facts(world_size=2), NOW).take() is None


def test_a_slow_rank_stops_softly_and_only_once(tmp_path: Path) -> None:
    said = Said(tmp_path, Facts(world_size=2, num_steps=1000), replace(NOW, step=0))
    for step in range(1, 30):
        assert said.take(rank_reading(0, step, 1.0), rank_reading(1, step, 3.0)) is None
    assert said.stops == 1
    asked = said.observer.asked
    assert asked is not None
    assert asked.kind is Kind.slow_rank
    assert asked.speeds[0] / asked.speeds[1] == pytest.approx(3.0, rel=0.01)


def test_where_no_start_is_allowed_a_slow_rank_is_only_told(tmp_path: Path) -> None:
    said = Said(tmp_path, Facts(world_size=2, num_steps=1000), replace(NOW, step=0))
    said.observer.may_restart = False
    for step in range(1, 30):
        assert said.take(rank_reading(0, step, 1.0), rank_reading(1, step, 3.0)) is None
    assert (said.stops, said.observer.asked) == (0, None)
    assert [event["kind"] for event in said.events] == ["straggler"]


def test_equal_ranks_are_left_alone(tmp_path: Path) -> None:
    said = Said(tmp_path, Facts(world_size=2, num_steps=1000), NOW)
    for step in range(1, 30):
        assert said.take(rank_reading(0, step, 1.0), rank_reading(1, step, 1.05)) is None
    assert (said.stops, said.observer.asked, said.events) == (0, None, [])
