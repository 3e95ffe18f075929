"""A run seen from another shell, by the files that it leaves."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.compose import compose
from orchestrator.inputs import gather
from orchestrator.monitor.readings import HostReading, RankReading
from orchestrator.monitor.store import host_file, line_of, rank_file
from orchestrator.planner.plan import dumps
from orchestrator.planning import plan_of
from orchestrator.watch import Watch, watch


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    config, _ = compose(["experiment=demo", "topology=cpu", "batch.max_steps=8"])
    text = dumps(plan_of(config, gather(config), "run", {}))
    for name in ("plan.json", "plan.1.json"):
        (tmp_path / name).write_text(text)
    return tmp_path


def add(path: Path, *records: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def step(number: int, **values: Any) -> dict[str, Any]:
    return {"step": number, "loss": 5.0 - number, "step_seconds": 2.0, "tokens_per_second": 100.0, **values}


def test_what_comes_is_taken_in(run_dir: Path) -> None:
    watched = Watch(run_dir)
    assert (watched.look().step, watched.look().num_steps) == (0, 8)
    add(run_dir / "metrics.jsonl", {"step": 0, "eval_loss": 4.5}, step(1), step(2))
    add(run_dir / "events.jsonl", {"event": "fault_detected", "evidence": "rank 1 hangs"})
    with (run_dir / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 3, "loss":')  # still being written
    live = watched.look()
    assert (live.step, live.loss, live.eval_loss, live.tokens_per_second) == (2, 3.0, 4.5, 100.0)
    assert watched.fresh == ("fault detected: rank 1 hangs",)
    assert watched.look().told == ("fault detected: rank 1 hangs",)
    assert not watched.fresh


def test_a_run_that_went_back_is_read_anew(run_dir: Path) -> None:
    watched = Watch(run_dir)
    add(run_dir / "metrics.jsonl", step(1), step(2), step(3))
    assert watched.look().step == 3
    (run_dir / "metrics.jsonl").write_text("")
    add(run_dir / "metrics.jsonl", step(1))
    assert watched.look().loss == 4.0


def test_readings_tell_memory_and_waits(run_dir: Path) -> None:
    rank = RankReading(time=1.0, rank=0, host=0, step=2, step_seconds=2.0, busy_seconds=1.0, communication_seconds=1.0)
    host = HostReading(time=1.0, host=0, memory_available_bytes=2**31)
    for path, reading in ((rank_file(run_dir, 0), rank), (host_file(run_dir, 0), host)):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(line_of(reading))
    live = Watch(run_dir).look()
    assert live.bottleneck == "computing 50%, waiting for gradients 50%"
    assert live.headroom == "2.0 GiB free on host 0"


def test_logs_get_a_line_for_each_change(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(run_dir / "metrics.jsonl", step(1))
    looks = 0

    def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        add(run_dir / "metrics.jsonl", step(1 + looks))
        if looks == 3:
            (run_dir / "summary.json").write_text(json.dumps({"status": "done", "steps": 8}))

    monkeypatch.setattr("time.sleep", pause)
    monkeypatch.setattr("orchestrator.runs.watching_pid", lambda path: None if (path / "summary.json").exists() else 1)
    out = io.StringIO()
    live = watch(run_dir, out)
    lines = out.getvalue().splitlines()
    assert live.status == "done"
    assert [line.split(",")[1].split()[1] for line in lines] == ["1/8", "2/8", "3/8", "4/8"]
    assert "\x1b" not in out.getvalue()


def test_a_terminal_is_written_over(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("time.sleep", lambda _: (run_dir / "summary.json").write_text('{"status": "done"}'))
    monkeypatch.setattr("orchestrator.runs.watching_pid", lambda path: None if (path / "summary.json").exists() else 1)
    out = Terminal()
    watch(run_dir, out)
    assert "\x1b[2A" in out.getvalue()
    assert out.getvalue().count("running, attempt 1") == 1
