"""A file of readings stays below its bound, and keeps what matters."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.monitor.log import ReadingLog, thinned
from orchestrator.monitor.readings import DeviceReading, Xid
from orchestrator.monitor.store import line_of, read_file
from tests.unit.orchestrator.monitor import drawn

XID = Xid(time=1.0, number=79, device="a/gpu0")


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=8, max_size=60), st.integers(1000, 20_000))
def test_thinning_keeps_the_newest_the_faults_and_the_whole_run(made: list[tuple[int, bool]], most_bytes: int) -> None:
    lines = [
        line_of(drawn.device(1e9 + at / 4, f"a/gpu{gpu}", xids=(XID,) if fault else ()))
        for at, (gpu, fault) in enumerate(made)
    ]
    kept = thinned(lines, most_bytes)
    assert kept == [line for line in lines if line in set(kept)]  # in order, nothing new
    assert sum(map(len, kept)) <= most_bytes / 2
    newest = lines[len(lines) - len(lines) // 4 :]
    faults = [line for line in lines if b"xids" in line]
    if sum(map(len, {*newest, *faults, *lines[:1], *lines[1:2], *lines[2:3], *lines[3:4]})) * 2 < most_bytes / 2:
        assert kept[len(kept) - len(newest) :] == newest
        assert [line for line in kept if b"xids" in line] == faults
        assert kept[0] == lines[0]


def test_where_thinning_is_not_enough_the_oldest_go() -> None:
    lines = [line_of(drawn.device(float(at), xids=(XID,))) for at in range(100)]
    kept = thinned(lines, most_bytes=1000)
    assert 0 < sum(map(len, kept)) <= 500
    assert kept == lines[-len(kept) :]


def test_a_long_run_stays_below_the_bound_and_reaches_back_to_its_start(tmp_path: Path) -> None:
    path = tmp_path / "telemetry" / "host-00000.jsonl"
    log = ReadingLog(path, most_bytes=20_000)
    for at in range(4000):
        log.append([drawn.device(float(at), f"a/gpu{gpu}", pcie_replays=at) for gpu in range(2)])
        assert path.stat().st_size <= 20_000 + 300
    readings = list(read_file(path))
    times = [reading.time for reading in readings]
    assert times == sorted(times)
    assert times[-1] == 3999.0
    assert times[0] < 10.0
    assert max(after - before for before, after in itertools.pairwise(times)) < 300
    assert {reading.device for reading in readings if isinstance(reading, DeviceReading)} == {"a/gpu0", "a/gpu1"}


def test_after_a_cut_line_a_new_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(line_of(drawn.rank(1)) + line_of(drawn.rank(2))[:25])
    log = ReadingLog(path, most_bytes=10**6)
    log.append([drawn.rank(3)])
    log.append([drawn.rank(4)])
    assert [reading.step for reading in read_file(path)] == [1, 3, 4]  # type: ignore[union-attr]


def test_a_full_disk_costs_readings_and_nothing_else() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    log = ReadingLog(Path("/dev/full"), most_bytes=10**6)
    log.append([drawn.rank(1), drawn.rank(2)])
    log.append([drawn.rank(3)])
    assert log.lost == 3


def test_a_folder_that_cannot_be_made_costs_readings_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "telemetry").write_text("a file")
    log = ReadingLog(tmp_path / "telemetry" / "rank-00000.jsonl", most_bytes=10**6)
    log.append([drawn.rank(1)])
    assert log.lost == 1
    (tmp_path / "telemetry").unlink()
    log.append([drawn.rank(2)])
    assert [reading.step for reading in read_file(tmp_path / "telemetry" / "rank-00000.jsonl")] == [2]  # type: ignore[union-attr]
