"""Trackers as the process they are, with the libraries' own stores, offline."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.errors import UserError
from orchestrator.trackers import asked
from orchestrator.trackers.follow import FILE, Followed
from orchestrator.trackers.process import TrackerProcess
from orchestrator.trackers.records import Point, Reached
from orchestrator.trackers.tracker import About, Tracker

pytestmark = pytest.mark.integration


@pytest.fixture
def run_dir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "runs" / "first"
    assert main(["plan", "experiment=demo", f"run_dir={folder}", "monitor.project=mine"]) == 0
    capsys.readouterr()
    return folder


def add(run_dir: Path, steps: Sequence[int]) -> None:
    with (run_dir / "metrics.jsonl").open("a") as stream:
        stream.writelines(json.dumps({"time": 1.0 + at, "step": at, "loss": 5.0 - at / 10}) + "\n" for at in steps)


def tell(run_dir: Path, names: Sequence[str], status: str) -> list[str]:
    """Let the process tell what is there, as the end of a rank does."""
    said: list[str] = []
    (run_dir / "summary.json").unlink(missing_ok=True)
    process = TrackerProcess(run_dir, names, said.append)
    (run_dir / "summary.json").write_text(json.dumps({"status": status, "eval_loss_after": 3.5}))
    process.end(50.0)
    return said


def ids(run_dir: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((run_dir / FILE).read_text())
    return body


def test_tensorboard(run_dir: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    add(run_dir, range(1, 4))
    assert "tensorboard: tensorboard --logdir RUN_DIR/telemetry" in tell(run_dir, ["tensorboard"], "stopped")
    add(run_dir, range(4, 6))
    tell(run_dir, ["tensorboard"], "done")
    read = EventAccumulator(str(run_dir / "telemetry" / "tensorboard" / "run"))
    read.Reload()
    steps = [event.step for event in read.Tensors("train/loss")]
    assert steps == [1, 2, 3, 4, 5]
    assert "summary/eval_loss_after" in read.Tags()["tensors"]


@pytest.mark.timeout(180)
def test_mlflow_goes_on_with_its_run(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    add(run_dir, range(1, 4))
    tell(run_dir, ["mlflow"], "stopped")
    first = ids(run_dir)["mlflow"]
    add(run_dir, range(4, 6))
    said = tell(run_dir, ["mlflow"], "done")
    assert ids(run_dir)["mlflow"]["run_id"] == first["run_id"]
    assert f"run {first['run_id']}" in said[-1]
    with sqlite3.connect(run_dir.parent / "mlflow.db") as store:
        assert store.execute("select run_uuid, status, name from runs").fetchall() == [
            (first["run_id"], "FINISHED", "first")
        ]
        told = store.execute("select step from metrics where key = 'train/loss' order by step").fetchall()
        params = dict(store.execute("select key, value from params").fetchall())
        projects = [name for (name,) in store.execute("select name from experiments")]
    assert [step for (step,) in told] == [1, 2, 3, 4, 5]
    assert params["adapter.rank"] == "16"
    assert "mine" in projects


@pytest.mark.timeout(180)
def test_wandb_offline_goes_on_with_its_run(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    add(run_dir, range(1, 4))
    said = tell(run_dir, ["wandb"], "stopped")
    first = ids(run_dir)["wandb"]
    assert said[-1].startswith("wandb: kept offline; send it with: wandb sync ")
    add(run_dir, range(4, 6))
    tell(run_dir, ["wandb"], "done")
    assert ids(run_dir)["wandb"] == {"id": first["id"], "reached": {"train": 5, "eval": -1}}
    kept = list((run_dir / "wandb").glob(f"offline-run-*-{first['id']}/run-{first['id']}.wandb"))
    assert 1 <= len(kept) <= 2, "one for each start, both of the same run"


class Broken(Tracker):
    name = "broken"

    def open(self, about: About) -> Mapping[str, str]:
        return {"id": "7"}

    def log(self, points: Sequence[Point]) -> None:
        raise ConnectionError("no route to host\nand more")

    def close(self, status: str, summary: Mapping[str, Any]) -> str:
        raise AssertionError("it is off by then")


def test_a_tracker_that_fails_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("orchestrator.trackers.follow.say", said.append)
    one = Followed(Broken(), About(run_dir=tmp_path, project="", config={}, known={}), Reached())
    one.open()
    for at in range(3):
        one.log([{"step": at, "loss": 1.0}])
    one.close("done", {})
    assert said == ["warning: broken takes no more numbers (no route to host); the run goes on without it"]
    assert one.reached == Reached(), "what was not told may be told by another start"


def test_a_package_that_is_missing_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "_is_there", lambda module: module not in {"wandb", "alembic"})
    with pytest.raises(UserError) as caught:
        asked.check_trackers(["wandb", "mlflow", "tensorboard", "none"])
    assert [str(problem) for problem in caught.value.problems] == [
        f"monitor.report_to={name}: the package {package} is not installed. "
        f"Install it (pip install 'trainmaster[{name}]'), or leave {name} out."
        for name, package in (("wandb", "wandb"), ("mlflow", "alembic"))
    ]
