"""Patterns that would run for years, and what is no pattern."""

import signal
import threading

import pytest

from orchestrator.evaluation import bounded
from orchestrator.evaluation.checks import Checks, pattern_problem
from orchestrator.evaluation.metrics import Answer, chosen, score
from orchestrator.evaluation.refusals import is_refusal

ENDLESS = r"(a+)+$"
TEXT = "a" * 60 + "b"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "SEARCH_SECONDS", 0.05)


def test_a_search_is_given_up() -> None:
    with pytest.raises(bounded.TooLongError):
        bounded.found(ENDLESS, TEXT)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert bounded.found(ENDLESS, "aaa")


def test_a_rule_that_takes_too_long_counts_as_broken() -> None:
    assert not Checks(must_match=(ENDLESS,)).holds(TEXT)
    assert not Checks(must_not=(ENDLESS,)).holds(TEXT)
    assert not is_refusal(TEXT, (ENDLESS,))
    assert is_refusal("no way", ("^no",))


def test_the_beginning_of_a_long_answer_is_searched() -> None:
    assert bounded.found("x", "a" * 19_999 + "x")
    assert not bounded.found("x", "a" * 20_000 + "x")


def test_handlers_stay_as_they_were_and_threads_go_without() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    assert bounded.found("a", "a")
    assert signal.getsignal(signal.SIGVTALRM) == before
    hits: list[bool] = []
    thread = threading.Thread(target=lambda: hits.append(bounded.found("a", "a")))
    thread.start()
    thread.join()
    assert hits == [True]


def test_there_are_signs_of_life_while_answers_are_scored() -> None:
    beats: list[int] = []
    answers = [Answer(prediction="a", checks=Checks(must_match=("a",)))] * 3
    assert score(answers, chosen(["rules"]), (), lambda: beats.append(1)) == {"rules": 1}
    assert len(beats) == 3


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "unterminated"),
        ("a{99999999999999999999}", "too large"),
        ("(?au)x", "incompatible"),
        ("(" * 5000 + ")" * 5000, "nested too deeply"),
    ],
)
def test_what_is_no_pattern(pattern: str, why: str) -> None:
    assert why in pattern_problem(pattern)
