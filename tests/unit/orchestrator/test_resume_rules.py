"""What a command may change when it goes on with a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.compose import compose
from orchestrator.config import Optimizer, RunConfig
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import UserError
from orchestrator.inputs import located
from orchestrator.resume import with_saved_config
from orchestrator.run_dir import RUNS, RunDir, choose, is_finished, open_keys


def config(**top: Any) -> RunConfig:
    return parse_config({"model": {"path": "m"}, "data": {"path": "d"}, **top})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "plan.json").write_text(json.dumps({"config": dump_config(config())}))
    return RunDir(path=tmp_path, resuming=True)


def test_ranks_and_engine_may_change(run: RunDir) -> None:
    changed = config(resume=str(run.path), devices=3, engine={"name": "zero3"}, checkpoint={"every": 1})
    assert choose(changed).path == run.path


def test_adapters_and_order_may_not(run: RunDir) -> None:
    with pytest.raises(UserError) as caught:
        choose(config(resume=str(run.path), adapter={"rank": 4}, seed=5, batch={"global": 8}))
    assert {problem.where for problem in caught.value.problems} == {"adapter.rank", "seed", "batch.global"}


def test_another_run_dir_is_refused(run: RunDir) -> None:
    with pytest.raises(UserError, match="leave run_dir out"):
        choose(config(resume=str(run.path), run_dir=str(run.path / "other")))


def test_a_finished_run(run: RunDir) -> None:
    done = {"status": "done"}
    assert is_finished(config(), run, done)
    assert not is_finished(config(), run, {"status": "stopped"})
    assert not is_finished(config(batch={"epochs": 2}), run, done), "more epochs reopen it"
    with pytest.raises(UserError, match="is finished"):
        is_finished(config(optimizer={"lr": 1.0}), run, done)


def test_saved_settings_stand_in_and_the_users_win(run: RunDir) -> None:
    arguments = with_saved_config([f"resume={run.path}", "devices=3", "optimizer=adamw_8bit"])
    assert "model.path='m'" in arguments
    assert arguments.index("devices=0") < arguments.index("devices=3")
    assert not any(item.startswith("optimizer.") for item in arguments), "a chosen group replaces the saved one"
    assert with_saved_config(["resume=false", "devices=3"]) == ["resume=false", "devices=3"]


OPEN = ["data.packing=auto", "optimizer=auto"]


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was started with OPEN and whose plan has settled it; the working directory is that of its `runs`."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / RUNS / "one"
    folder.mkdir(parents=True)
    started = located(compose(["model=m", "data=d", *OPEN, "optimizer.lr=0.5"])[0])
    body = dump_config(started)
    body["data"]["packing"], body["optimizer"]["name"] = True, "adamw_8bit"
    (folder / "plan.json").write_text(json.dumps({"config": body}))
    return folder


@pytest.mark.parametrize("repeated", [[], OPEN, ["optimizer.name=auto", "data.packing=null"]])
def test_a_named_run_goes_on_with_what_its_plan_has_settled(settled: Path, repeated: list[str]) -> None:
    found = compose(with_saved_config([f"resume={settled}", *repeated]))[0]
    assert (found.data.packing, found.optimizer.name) == (True, Optimizer.adamw_8bit)
    assert found.optimizer.lr == 0.5, "leaving the name open is not choosing another group"
    assert choose(located(found)).path == settled


def test_resume_true_finds_the_run_and_what_its_plan_has_settled(settled: Path) -> None:
    command = ["resume=true", "model=m", "data=d", *OPEN, "optimizer.lr=0.5"]
    found = located(compose(with_saved_config(command))[0])
    assert open_keys(found) == ()
    assert (found.data.packing, found.optimizer.name) == (True, Optimizer.adamw_8bit)
    assert choose(found).path == settled


def test_resume_true_takes_what_is_said_as_said(settled: Path) -> None:
    """Another value than the plan's is another run, even where the rest is the same."""
    command = ["resume=true", "model=m", "data=d", "data.packing=false", "optimizer=auto", "optimizer.lr=0.5"]
    with pytest.raises(UserError, match="none of the 1 runs"):
        with_saved_config(command)
    plain = ["resume=true", "model=m", "data=d", "data.packing=false"]
    assert with_saved_config(plain) == plain, "nothing is open, so nothing has to be looked up"


def test_a_named_run_refuses_another_value_than_its_plans(settled: Path) -> None:
    found = located(compose(with_saved_config([f"resume={settled}", "data.packing=false"]))[0])
    with pytest.raises(UserError) as caught:
        choose(found)
    assert [problem.where for problem in caught.value.problems] == ["data.packing"]


@pytest.mark.parametrize("where", [[], ["run_dir=runs/one"]])
def test_resume_true_takes_the_ranks_of_narrow_modules(settled: Path, where: list[str]) -> None:
    started = ["model=m", "data=d", "adapter.rank=auto"]
    body = dump_config(located(compose(started)[0]))
    body["adapter"] |= {"rank": 64, "rank_pattern": ["k_proj:32", "v_proj:32"]}
    (settled / "plan.json").write_text(json.dumps({"config": body}))
    found = located(compose(with_saved_config(["resume=true", *where, *started]))[0])
    assert (found.adapter.rank, found.adapter.rank_pattern) == (64, (("k_proj", 32.0), ("v_proj", 32.0)))
    assert choose(found).path == settled
    with pytest.raises(UserError):
        with_saved_config(["resume=true", *where, *started, "adapter.rank_pattern=[q_proj:8]"])
