"""A run seen from another shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import runs
from orchestrator.cli import main
from orchestrator.errors import UserError


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "plan.1.json").write_text("{}")
    return tmp_path


def test_a_run_that_is_done(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "metrics.jsonl").write_text('{"step": 0, "eval_loss": 3}\n{"step": 4, "loss": 1.25}\n{"step": 5, "lo')
    (run_dir / "summary.json").write_text(json.dumps({"status": "done", "steps": 4, "planned_steps": 4}))
    (run_dir / "logs" / "a-1.log").write_text("said\n")
    assert main(["status", str(run_dir), "format=json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["status"], body["attempt"], body["step"], body["loss"]) == ("done", 1, 4, 1.25)
    assert body["log"] == str(run_dir / "logs" / "a-1.log")
    assert main(["logs", str(run_dir)]) == 0
    assert capsys.readouterr().out == "said\n"
    assert main(["cancel", str(run_dir)]) == 2
    assert "nothing runs there" in capsys.readouterr().err


def test_the_log_is_of_the_ranks_whatever_was_written_later(run_dir: Path) -> None:
    for at, name in enumerate(("a-b-1.log", "a-b-2.log", "a-b-3-prepare.log", "sbatch.log", "lm_eval.log")):
        (run_dir / "logs" / name).write_text(name)
        os.utime(run_dir / "logs" / name, (at, at))
    assert runs.newest_log(run_dir, None) == run_dir / "logs" / "a-b-2.log"
    (run_dir / "logs" / "ranks-1.log").write_text("newer")
    assert runs.newest_log(run_dir, None) == run_dir / "logs" / "ranks-1.log"


@pytest.mark.parametrize("verb", ["status", "logs", "cancel"])
def test_no_run(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb]) == 2
    assert f"trainmaster {verb} RUN_DIR" in capsys.readouterr().err
    assert main([verb, str(tmp_path)]) == 2
    assert "no plan.json" in capsys.readouterr().err


def test_a_run_before_its_first_start(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.state_of_run(run_dir).status == "planned"
    assert main(["logs", str(run_dir)]) == 2
    assert "no output yet" in capsys.readouterr().err


def test_a_run_at_work_is_asked_to_stop(run_dir: Path) -> None:
    code = "import signal,time; print('up', flush=True); time.sleep(60)"
    # The words by which a process of ours is told from a stranger with its number.
    process = subprocess.Popen([sys.executable, "-c", code, "trainmaster"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        (run_dir / ".lock").write_text(f"{process.pid}\n")
        assert runs.state_of_run(run_dir).status == "running"
        (run_dir / "stop").touch()
        assert runs.state_of_run(run_dir).status == "stopping"
        (run_dir / "stop").unlink()
        assert "asked to stop" in runs.cancel(run_dir)
        assert process.wait(timeout=10) == -signal.SIGTERM
    finally:
        process.kill()
    assert runs.state_of_run(run_dir).pid is None


def test_a_number_that_belongs_to_somebody_else_by_now(run_dir: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        (run_dir / ".lock").write_text(f"{process.pid}\n")
        assert runs.watching_pid(run_dir) is None
        with pytest.raises(UserError):
            runs.cancel(run_dir)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_job_where_slurm_is_not(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    (run_dir / "launch").mkdir()
    (run_dir / "launch" / "submitted.json").write_text('{"job": "12"}')
    state = runs.state_of_run(run_dir)
    assert state.status == "ended"
    assert "no scontrol on this host" in runs.to_text(state)
