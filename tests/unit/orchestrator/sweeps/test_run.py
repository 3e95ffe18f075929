"""What a sweep refuses before any trial, what it hands on, and what Optuna may choose from."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.sweeps.optimise import RESULTS, OptunaTrials, search_space
from orchestrator.sweeps.trial import TrialJob, ended, trial_environment

GO = """
import sys
from orchestrator.cli import main
code = main(sys.argv[1:])
assert not {"torch", "transformers"} & sys.modules.keys(), "the process that sweeps holds no GPU memory"
sys.exit(code)
"""


def _train(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", GO, "train", "-m", "experiment=demo", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep.parallel=0", "seed=1,2"], "sweep.parallel"),
        (["hydra/launcher=submitit_slrum", "seed=1,2"], "submitit_slurm"),
        (["hydra/sweeper=optuna", "seed=1"], "nothing to choose"),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_trials=0", "seed=1,2"], "hydra.sweeper.n_trials"),
        (["hydra/sweeper=optuna", "hydra.sweeper.sampler.name=best", "seed=1,2"], "tpe"),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_trails=3", "seed=1,2"], "n_trails"),
        (["hydra/sweeper=optuna", "optimizer.lr=tag(log, interval(0, 1))"], "optimizer.lr"),
        (["optimizer.lr=interval(0,1)"], "optimizer.lr"),
        (["resume=true", "seed=1,2"], "resume"),
        (["run_dir=full", "seed=1,2"], "full"),
    ],
)
def test_what_is_wrong_with_the_sweep_itself_is_bad_input(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = _train(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_trials_that_are_all_refused_still_end_in_the_table(tmp_path: Path) -> None:
    """Two at once on cores of their own; the results also where `save` wants them."""
    done = _train(tmp_path, "adapter.rank=0,-1", "format=json", "sweep.parallel=2", "run_dir=s", "save=all.json")
    assert done.returncode == 2, done.stderr
    body = json.loads(done.stdout)
    assert [(trial["status"], trial["exit_code"]) for trial in body["trials"]] == [("bad input", 2)] * 2
    assert body["best"] is None
    assert json.loads((tmp_path / "all.json").read_text()) == body
    assert "adapter.rank: found -1" in (tmp_path / "s" / "1.log").read_text()
    assert "found 0" in (tmp_path / "s" / "sweep.csv").read_text()


def test_a_dry_run_shows_each_trial(tmp_path: Path) -> None:
    done = _train(tmp_path, "adapter.rank=8", "dry_run=true", "run_dir=s")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "s" / "0").exists()
    assert str(tmp_path / "s" / "0") in (tmp_path / "s" / "0.log").read_text()


def test_a_trial_has_a_folder_of_its_own_and_none_of_the_sweeps_keys(tmp_path: Path) -> None:
    asked = ("seed=1", "adapter.rank=8", "sweep.parallel=2", "format=json", "save='x'")
    job = TrialJob(number=3, overrides=asked, folder=tmp_path, swept=("adapter.rank",))
    assert job.title == "adapter.rank=8"
    assert job.argv("py")[4:] == ("seed=1", "adapter.rank=8", f"run_dir='{tmp_path / '3'}'")
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "plan.json").touch()
    assert job.argv("py")[4:] == (f"resume='{tmp_path / '3'}'",), "a requeued job goes on"


def test_a_trial_sees_its_devices_alone() -> None:
    found = trial_environment({"PYTHONPATH": "/mine", "CUDA_VISIBLE_DEVICES": "0,1"}, ("GPU-a", "GPU-b"))
    assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("GPU-a,GPU-b", "PCI_BUS_ID")
    assert found["PYTHONPATH"].endswith(":/mine")
    assert trial_environment({"CUDA_VISIBLE_DEVICES": "0"})["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_reason_is_what_the_trial_said(tmp_path: Path) -> None:
    job = TrialJob(number=0, overrides=(), folder=tmp_path)
    (tmp_path / "0.log").write_text("step 1\nerror: the run: rank 1 died. Last lines: a. b\nerror: second\n")
    assert ended(job, 4, "").reason == "the run: rank 1 died"
    other = TrialJob(number=1, overrides=(), folder=tmp_path)
    assert ended(job, 4, "", "SLURM ended job 7_2 FAILED").reason == "SLURM ended job 7_2 FAILED; the run: rank 1 died"
    assert ended(other, -9, "", "ended by SIGKILL").reason == "ended by SIGKILL"
    assert ended(other, 130, "").reason == "stopped before it began"
    assert str(other.log) in ended(other, 4, "").reason
    assert ended(job, 0, "").reason == ""
    other.run_dir.mkdir(parents=True, exist_ok=True)
    (other.run_dir / "summary.json").write_text('{"status": "done"}')
    late = ended(other, -2, "", "ended by SIGINT")
    assert (late.code, late.reason) == (0, "")  # all its steps were done; a signal met its last words
    assert ended(other, 4, "").code == 4


def test_search_space_reads_hydras_grammar() -> None:
    words = ["seed=1", "optimizer.lr=tag(log, interval(1e-4, 1e-2))", "adapter.rank=8,16", "seed=interval(1, 9)"]
    fixed, space = search_space([*words, "batch.global=4", "optimizer.lr=tag(log, interval(1e-3, 1e-2))"])
    assert fixed == ("batch.global=4",)
    lr, rank, seed = space["optimizer.lr"], space["adapter.rank"], space["seed"]
    assert (lr.low, lr.high, lr.log) == (1e-3, 1e-2, True)
    assert list(rank.choices) == [8, 16]
    assert (seed.low, seed.high, seed.log) == (1, 9, False)
    with pytest.raises(UserError, match="smaller end"):
        search_space(["optimizer.lr=interval(2.0, 1.0)"])


def _optimiser(folder: Path, num_trials: int, num_jobs: int, storage: str = "") -> tuple[OptunaTrials, list[list[str]]]:
    """A sweeper whose trials have a known best learning rate; every fifth has no loss."""
    launched: list[list[str]] = []

    def launch(overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Any]:
        assert initial_job_idx == len(launched)
        losses = []
        for one in overrides:
            launched.append(list(one))
            lr = float(dict(item.split("=") for item in one)["optimizer.lr"])
            losses.append(None if len(launched) % 5 == 0 else (math.log10(lr) + 3) ** 2)
        return [SimpleNamespace(return_value=loss) for loss in losses]

    made = OptunaTrials(
        n_trials=num_trials,
        n_jobs=num_jobs,
        sampler={"name": "tpe", "seed": 0},
        study_name="s",
        storage=storage,
        params={"optimizer.lr": "tag(log, interval(1e-6, 1.0))"},
    )
    made.launcher = SimpleNamespace(launch=launch)
    made.sweep_state = SimpleNamespace(folder=folder, signals=SimpleNamespace(count=0))
    return made, launched


def test_optuna_nears_the_lowest_loss_and_keeps_what_it_found(tmp_path: Path) -> None:
    made, launched = _optimiser(tmp_path, num_trials=29, num_jobs=4)
    made.sweep(["seed=1"])
    assert len(launched) == 29
    assert all("seed=1" in one for one in launched)
    best = json.loads((tmp_path / RESULTS).read_text())
    assert best["best_value"] < 0.1
    assert 10**-3.4 < best["best_evaluated_params"]["optimizer.lr"] < 10**-2.6
    kept = (tmp_path / "optuna.log").read_text()
    more, again = _optimiser(tmp_path / "next", num_trials=1, num_jobs=1, storage=str(tmp_path / "optuna.log"))
    more.sweep([])
    assert len(again) == 1
    assert json.loads((tmp_path / "next" / RESULTS).read_text())["best_value"] <= best["best_value"]
    assert (tmp_path / "optuna.log").read_text().startswith(kept)


def test_optuna_ends_when_the_sweep_was_stopped(tmp_path: Path) -> None:
    made, launched = _optimiser(tmp_path, num_trials=9, num_jobs=1)
    made.sweep_state.signals.count = 1
    made.sweep([])
    assert launched == []
