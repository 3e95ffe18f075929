import pytest

from orchestrator.evaluation.checks import CheckError, Checks, checks_of
from orchestrator.evaluation.refusals import REFUSALS, is_refusal, read_patterns


@pytest.mark.parametrize(
    ("keyword", "answer", "found"),
    [
        ("in", "a string", False),
        ("in", "In it.", True),
        ("os.path", "see os.path.join", True),
        ("os.path", "see osxpath", False),
        ("C++", "written in C++.", True),
        ("не", "нет", False),
    ],
)
def test_keywords_are_whole_words_in_any_case(keyword: str, answer: str, found: bool) -> None:
    assert Checks(keywords=(keyword,)).holds(answer) is found


def test_rules_are_all_to_hold() -> None:
    checks = Checks(keywords=("list", "sorted"), must_match=(r"^Return",), must_not=(r"(?i)sorry",))
    assert checks.holds("Return a sorted list")
    assert not checks.holds("return a sorted list")
    assert not checks.holds("Return a sorted list, SORRY")
    assert not checks.holds("Return a list")
    assert checks.found_keywords("Return a list") == 0.5


def test_checks_of_a_row() -> None:
    assert checks_of({"keywords": "a, b", "must_match": r"\d", "must_not": ["x", "y"]}) == Checks(
        keywords=("a", "b"), must_match=(r"\d",), must_not=("x", "y")
    )
    assert not checks_of({"prompt": "x", "must_match": None})
    # A column of that name with another meaning must not stop a training.
    assert not checks_of({"keywords": {"topic": 3}})
    assert not checks_of({"keywords": 7})


@pytest.mark.parametrize("value", ["(", 3, [1], {"a": 1}])
def test_what_is_no_pattern_is_told(value: object) -> None:
    with pytest.raises(CheckError, match="must_not"):
        checks_of({"must_not": value})


@pytest.mark.parametrize(
    "answer",
    [
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, I cannot assist.",
        "Sorry, that is not something I do.",
        "As an AI language model, I do not have opinions.",
        "I cannot provide instructions for this.",
        "I won't write that.",
        "I am not able to answer this.",
        "I apologize, but no.",
        "That would be illegal.",
    ],
)
def test_refusals(answer: str) -> None:
    assert is_refusal(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Return the square root of the sample variance.",
        "The function raises an error if the lock cannot be acquired.",
        "You can't change a tuple; make a new one.",
        "It says sorry to the user when the file is missing.",
        "An AI is a program.",
    ],
)
def test_answers_are_no_refusals(answer: str) -> None:
    assert not is_refusal(answer)


def test_an_apology_at_the_end_of_an_answer_is_no_refusal() -> None:
    assert not is_refusal("word " * 60 + "I'm sorry if this was long.")


def test_users_phrases_are_added() -> None:
    more = read_patterns("# ours\n\nich kann .* nicht\n")
    assert more == ("ich kann .* nicht",)
    assert is_refusal("Ich kann das leider nicht beantworten.", more)
    assert not is_refusal("Ich kann das leider nicht beantworten.")


def test_users_phrases_may_have_flags_and_groups_of_their_own() -> None:
    more = read_patterns("(?i)ich kann nicht\n(?P<no>nein)\n(?P<no>(non|n[oó])) \\2\n")
    assert is_refusal("ICH KANN NICHT", more)
    assert is_refusal("No no", more)
    assert not is_refusal("Ich kann", more)


def test_every_phrase_says_where_it_is_from() -> None:
    assert all(refusal.source and refusal.reason for refusal in REFUSALS)
