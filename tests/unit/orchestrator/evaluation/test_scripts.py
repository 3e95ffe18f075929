"""Scripts without spaces, marks, and what stays as it was."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from orchestrator.evaluation.checks import Checks
from orchestrator.evaluation.metrics import Answer, chosen, score, token_f1
from orchestrator.evaluation.scripts import bleu_tokenizer, pieces, words

LATIN = st.text(st.characters(max_codepoint=0x24F), max_size=40)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u6211\u7231Python 3\u3002", ["\u6211", "\u7231", "Python", "3"]),  # Chinese and Latin side by side
        ("\u30ab\u3099\u30fc\u306e", ["\u30ab\u3099", "\u30fc", "\u306e"]),  # kana with a mark of its own
        ("\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48", ["\u0e17\u0e35\u0e48", "\u0e19\u0e35\u0e48"]),  # Thai
        ("\u0939\u093f\u0928\u094d\u0926\u0940 \u0939\u0948", ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u0948"]),
        ("\u0ba4\u0bae\u0bbf\u0bb4\u0bcd", ["\u0ba4\u0bae\u0bbf\u0bb4\u0bcd"]),  # Tamil
        ("\u0d9a\u0dca\u200d\u0dbb", ["\u0d9a\u0dca\u200d\u0dbb"]),  # Sinhala: joined letters are one word
        ("cafe\u0301s a_b", ["cafe\u0301s", "a", "b"]),
        ("\ud55c\uad6d\uc5b4 \ub9d0", ["\ud55c\uad6d\uc5b4", "\ub9d0"]),  # Korean has spaces
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(LATIN)
def test_latin_text_is_cut_as_ever(text: str) -> None:
    assert words(text) == re.findall(r"[^\W_]+", text)
    assert pieces(text) == text.split()


def test_f1_and_rouge_count_what_is_shared() -> None:
    one, other = "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002", "\u4eca\u5929\u5929\u6c14\u4e0d\u597d"
    assert token_f1(one, other) == pytest.approx(5 / 6)
    found = score([Answer(prediction=one, reference=other)], chosen(["rouge1", "rouge2"]))
    assert found == {"rouge1": pytest.approx(5 / 6), "rouge2": pytest.approx(3 / 5)}
    hindi = ("\u0915\u0940", "\u0915\u093e")  # two words that share their letter alone
    assert token_f1(*hindi) == 0
    assert score([Answer(prediction=hindi[0], reference=hindi[1])], chosen(["rouge1"])) == {"rouge1": 0}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hello, world", "13a"),
        ("\u00e9l\u00e8ve d\u00e9j\u00e0 vu", "13a"),
        ("use the word \u4f60\u597d twice", "13a"),
        ("\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002 OK", "zh"),
        ("\u79c1\u306f\u5b66\u751f\u3067\u3059", "char"),
        ("\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "char"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "13a"),
    ],
)
def test_bleu_takes_the_tokens_of_the_references(text: str, name: str) -> None:
    assert bleu_tokenizer([text]) == name
    made = score([Answer(prediction=f"{text} x", reference=text)], chosen(["bleu"]))["bleu"]
    assert made == BLEU(tokenize=name).corpus_score([f"{text} x"], [[text]]).score


@pytest.mark.parametrize(
    ("keyword", "answer", "found"),
    [
        ("\u4e16\u754c", "\u4f60\u597d\u4e16\u754c\u3002", True),
        ("Python", "\u7528Python\u5199", True),
        ("Python", "\u7528CPython\u5199", False),
        ("\u0928\u092e", "\u0928\u092e\u0940", False),  # the mark makes it another word
        ("\u0928\u092e\u0940", "\u0928\u092e\u0940 \u0939\u0948", True),
        ("\u092e\u0940", "\u0928\u092e\u0940", False),
        ("\u0926\u0940", "\u0928\u094d\u0926\u0940", False),
        ("\u0928\u092e\u0940", "\u0928\u092e\u0940\u092f", False),
        ("\u0e17\u0e35", "\u0e17\u0e35\u0e48", False),
    ],
)
def test_keywords_of_any_script(keyword: str, answer: str, found: bool) -> None:
    assert Checks(keywords=(keyword,)).holds(answer) is found
