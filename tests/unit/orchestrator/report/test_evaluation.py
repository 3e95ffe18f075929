from typing import Any

from orchestrator.report.evaluation import evaluation_lines

BEFORE: dict[str, Any] = {
    "loss": 3.0,
    "perplexity": 20.0,
    "token_f1": 0.25,
    "bleu": 4.0,
    "answers": 7,
    "answer_tokens": 9.5,
}
AFTER: dict[str, Any] = {**BEFORE, "perplexity": 5.0, "token_f1": 0.375, "bleu": 12.5}


def test_before_and_after_stand_side_by_side() -> None:
    lines = evaluation_lines({"eval_before": BEFORE, "eval_after": {**AFTER, "prompts": {"rules": 0.5, "answers": 2}}})
    cells = [line.split() for line in lines if line]
    assert cells[0] == ["held-out", "rows", "(7", "answers)", "before", "after", "change"]
    assert ["perplexity", "20.00", "5.00", "-75.0%"] in cells
    assert ["token", "F1", "25.0%", "37.5%", "+12.5", "points"] in cells
    assert ["BLEU", "4.0", "12.5", "+8.5"] in cells
    assert ["your", "prompts", "(2", "answers)", "before", "after", "change"] in cells
    assert ["rules", "kept", "-", "50.0%"] in cells


def test_a_run_without_either_says_nothing() -> None:
    assert evaluation_lines({}) == ()
    assert evaluation_lines({"eval_before": None, "eval_after": None}) == ()


def test_a_perplexity_that_is_no_number_is_no_trouble() -> None:
    lines = evaluation_lines({"eval_before": {**BEFORE, "perplexity": None}, "eval_after": AFTER})
    assert ["perplexity", "-", "5.00"] in [line.split() for line in lines]


def test_the_harness_has_its_own_lines() -> None:
    found: dict[str, Any] = {
        "tasks": ["t"],
        "before": {"t": {"acc": 0.25}},
        "after": {"t": {"acc": 0.5, "acc_norm": 0.75}},
    }
    cells = [line.split() for line in evaluation_lines({"lm_eval": found})]
    assert ["t,", "acc", "0.25", "0.5", "+0.25"] in cells
    assert ["t,", "acc_norm", "-", "0.75"] in cells


def test_what_the_harness_could_not_measure_is_no_trouble() -> None:
    found = {"before": {"t": {"acc": None, "f1": 0.5}}, "after": {"t": {"acc": 0.5, "f1": None}}}
    cells = [line.split() for line in evaluation_lines({"lm_eval": found})]
    assert ["t,", "acc", "-", "0.5"] in cells
    assert ["t,", "f1", "0.5", "-"] in cells
