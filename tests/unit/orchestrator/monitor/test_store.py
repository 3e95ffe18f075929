"""Readings on disk: what is written is read, whatever happened to the file meanwhile."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.monitor.log import ReadingLog
from orchestrator.monitor.readings import DeviceReading
from orchestrator.monitor.store import (
    Follower,
    Reading,
    decode,
    encode,
    host_file,
    line_of,
    parse_line,
    rank_file,
    read_file,
    read_run,
)
from tests.unit.orchestrator.monitor import drawn


def write(path: Path, *readings: Reading) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        stream.write(b"".join(map(line_of, readings)))


@given(drawn.any_reading)
def test_a_reading_comes_back_as_it_was(reading: Reading) -> None:
    assert parse_line(line_of(reading)) == reading


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_kept_in_strict_json(loss: float) -> None:
    line = line_of(drawn.rank(3, loss=loss))
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    read = parse_line(line)
    assert read is not None
    assert repr(read.loss) == repr(loss)  # type: ignore[union-attr]


def test_what_is_not_known_is_left_out_and_zero_is_not() -> None:
    record = encode(drawn.device(1.0, utilisation=0.0, pcie_replays=0))
    assert record == {
        "kind": "device",
        "device": "a/gpu0",
        "time": 1.0,
        "host": 0,
        "utilisation": 0.0,
        "pcie_replays": 0,
    }


def test_lines_as_dataclasses_give_them_are_read_too() -> None:
    reading = drawn.device(1.0, throttle_ns=(("sw_thermal", 5),))
    assert decode({"kind": "device", **json.loads(json.dumps(asdict(reading)))}) == reading


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_what_is_no_reading_is_none(value: Any) -> None:
    for kind in ("rank", "device", "host"):
        assert decode({"kind": kind, "time": value, "network": value, "xids": value}) is None
    assert decode(value) is None


def test_names_of_a_later_version_are_passed_over() -> None:
    assert decode({**encode(drawn.host(1.0)), "phase_of_the_moon": 4}) == drawn.host(1.0)


def test_a_cut_line_at_the_end_and_one_in_the_middle_are_passed_over(tmp_path: Path) -> None:
    path = rank_file(tmp_path, 0)
    write(path, drawn.rank(1), drawn.rank(2))
    text = path.read_bytes()
    path.write_bytes(text[:-20] + b"\n" + line_of(drawn.rank(3)) + line_of(drawn.rank(4))[:-9])
    assert [reading.step for reading in read_file(path)] == [1, 3]  # type: ignore[union-attr]


@given(st.lists(st.lists(st.floats(0, 1e6), max_size=20), min_size=1, max_size=4))
def test_a_run_is_read_in_time_order(tmp_path_factory: pytest.TempPathFactory, times: list[list[float]]) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    for number, own in enumerate(times):
        write(host_file(run_dir, number), *(drawn.host(time, number) for time in sorted(own)))
    found = [reading.time for reading in read_run(run_dir)]
    assert found == sorted(time for own in times for time in own)


def test_readings_a_few_lines_late_are_put_in_order(tmp_path: Path) -> None:
    write(host_file(tmp_path, 0), drawn.host(2.0), drawn.device(1.0), drawn.host(3.0), drawn.device(2.5))
    assert [reading.time for reading in read_run(tmp_path)] == [1.0, 2.0, 2.5, 3.0]
    assert all(isinstance(reading, DeviceReading) for reading in read_run(tmp_path, ("device",)))


def test_a_follower_gives_each_reading_once_and_waits_for_the_rest_of_a_line(tmp_path: Path) -> None:
    follower, path = Follower(tmp_path), rank_file(tmp_path, 0)
    assert follower.read() == []
    write(path, drawn.rank(1))
    line = line_of(drawn.rank(2))
    with path.open("ab") as stream:
        stream.write(line[:30])
    assert follower.read() == [drawn.rank(1)]
    with path.open("ab") as stream:
        stream.write(line[30:])
    write(host_file(tmp_path, 0), drawn.host(0.5))
    assert follower.read() == [drawn.host(0.5), drawn.rank(2)]
    assert follower.read() == []


def test_a_follower_loses_and_repeats_nothing_when_the_file_is_thinned_out(tmp_path: Path) -> None:
    log, follower = ReadingLog(rank_file(tmp_path, 0), most_bytes=2000), Follower(tmp_path)
    seen: list[Reading] = []
    for step in range(200):
        log.append([drawn.rank(step)])
        seen += follower.read()
    assert seen == [drawn.rank(step) for step in range(200)]
