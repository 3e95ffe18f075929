"""Evaluations that generate: real ranks of every engine answer, and the training is as if they had not."""

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Dropout draws from the generators, so a trace that an answer left in them would show in the next loss.
COMMON = ("adapter.dropout=0.1", "eval.every=3", "data.max_eval_rows=7", "eval.before=true")
ASKED = (
    *("eval.generate=7", "eval.max_new_tokens=12", "eval.temperature=0.7", "eval.shown_rows=2"),
    "eval.prompts=['What is os.path.join for?','Say hello, please']",
    "eval.keywords=[the]",
)


def _samples(runs: Any, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (runs.root / name / "samples.jsonl").read_text().splitlines()]


def _evaluations(runs: Any, name: str) -> dict[int, dict[str, Any]]:
    records = map(json.loads, (runs.root / name / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record for record in records if "eval_loss" in record}


@pytest.fixture(scope="module")
def answered(runs: Any) -> dict[str, Any]:
    """What a run of two ranks with answers says."""
    summary: dict[str, Any] = runs.train("answers_with", *COMMON, *ASKED, "engine=ddp")
    return summary


def test_two_ranks_answer_and_train_as_if_they_had_not(runs: Any, answered: dict[str, Any]) -> None:
    runs.train("answers_without", *COMMON, "engine=ddp")
    summary = answered
    assert runs.losses("answers_with") == runs.losses("answers_without")
    before, after = summary["eval_before"], summary["eval_after"]
    assert before["loss"] == summary["eval_loss_before"]
    assert after["loss"] == summary["eval_loss_after"] == runs.summary("answers_without")["eval_after"]["loss"]
    for block in (before, after):
        assert block["answers"] == 7
        assert {"perplexity", "exact_match", "token_f1", "rougeL", "bleu", "chrf", "rules", "refusal_rate"} <= set(
            block
        )
        assert block["prompts"]["answers"] == 2
        assert 0 < block["answer_tokens"] <= 12
    assert set(_evaluations(runs, "answers_with")) == {0, 3, 6}
    samples = _samples(runs, "answers_with")
    assert [(one["step"], one["name"]) for one in samples] == [
        (step, name) for step in (0, 3, 6) for name in ("prompt 1", "prompt 2", "row 1", "row 2")
    ]
    page = (runs.root / "answers_with" / "samples.md").read_text()
    assert "> Say hello, please" in page
    assert page.count("\n| 6 |") == 4


@pytest.mark.slow
@pytest.mark.usefixtures("answered")
def test_a_resumed_run_keeps_earlier_samples(runs: Any) -> None:
    folder = runs.copy_at("answers_with", "answers_resumed", 4)
    resumed = runs.run("train", f"resume={folder}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    # Drawn answers depend on their seed alone, so the step that was run again says the same.
    assert _samples(runs, "answers_resumed") == _samples(runs, "answers_with")
    assert runs.summary("answers_resumed")["eval_before"] == runs.summary("answers_with")["eval_before"]
    assert "held-out rows (7 answers)" in resumed.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "tokens"), [("streamed", 12), ("zero3", 4)])
def test_ranks_with_unequal_work_do_not_wait_for_ever(runs: Any, engine: str, tokens: int) -> None:
    """Nine questions in batches of two are five batches for two ranks, which answer at different lengths."""
    name, shared = (
        f"answers_{engine}",
        ("adapter.dropout=0.1", "eval.every=2", "data.max_eval_rows=7", "batch.max_steps=3"),
    )
    greedy = ("eval.generate=7", "eval.prompts=[Hello there,Why]", "eval.batch=2", f"eval.max_new_tokens={tokens}")
    asked = runs.train(name, *shared, *greedy, "eval.before=false", f"engine={engine}")
    runs.train(f"{name}_without", *shared, "eval.before=false", f"engine={engine}")
    assert runs.losses(name) == runs.losses(f"{name}_without")
    assert asked["eval_after"]["answers"] == 7
    assert [one["step"] for one in _samples(runs, name)] == [2] * 7 + [3] * 7
