"""Readings as Parquet and as scalars of TensorBoard, read back by their own libraries."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
from pyarrow import parquet

from orchestrator.errors import UserError
from orchestrator.monitor import scalars, tables
from orchestrator.monitor.log import ReadingLog
from orchestrator.monitor.readings import Xid
from orchestrator.monitor.scalars import ScalarWriter, check_tensorboard, scalars_folder
from orchestrator.monitor.store import host_file, rank_file
from orchestrator.monitor.tables import table_file, write_tables
from tests.unit.orchestrator.monitor import drawn

XID = Xid(time=2.0, number=94, device="a/gpu0", words="contained")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    ReadingLog(rank_file(tmp_path, 0), 10**6).append([drawn.rank(step, loss=2.0 / step) for step in (1, 2, 3)])
    ReadingLog(rank_file(tmp_path, 1), 10**6).append(
        [drawn.rank(step, rank=1, loss=math.nan, live_bytes=(("adapter", 7),)) for step in (1, 2)]
    )
    ReadingLog(host_file(tmp_path, 0), 10**6).append(
        [drawn.device(2.0, throttle_ns=(("hw_thermal", 5),), xids=(XID,)), drawn.host(1.0, network=(("eth0", 1, 2),))]
    )
    return tmp_path


def test_tables_hold_every_reading_in_time_order(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_ROWS", 2)  # several row groups
    assert write_tables(run_dir) == [table_file(run_dir, kind) for kind in ("rank", "device", "host")]
    ranks = parquet.read_table(table_file(run_dir, "rank")).to_pylist()
    assert [(row["step"], row["rank"]) for row in ranks] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert ranks[0]["loss"] == 2.0
    assert math.isnan(ranks[1]["loss"])
    assert ranks[1]["live_bytes"] == [("adapter", 7)]
    assert ranks[0]["busy_seconds"] is None
    (device,) = parquet.read_table(table_file(run_dir, "device")).to_pylist()
    assert device["throttle_ns"] == [("hw_thermal", 5)]
    assert device["xids"] == [{"time": 2.0, "number": 94, "device": "a/gpu0", "words": "contained"}]
    (host,) = parquet.read_table(table_file(run_dir, "host")).to_pylist()
    assert host["network"] == [{"port": "eth0", "sent_bytes": 1, "received_bytes": 2}]
    assert not [path for path in run_dir.rglob("*") if path.name.startswith(".")]


def test_a_run_without_readings_has_no_tables(tmp_path: Path) -> None:
    assert write_tables(tmp_path) == []


def test_scalars_are_read_back_by_tensorboard(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    writer = ScalarWriter(tmp_path, 0, began=100.0)
    writer.write([drawn.rank(3, tokens=100.0, loss=1.5), drawn.device(107.5, throttle_ns=(("hw_thermal", 5),))])
    writer.close()
    (path,) = scalars_folder(tmp_path, 0).iterdir()
    found = {
        value.tag: (event.step, value.tensor.float_val[0], event.wall_time)
        for event in loader.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    }
    assert found == {
        "rank-00000/step_seconds": (3, 0.5, 1003.0),
        "rank-00000/tokens": (3, 100.0, 1003.0),
        "rank-00000/loss": (3, 1.5, 1003.0),
        "rank-00000/tokens_per_second": (3, 200.0, 1003.0),
        "device/a/gpu0/throttle_ns/hw_thermal": (7, 5.0, 107.5),
        "device/a/gpu0/lost": (7, 0.0, 107.5),
    }


def test_tensorboard_that_is_not_there_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(scalars.importlib.util, "find_spec", lambda name: None if name == "tensorboard" else real(name))
    check_tensorboard(wanted=False)
    with pytest.raises(UserError, match="pip install tensorboard"):
        check_tensorboard(wanted=True)
