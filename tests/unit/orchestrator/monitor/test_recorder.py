"""A rank hands its readings over; whatever the disk does, it goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.monitor import recorder
from orchestrator.monitor.log import ReadingLog
from orchestrator.monitor.recorder import Recorder
from orchestrator.monitor.store import rank_file, read_file
from tests.unit.orchestrator.monitor import drawn


def test_every_reading_is_written_in_order(tmp_path: Path) -> None:
    made = Recorder(rank_file(tmp_path, 0))
    readings = [drawn.rank(step) for step in range(500)]
    for reading in readings:
        made.put(reading)
    made.end()
    assert list(read_file(rank_file(tmp_path, 0))) == readings
    assert made.lost == 0


def test_a_disk_that_hangs_costs_readings_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadingLog, "append", lambda *_: time.sleep(60))
    monkeypatch.setattr(recorder, "_MOST_WAITING", 10)
    monkeypatch.setattr(recorder, "_END_SECONDS", 0.05)
    made = Recorder(rank_file(tmp_path, 0))
    began = time.thread_time()
    for step in range(100):
        made.put(drawn.rank(step))
    made.end()
    assert time.thread_time() - began < 0.1
    assert made.lost >= 80


def test_recording_a_step_takes_microseconds(tmp_path: Path) -> None:
    made = Recorder(rank_file(tmp_path, 0))
    values = {
        "busy_seconds": 0.41234567,
        "communication_seconds": 0.0123456,
        "tokens": 4096.0,
        "rows": 4,
        "loss": 1.23456789,
        "grad_norm": 0.987654321,
        "device_bytes": 10**10,
        "host_bytes": 10**10,
        "live_bytes": tuple((f"term{at}", 10**9 + at) for at in range(8)),
    }
    readings = [drawn.rank(step, **values) for step in range(2000)]
    began = time.thread_time()
    for reading in readings:
        made.put(reading)
    handed = time.thread_time() - began
    made.end()
    each = (handed + made.cpu_seconds) / len(readings)
    print(f"recording a step takes {each * 1e6:.0f} us of a CPU")
    assert each < 500e-6  # 0.5% of a step of 0.1 s
