"""Metrics against values worked out by hand, and against the libraries they come from."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU, CHRF

from orchestrator.evaluation.checks import Checks
from orchestrator.evaluation.metrics import (
    METRICS,
    NAMES,
    Answer,
    chosen,
    exact_match,
    normalised,
    perplexity,
    score,
    score_each,
    token_f1,
)

WORDS = st.text(alphabet="ab cd.,'!", max_size=30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat, sat!", "cat sat"),
        ("It's a test.", "its test"),
        ("sys.argv", "sysargv"),
        ("another theme", "another theme"),
        ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u4f60\u597d \u4e16\u754c"),
        ("«Élan»", "élan"),
    ],
)
def test_normalised_as_squad_does(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("the cat", "A cat.", 1),
        ("cat", "cats", 0),
        ("", "", 1),
        ("the", "", 0),
        ("The", "the", 1),
        ("?", "!", 0),
    ],
)
def test_exact_match(prediction: str, reference: str, expected: float) -> None:
    assert exact_match(prediction, reference) == expected


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("cat sat", "cat sat down", 2 * (2 / 2) * (2 / 3) / (2 / 2 + 2 / 3)),
        ("b b b", "b b", 2 * (2 / 3) * 1 / (2 / 3 + 1)),  # a bag: the third b is one too many
        ("x", "y", 0),
        ("", "y", 0),
        ("", "", 1),
    ],
)
def test_token_f1(prediction: str, reference: str, expected: float) -> None:
    assert token_f1(prediction, reference) == pytest.approx(expected)


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_one_for_an_exact_match(one: str, other: str) -> None:
    assert token_f1(one, other) == token_f1(other, one)
    assert 0 <= token_f1(one, other) <= 1
    if normalised(one) and exact_match(one, other):
        assert token_f1(one, other) == 1


def test_rouge_by_hand() -> None:
    # Two of three words, one of two pairs, and the longest common subsequence of two.
    answer = Answer(prediction="the cat sat", reference="the cat ran")
    found = score([answer], chosen(["rouge1", "rouge2", "rougeL"]))
    assert found == {"rouge1": pytest.approx(2 / 3), "rouge2": pytest.approx(1 / 2), "rougeL": pytest.approx(2 / 3)}


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_rouge_is_the_librarys_for_ascii_text(pairs: list[tuple[str, str]]) -> None:
    names = ["rouge1", "rouge2", "rougeL"]
    library = rouge_scorer.RougeScorer(names)
    found = score([Answer(prediction=a, reference=b) for a, b in pairs], chosen(names))
    for name in names:
        theirs = [library.score(b, a)[name].fmeasure for a, b in pairs]
        assert found[name] == pytest.approx(sum(theirs) / len(theirs))


def test_rouge_sees_other_scripts() -> None:
    answer = Answer(prediction="корень числа", reference="корень числа")
    assert score([answer], chosen(["rouge1"])) == {"rouge1": 1.0}


def test_bleu_by_hand() -> None:
    # Four of five words match, then 3/4, 2/3, 1/2; as long as the reference, so no brevity penalty.
    answer = Answer(prediction="a b c d x", reference="a b c d e")
    expected = 100 * math.exp(sum(map(math.log, (4 / 5, 3 / 4, 2 / 3, 1 / 2))) / 4)
    assert score([answer], chosen(["bleu"]))["bleu"] == pytest.approx(expected)


def test_bleu_and_chrf_are_of_the_corpus() -> None:
    pairs = [("the cat sat on the mat", "the cat sat on a mat"), ("hello", "hello there, general")]
    answers = [Answer(prediction=a, reference=b) for a, b in pairs]
    found = score(answers, chosen(["bleu", "chrf"]))
    ours, references = [a for a, _ in pairs], [[b for _, b in pairs]]
    assert found["bleu"] == BLEU().corpus_score(ours, references).score
    assert found["chrf"] == CHRF().corpus_score(ours, references).score


def test_only_answers_that_come_with_what_is_needed_count() -> None:
    ruled = Checks(keywords=("stack",), must_match=(r"\d",))
    answers = [
        Answer(prediction="a stack of 3", checks=ruled),
        Answer(prediction="a stack", checks=ruled),
        Answer(prediction="yes", reference="yes"),
    ]
    found = score(answers, chosen(["auto"]))
    assert found["exact_match"] == 1  # of the only one with a reference
    assert found["keywords"] == 1
    assert found["rules"] == 0.5
    assert found["refusal_rate"] == 0
    assert "keywords" not in score(answers[2:], chosen(["auto"]))
    assert score([], chosen(["auto"])) == {}


def test_single_answers_have_no_corpus_metrics() -> None:
    found = score_each(Answer(prediction="yes", reference="yes"), METRICS)
    assert {"bleu", "chrf"}.isdisjoint(found)
    assert found["token_f1"] == 1


def test_names_are_found_in_any_case_and_kept_in_order() -> None:
    assert [metric.name for metric in chosen(["ROUGEL", "exact_match"])] == ["exact_match", "rougeL"]
    assert tuple(metric.name for metric in chosen(["auto"])) == NAMES


def test_perplexity() -> None:
    assert perplexity(0.0) == 1
    assert perplexity(math.log(40)) == pytest.approx(40)
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))
