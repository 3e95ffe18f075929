"""Outputs never replace what is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config import DataConfig, ModelConfig, RunConfig, TopologyConfig
from orchestrator.errors import UserError
from orchestrator.outputs import check_can_save


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    model = tmp_path / "model"
    model.mkdir()
    for path in (model / "config.json", tmp_path / "rows.jsonl", tmp_path / "machine.json"):
        path.write_text("{}")
    return RunConfig(
        model=ModelConfig(path=str(model)),
        data=DataConfig(path=str(tmp_path / "rows.jsonl")),
        topology=TopologyConfig(path=str(tmp_path / "machine.json")),
    )


@pytest.mark.parametrize("name", ["rows.jsonl", "machine.json", "model/config.json", "model/../rows.jsonl"])
@pytest.mark.parametrize("key", ["save", "picture", "save_readings"])
def test_an_input_is_not_replaced(config: RunConfig, tmp_path: Path, key: str, name: str) -> None:
    with pytest.raises(UserError, match="would replace what"):
        check_can_save(replace(config, **{key: str(tmp_path / name)}))


def test_a_link_to_an_input_is_one(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "rows.jsonl")
    with pytest.raises(UserError, match="would replace what"):
        check_can_save(replace(config, save=str(tmp_path / "link")))


def test_two_outputs_are_two_files(config: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two outputs"):
        check_can_save(replace(config, save=str(tmp_path / "a.svg"), picture=str(tmp_path / "a.svg")))


def test_other_files_are_fine(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    check_can_save(replace(config, save=str(tmp_path / "old.json"), picture=str(tmp_path / "new.svg")))
    check_can_save(replace(config, save="/dev/null", picture="/dev/null"))
