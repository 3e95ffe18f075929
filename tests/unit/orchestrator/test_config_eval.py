"""Keys of evaluations: every mistake is told, before anything is started."""

import json
from pathlib import Path

import pytest

from orchestrator.compose import compose
from orchestrator.config_eval import EvalConfig
from orchestrator.config_rules_eval import check_eval
from orchestrator.errors import UserError
from orchestrator.eval_inputs import check_eval_inputs, located_eval, questions_of, refusals_of
from orchestrator.resume import with_saved_config


def _wrong(config: EvalConfig) -> list[tuple[str, str]]:
    return [(problem.where, problem.remedy) for problem in check_eval(config)]


def test_the_defaults_are_right() -> None:
    assert _wrong(EvalConfig()) == []
    assert _wrong(EvalConfig(generate=4, metrics=("ROUGEL", "bleu"), must_match=(r"\d",), temperature=0.5)) == []


def test_a_metric_that_there_is_not_names_the_nearest() -> None:
    found = _wrong(EvalConfig(generate=4, metrics=("bluee", "f1", "zzz")))
    assert found[0] == ("eval.metrics", "Did you mean 'bleu'?")
    assert found[2][1].startswith("Known: exact_match, token_f1")
    assert len(found) == 3


@pytest.mark.parametrize("key", ["generate", "shown_rows", "lm_eval_limit", "temperature", "max_new_tokens", "batch"])
def test_numbers_have_limits(key: str) -> None:
    values = {"generate": 1, key: -1}
    assert [where for where, _ in _wrong(EvalConfig(**values))] == [f"eval.{key}"]


def test_rules_must_be_expressions() -> None:
    assert [where for where, _ in _wrong(EvalConfig(generate=1, must_match=("(",), must_not=("a", "[")))] == [
        "eval.must_match",
        "eval.must_not",
    ]


@pytest.mark.parametrize("key", ["keywords", "must_match", "must_not"])
@pytest.mark.parametrize("words", [("",), ("a", " ")])
def test_an_empty_word_is_no_rule(key: str, words: tuple[str, ...]) -> None:
    (found,) = check_eval(EvalConfig(generate=1, **{key: words}))
    assert (found.where, found.found) == (f"eval.{key}", "one of them is empty")


def test_keys_of_answers_want_answers() -> None:
    (found,) = _wrong(EvalConfig(keywords=("a",), temperature=0.5))
    assert found[0] == "eval.keywords, eval.temperature"
    assert _wrong(EvalConfig(keywords=("a",), prompts=("Why?",))) == []


def test_what_is_missing_on_the_disk_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "refusals.txt").write_text("# ours\nnein\n(\n")
    config = EvalConfig(
        generate=4,
        prompts=(str(tmp_path / "none.jsonl"),),
        refusals=str(tmp_path / "refusals.txt"),
        lm_eval_folder=str(tmp_path / "tasks"),
        lm_eval=("arc_easy",),
    )
    with pytest.raises(UserError) as error:
        check_eval_inputs(config, ())
    where = [problem.where for problem in error.value.problems if problem.where != "eval.lm_eval"]
    assert where == ["eval.generate", "eval.prompts", str(tmp_path / "refusals.txt"), "eval.lm_eval_folder"]


def test_a_harness_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.eval_inputs.HARNESS", "no_such_package_at_all")
    with pytest.raises(UserError, match=r"pip install 'trainmaster\[harness\]'"):
        check_eval_inputs(EvalConfig(lm_eval=("arc_easy",)), None)


def test_phrases_and_prompts_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.txt").write_text("nein\n")
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    config = located_eval(EvalConfig(prompts=("p.txt",), refusals="r.txt", must_not=("x",)))
    assert config.prompts == (str(tmp_path / "p.txt"),)
    assert refusals_of(config) == ("nein",)
    asked = questions_of(config, ())
    assert [one.text for one in asked] == ["one", "two"]
    assert all(one.checks.must_not == ("x",) for one in asked)
    own = located_eval(EvalConfig(prompts=("What is it for?", "b.txt")))
    assert own.prompts == ("What is it for?", "b.txt")
    assert own.refusals == ""


def test_a_resumed_run_asks_the_same(tmp_path: Path) -> None:
    """Prompts and expressions hold commas, which Hydra's grammar takes for the next value."""
    prompts = ["Say hello, please", "It's \\d{1,2}, isn't it?"]
    config = {"eval": {"prompts": prompts, "metrics": ["bleu", "chrf"]}}
    (tmp_path / "plan.json").write_text(json.dumps({"config": config}))
    words = [word for word in with_saved_config([f"resume={tmp_path}"]) if word.startswith("eval.")]
    composed = compose(["experiment=demo", "eval.generate=1", *words])[0].eval
    assert list(composed.prompts) == prompts
    assert composed.metrics == ("bleu", "chrf")
