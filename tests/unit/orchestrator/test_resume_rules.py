"""What a command may change when it goes on with a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import RunConfig
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import UserError
from orchestrator.resume import with_saved_config
from orchestrator.run_dir import RunDir, choose, is_finished


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
    assert with_saved_config(["resume=true", "devices=3"]) == ["resume=true", "devices=3"]
