"""Recorded readings in the place of the driver."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from orchestrator.config import MonitorConfig
from orchestrator.errors import UserError
from orchestrator.monitor.asked import check_monitor
from orchestrator.monitor.readings import Xid
from orchestrator.monitor.replay import Replay, read_replay
from orchestrator.monitor.store import line_of
from tests.unit.orchestrator.monitor import drawn

DEVICES = ("a/gpu0", "a/gpu1")
NOW = 1.8e9


def played(*readings: object) -> Replay:
    replay = Replay(DEVICES, 0)
    replay.add(readings)  # type: ignore[arg-type]
    return replay


def test_times_count_from_the_start_of_the_run_and_those_of_a_recording_from_its_first_line(tmp_path: Path) -> None:
    by_hand, recorded = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    by_hand.write_text('{"time": 2, "device": "#0"}\n\n{"kind": "host", "time": 0}\n{"time": 7.5, "device": "#1"}\n')
    recorded.write_bytes(line_of(drawn.device(1.7e9)) + line_of(drawn.device(1.7e9 + 60)))
    assert [reading.time - NOW for reading in read_replay(by_hand, NOW)] == [2, 7.5]
    assert [reading.time - NOW for reading in read_replay(recorded, NOW)] == [0, 60]


def test_wrong_lines_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text('{"time": 1}\nnot json\n[1]\n{"time": "soon", "device": "#0"}\n{"time": 1, "device": "#0"}\n')
    with pytest.raises(UserError) as caught:
        check_monitor(MonitorConfig(replay=str(path)))
    assert [problem.where for problem in caught.value.problems] == [f"{path}:{number}" for number in (1, 2, 3, 4)]
    for text in ("", '{"kind": "host", "time": 1, "host": 0}\n'):
        path.write_text(text)
        with pytest.raises(UserError, match="no reading of a device"):
            read_replay(path, NOW)
    with pytest.raises(UserError, match="No such file"):
        read_replay(tmp_path / "none", NOW)
    check_monitor(MonitorConfig(replay=str(tmp_path / "none"), enabled=False))


def test_a_state_lasts_and_an_error_is_told_once() -> None:
    error = Xid(time=NOW + 3, number=79, device="a/gpu0", words="off the bus")
    replay = played(drawn.device(NOW + 1, temperature_celsius=60), drawn.device(NOW + 3, lost=True, xids=(error,)))
    assert replay.read(NOW) == []
    assert replay.read(NOW + 2) == [drawn.device(NOW + 2, temperature_celsius=60)]
    assert replay.read(NOW + 5) == [drawn.device(NOW + 5, lost=True, xids=(replace(error, time=NOW + 5),))]
    assert replay.read(NOW + 6) == [drawn.device(NOW + 6, lost=True)]


def test_errors_of_readings_that_fall_between_two_ticks_are_all_told() -> None:
    errors = [Xid(time=NOW + at, number=number, device="a/gpu0") for at, number in ((1.1, 48), (1.2, 63))]
    replay = played(*(drawn.device(error.time, xids=(error,)) for error in errors))
    (found,) = replay.read(NOW + 2)
    assert [xid.number for xid in found.xids] == [48, 63]


def test_what_was_before_a_restart_keeps_its_state_but_not_its_errors() -> None:
    error = Xid(time=NOW + 1, number=94, device="a/gpu0")
    replay = played(drawn.device(NOW + 1, pcie_replays=7, xids=(error,)))
    replay.skip(NOW + 4)
    assert replay.read(NOW + 5) == [drawn.device(NOW + 5, pcie_replays=7)]


def test_devices_are_named_by_number_and_others_left_out() -> None:
    replay = played(
        drawn.device(NOW, "#1"),
        drawn.device(NOW, "#2"),
        drawn.device(NOW, "b/gpu0"),
        replace(drawn.device(NOW, "#0"), host=1),
        replace(drawn.device(NOW, "a/gpu0"), host=1),
    )
    assert [(one.device, one.host) for one in replay.read(NOW)] == [("a/gpu1", 0), ("a/gpu0", 0)]


def test_a_file_is_followed_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "faults" / "readings.jsonl"
    replay = Replay(DEVICES, 0, path)
    assert replay.read(NOW) == []
    path.parent.mkdir()
    with path.open("a") as stream:
        for at in (1, 2):
            record = asdict(drawn.device(NOW + at, temperature_celsius=90 + at, throttle_ns=(("hw_thermal", at),)))
            stream.write(json.dumps({"kind": "device", **record}) + "\n")
    assert replay.read(NOW + 1) == [drawn.device(NOW + 1, temperature_celsius=91, throttle_ns=(("hw_thermal", 1),))]
    (found,) = replay.read(NOW + 9)
    assert found.temperature_celsius == 92
