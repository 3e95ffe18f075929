import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from orchestrator.dataset.chat import choose_format
from orchestrator.dataset.examples import IGNORED, make_example
from orchestrator.dataset.messages import Sample
from orchestrator.dataset.questions import held_out_questions, prompts_file, user_questions
from orchestrator.dataset.samples import DataSource, load_samples
from orchestrator.dataset.tokenise import tokenise
from orchestrator.errors import UserError
from orchestrator.evaluation.checks import Checks

NONE = Checks()
ROOT = Path(__file__).parents[4]


def _samples(tmp_path: Path, *rows: dict[str, object]) -> Sequence[Sample]:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_samples(DataSource(path=path)).train


def _chat(*turns: str, **more: object) -> dict[str, object]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)], **more}


def test_a_row_is_asked_up_to_its_last_answer(tmp_path: Path) -> None:
    samples = _samples(tmp_path, _chat("a", "b", "c", "d", keywords=["d"]), _chat("e", "f"))
    first, second = held_out_questions(samples, 9, Checks(must_not=("x",)))
    assert [message.content for message in first.sample.messages] == ["a", "b", "c"]
    assert (first.reference, first.text, first.name, first.is_own) == ("d", "c", "row 1", False)
    assert first.checks == Checks(keywords=("d",))  # its own, in place of those for all
    assert second.checks == Checks(must_not=("x",))


def test_rows_are_spread_over_all(tmp_path: Path) -> None:
    samples = _samples(tmp_path, *(_chat(f"q{at}", f"a{at}") for at in range(10)))
    assert [one.name for one in held_out_questions(samples, 4, NONE)] == ["row 1", "row 3", "row 6", "row 8"]
    assert held_out_questions(samples, 0, NONE) == ()
    assert len(held_out_questions(samples, 99, NONE)) == 10


@pytest.mark.parametrize("assistant_only", [True, False])
def test_the_tokens_of_a_question_are_how_its_row_begins(assistant_only: bool) -> None:
    answers = pytest.importorskip("orchestrator.train.answers")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "base")
    samples = load_samples(DataSource(path=ROOT / "examples" / "data" / "eval.jsonl")).train[:12]
    rows = tokenise(samples, tokenizer, seq_len=512, assistant_only=assistant_only).examples
    assert choose_format(tokenizer).template
    for row, question in zip(rows, held_out_questions(samples, 12, NONE), strict=True):
        tokens = answers.question_tokens(question, tokenizer)
        assert tuple(row.input_ids[: len(tokens)]) == tokens
        if assistant_only:
            assert (row.labels[: len(tokens)] == IGNORED).all()
            assert row.labels[len(tokens)] != IGNORED


def test_a_plain_row_is_asked_without_a_template(tmp_path: Path) -> None:
    answers = pytest.importorskip("orchestrator.train.answers")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "base")
    samples = _samples(tmp_path, {"prompt": "The sum of", "completion": " two numbers."})
    (question,) = held_out_questions(samples, 1, NONE)
    (row,) = tokenise(samples, tokenizer, seq_len=64).examples
    tokens = answers.question_tokens(question, tokenizer)
    assert tuple(row.input_ids[: len(tokens)]) == tokens
    assert (row.labels[: len(tokens)] == IGNORED).all()


def test_stops_are_learned_from_the_rows() -> None:
    answers = pytest.importorskip("orchestrator.train.answers")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "base")
    samples = load_samples(DataSource(path=ROOT / "examples" / "data" / "eval.jsonl")).train[:4]
    rows = tokenise(samples, tokenizer, seq_len=512).examples
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert set(answers.stop_tokens(tokenizer, None, rows, 512)) == {tokenizer.eos_token_id, end}
    assert answers.stop_tokens(tokenizer, None, (), 512) == (tokenizer.eos_token_id,)


def test_stops_are_learned_from_rows_of_every_source() -> None:
    answers = pytest.importorskip("orchestrator.train.answers")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "examples" / "base")
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    rows = [make_example([40, 41], [40, 41])] * 40 + [make_example([40, end], [40, end])] * 10
    assert end in answers.stop_tokens(tokenizer, None, rows, 512)


def test_line_breaks_of_other_alphabets_cut_no_prompt(tmp_path: Path) -> None:
    lines = tmp_path / "p.txt"
    lines.write_bytes("one\u2028two\r\nthree\u0085four\n".encode())
    assert [one.text for one in user_questions((str(lines),), NONE)] == ["one\u2028two", "three\u0085four"]
    rows = tmp_path / "p.jsonl"
    rows.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert [one.text for one in user_questions((str(rows),), NONE)] == ["a\u2028b"]


def test_prompts_are_texts_or_one_file(tmp_path: Path) -> None:
    assert prompts_file(("Say hello.txt please",)) is None
    assert prompts_file(("a.txt", "b.txt")) is None
    assert prompts_file(("Hello",)) is None
    assert prompts_file(("my/prompts.JSONL",)) == "my/prompts.JSONL"
    assert prompts_file(("/home/a b/p.jsonl",)) == "/home/a b/p.jsonl"
    lines = tmp_path / "p.txt"
    lines.write_text("\ufeffone\n\n two \n", encoding="utf-8")
    assert [one.text for one in user_questions((str(lines),), NONE)] == ["one", "two"]
    assert [one.name for one in user_questions(("a", "b"), NONE)] == ["prompt 1", "prompt 2"]
    array = tmp_path / "p.json"
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "q"}]
    answer = {"role": "assistant", "content": "r"}
    array.write_text(json.dumps(["x", {"prompt": "y", "reference": "z"}, {"messages": [*turns, answer]}]))
    found = user_questions((str(array),), NONE, is_plain=True)
    assert [(one.text, one.reference, one.sample.is_plain) for one in found] == [
        ("x", None, True),
        ("y", "z", True),
        ("q", "r", False),
    ]


def test_all_that_is_wrong_with_a_file_of_prompts_is_told(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "must_match": "("}\nnonsense\n{"text": 1}\n{"prompt": " "}\n7\n{"prompt": "ok"}\n')
    with pytest.raises(UserError) as error:
        user_questions((str(path),), NONE)
    assert [problem.where for problem in error.value.problems] == [f"{path}, line {at}" for at in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(("text", "found"), [(None, "there is no file"), ("\n \n", "there is no prompt in it")])
def test_a_file_of_prompts_that_is_none(tmp_path: Path, text: str | None, found: str) -> None:
    path = tmp_path / "p.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=found):
        user_questions((str(path),), NONE)
