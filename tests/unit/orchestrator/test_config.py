"""Plain mappings to typed values and back."""

import math

import pytest

from orchestrator.compose import compose
from orchestrator.config import Precision
from orchestrator.config_codec import dump_config, parse_config
from orchestrator.errors import UserError

RAW = {"model": {"path": "m"}, "data": {"path": "d"}}


@pytest.mark.parametrize("words", ["faults.step=0", "monitor.every_seconds=0.01", "monitor.every_seconds=0"])
def test_what_would_never_act_or_never_rest_is_refused(words: str) -> None:
    key = words.partition("=")[0]
    with pytest.raises(UserError) as caught:
        compose(["experiment=demo", "faults=kill_rank", words])
    assert [problem.where for problem in caught.value.problems] == [key]


def test_round_trip() -> None:
    config = parse_config({**RAW, "precision": "bf16", "adapter": {"targets": "q_proj, v_proj"}})
    assert config.precision is Precision.bf16
    assert config.adapter.targets == ("q_proj", "v_proj")
    assert parse_config(dump_config(config)) == config


def test_auto_is_none() -> None:
    assert parse_config({**RAW, "batch": {"micro": "auto"}}).batch.micro is None


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("optimizer", "lr", math.nan),
        ("optimizer", "lr", -1),
        ("optimizer", "weight_decay", "much"),
        ("batch", "global", 1.5),
        ("batch", "micro", 0),
        ("data", "seq_len", 0),
        ("data", "eval_fraction", 1),
        ("adapter", "rank", True),
        ("data", "shape", "xml"),
        ("checkpoint", "keep", 0),
    ],
)
def test_wrong_values_are_refused_by_name(group: str, key: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        parse_config({**RAW, group: {**RAW.get(group, {}), key: value}})
    assert [problem.where for problem in caught.value.problems] == [f"{group}.{key}"]


@pytest.mark.parametrize("count", [-1, 0, 1.5, "some"])
def test_a_number_of_recomputed_layers_is_at_least_one(count: object) -> None:
    assert parse_config({**RAW, "checkpointing_layers": "auto"}).checkpointing_layers is None
    assert parse_config({**RAW, "checkpointing_layers": 20}).checkpointing_layers == 20
    with pytest.raises(UserError) as caught:
        parse_config({**RAW, "checkpointing_layers": count})
    assert [problem.where for problem in caught.value.problems] == ["checkpointing_layers"]


def test_no_checkpointing_of_some_layers_is_a_contradiction() -> None:
    with pytest.raises(UserError, match="checkpointing=none recomputes no layer") as caught:
        parse_config({**RAW, "checkpointing": "none", "checkpointing_layers": 4})
    assert [problem.where for problem in caught.value.problems] == ["checkpointing_layers"]


def test_contradictions() -> None:
    with pytest.raises(UserError) as caught:
        parse_config(
            {
                **RAW,
                "batch": {"global": 4, "micro": 8},
                "engine": {"name": "zero3", "offload_param": "nvme"},
                "optimizer": {"name": "adamw_8bit"},
                "launch": {"backend": "local"},
                "devices": 2,
            }
        )
    wheres = {problem.where for problem in caught.value.problems}
    assert wheres == {"batch.micro", "engine.nvme_path", "optimizer", "launch"}
