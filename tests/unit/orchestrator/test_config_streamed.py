"""Keys of engine `streamed`: lists of numbers, and what contradicts itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.compose import compose
from orchestrator.config import Engine, EngineConfig
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import UserError

RAW = {"model": {"path": "m"}, "data": {"path": "d"}}
CONFIGS = Path(__file__).parents[3] / "configs" / "engine"


def _parsed(**engine: Any) -> EngineConfig:
    return parse_config({**RAW, "engine": {"name": "streamed", **engine}}).engine


@pytest.mark.parametrize("value", ["auto", "", None, []])
def test_lists_may_be_left_to_the_planner(value: object) -> None:
    assert _parsed(shards=value, budgets_gib=value) == EngineConfig(name=Engine.streamed)


@pytest.mark.parametrize("value", [[70, 30], ["70", 30.0], "70,30"])
def test_lists_of_numbers(value: object) -> None:
    assert _parsed(shards=value).shards == (70.0, 30.0)


def test_round_trip() -> None:
    engine = {"name": "streamed", "shards": [70, 30], "budgets_gib": [8, 4], "window": 2, "host_share": 0.5}
    config = parse_config({**RAW, "engine": {**engine, "island": 2, "chunk_mib": 4}})
    assert parse_config(dump_config(config)) == config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shards", [1, math.nan]),
        ("shards", [1, math.inf]),
        ("shards", ["much", 1]),
        ("shards", [True, 1]),
        ("shards", [-1, 2]),
        ("shards", [0, 0]),
        ("budgets_gib", [0, 1]),
        ("budgets_gib", [-1, 1]),
        ("budgets_gib", math.nan),
        ("window", 0),
        ("window", 1.5),
        ("island", 0),
        ("chunk_mib", 0),
        ("host_share", 1.5),
        ("host_share", -0.1),
        ("host_share", math.nan),
    ],
)
def test_wrong_values_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        _parsed(**{key: value})
    assert {problem.where for problem in caught.value.problems} == {f"engine.{key}"}


@pytest.mark.parametrize(
    ("devices", "engine", "where"),
    [
        (3, {"shards": [70, 30]}, ["engine.shards"]),
        (3, {"budgets_gib": [70, 30]}, ["engine.budgets_gib"]),
        (0, {"shards": [70, 30], "budgets_gib": [1, 1, 1]}, ["engine.shards, engine.budgets_gib"]),
        (4, {"island": 3}, ["engine.island"]),
        (0, {"island": 2, "shards": [1, 1, 1]}, ["engine.island"]),
        (4, {"island": 2, "shards": [0, 0, 1, 1]}, ["engine.shards"]),
        (2, {"name": "ddp", "shards": [70, 30]}, ["engine.shards"]),
        (2, {"name": "ddp", "window": 3, "island": 2}, ["engine.window", "engine.island"]),
        (2, {"name": "zero3", "host_share": 0.5}, ["engine.host_share"]),
        (
            3,
            {"shards": [1, 2], "budgets_gib": [1]},
            ["engine.shards", "engine.budgets_gib", "engine.shards, engine.budgets_gib"],
        ),
    ],
)
def test_contradictions_are_told_together(devices: int, engine: dict[str, Any], where: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_config({**RAW, "devices": devices, "engine": {"name": "streamed", **engine}})
    assert [problem.where for problem in caught.value.problems] == where


def test_all_options_of_the_group_have_the_same_keys() -> None:
    """So that every key can be overridden whichever engine is taken."""
    bodies = {path.stem: yaml.safe_load(path.read_text()) for path in CONFIGS.glob("*.yaml")}
    assert set(bodies) == {engine.value for engine in Engine}
    for name, body in bodies.items():
        assert body.pop("name") == name
        assert body == {key: value for key, value in bodies["auto"].items() if key != "name"}, name


def test_the_command_line_takes_lists() -> None:
    config, _ = compose(["model=m", "data=d", "engine=streamed", "engine.shards=[70,30]"], needs_job=True)
    assert (config.engine.name, config.engine.shards) == (Engine.streamed, (70.0, 30.0))
