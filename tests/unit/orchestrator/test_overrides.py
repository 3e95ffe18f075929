"""What the user types, before Hydra sees it."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.compose import compose, groups
from orchestrator.errors import UserError
from orchestrator.overrides import rewrite


def test_bare_path_is_the_run_directory() -> None:
    assert rewrite(["runs/a b"], groups()) == ["run_dir='runs/a b'"]


def test_path_as_group_value() -> None:
    given_ = ["model=./my-llama", "data=rows.jsonl", "topology=topo.json"]
    assert rewrite(given_, groups()) == [
        "model=local",
        "model.path='./my-llama'",
        "data=file",
        "data.path='rows.jsonl'",
        "topology=file",
        "topology.path='topo.json'",
    ]


def test_an_existing_option_wins() -> None:
    assert rewrite(["model=local", "engine=zero3"], groups()) == ["model=local", "engine=zero3"]


@pytest.mark.parametrize(
    ("argument", "where", "hint"),
    [
        ("adaptr.rank=8", "adaptr.rank", "adapter.rank"),
        ("optimizer.lrr=1", "optimizer.lrr", "optimizer.lr"),
        ("engine=zero", "engine", "zero3"),
        ("experiment=dmo", "experiment", "demo"),
        ("optimizer=adam", "optimizer", "adamw"),
        ("modle=x", "modle", "model"),
    ],
)
def test_typos_name_the_nearest(argument: str, where: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        rewrite([argument], groups())
    (problem,) = caught.value.problems
    assert problem.where == where
    assert hint in problem.remedy


def test_all_problems_at_once() -> None:
    with pytest.raises(UserError) as caught:
        rewrite(["run", "adaptr.rank=8", "engine=zero", "what"], groups())
    assert [problem.where for problem in caught.value.problems] == ["adaptr.rank", "engine", "what"]


def test_wrong_values_name_the_key() -> None:
    with pytest.raises(UserError) as caught:
        compose(["model=x", "data=y", "optimizer.lr=abc", "batch.global=0", "precision=fp8"])
    assert {problem.where for problem in caught.value.problems} == {"optimizer.lr", "precision"}
    with pytest.raises(UserError, match=r"batch\.global"):
        compose(["model=x", "data=y", "batch.global=0"])


def test_missing_model_and_data_say_how_to_give_them() -> None:
    with pytest.raises(UserError) as caught:
        compose([])
    assert [problem.where for problem in caught.value.problems] == ["model.path", "data.path"]
    assert "model=./my-llama" in caught.value.problems[0].remedy


# Surrogates cannot be typed; control characters are not in paths people have.
_PATHS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)


@settings(max_examples=40)
@given(_PATHS)
@example("$~")
@example("$[")
def test_any_path_survives(path: str) -> None:
    if path in groups()["model"] or path.startswith(("'", '"')) or "${" in path:
        return
    config, _ = compose([f"model={path}", "data=rows.jsonl", f"save={path}"])
    assert config.model.path == path
