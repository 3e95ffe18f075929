"""Which folder a run gets, and which one it goes on in."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.config import RunConfig
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import UserError
from orchestrator.run_dir import choose


def config(**top: Any) -> RunConfig:
    return parse_config({"model": {"path": "m"}, "data": {"path": "d"}, **top})


def made(folder: Path, of: RunConfig) -> Path:
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"config": dump_config(of)}))
    return folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_fresh_folders_differ() -> None:
    first = choose(config())
    first.path.mkdir(parents=True)
    assert choose(config()).path != first.path


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", config())
    assert choose(config(run_dir=str(folder))).path == folder, "a plan alone is no run"
    (folder / "metrics.jsonl").touch()
    with pytest.raises(UserError, match="already holds a run"):
        choose(config(run_dir=str(folder)))


def test_resume_true_finds_the_newest_of_the_same_command() -> None:
    made(Path("runs/1"), config(seed=1))
    wanted = made(Path("runs/2"), config(seed=2))
    made(Path("runs/3"), config(seed=3))
    assert choose(config(seed=2, resume="true", devices=1)).path == wanted.absolute()
    with pytest.raises(UserError, match="none of the 3 runs"):
        choose(config(seed=4, resume="true"))


def test_resume_true_finds_a_run_of_before_a_key() -> None:
    folder = made(Path("runs/1"), config(seed=1))
    body = json.loads((folder / "plan.json").read_text())
    del body["config"]["data"]["sources"], body["config"]["adapter"]["kind"]
    (folder / "plan.json").write_text(json.dumps(body))
    assert choose(config(seed=1, resume="true")).path == folder.absolute()
    with pytest.raises(UserError, match="none of the 1 runs"):
        choose(config(seed=1, resume="true", adapter={"kind": "adalora"}))


def test_resume_true_goes_by_what_was_asked_for() -> None:
    """A plan that was made anew after memory ran out has other settings, which the user does not repeat."""
    made(Path("runs/1"), config(seed=2))
    asked = dump_config(config(seed=2))
    wanted = made(Path("runs/2"), config(seed=2, adapter={"rank": 4}, data={"path": "d", "seq_len": 128}))
    body = json.loads((wanted / "plan.json").read_text())
    (wanted / "plan.json").write_text(json.dumps({**body, "setbacks": {"config": asked}}))
    assert choose(config(seed=2, resume="true")).path == wanted.absolute()


def test_resume_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no plan\.json"):
        choose(config(resume=str(tmp_path / "no")))


def test_attempts_count(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", config())
    run = choose(config(resume=str(folder)))
    assert run.attempt == 1
    (folder / "plan.1.json").touch()
    assert run.attempt == 2
