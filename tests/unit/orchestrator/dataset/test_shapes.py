"""Rows -> samples: the four shapes, and what a row that has none is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.dataset.errors import DataError, DataErrors
from orchestrator.dataset.messages import Shape
from orchestrator.dataset.rows import Row
from orchestrator.dataset.samples import DataSource, load_samples
from orchestrator.dataset.shapes import parse, recognise, to_messages, to_sample

PATH = Path("rows.jsonl")
CHAT = {"messages": [{"role": "user", "content": "où?"}, {"role": "assistant", "content": "là"}]}
ALPACA = {"instruction": "Add", "input": "1 2", "output": "3"}
PAIR = {"prompt": "a", "completion": "b"}


def row(fields: dict[str, object], line: int = 1) -> Row:
    return Row(path=PATH, line=line, fields=fields)


def turns(fields: dict[str, object]) -> list[tuple[str, str]]:
    one = row(fields)
    return [(m.role, m.content) for m in to_messages(one, recognise([one]))]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (CHAT, [("user", "où?"), ("assistant", "là")]),
        ({"conversations": CHAT["messages"]}, [("user", "où?"), ("assistant", "là")]),
        (ALPACA, [("user", "Add\n\n1 2"), ("assistant", "3")]),
        ({"instruction": "Hi", "input": None, "output": "Ho"}, [("user", "Hi"), ("assistant", "Ho")]),
        (
            {"instruction": "Hi", "input": "", "output": "Ho", "system": "S"},
            [("system", "S"), ("user", "Hi"), ("assistant", "Ho")],
        ),
        (PAIR, [("user", "a"), ("assistant", "b")]),
        ({"prompt": [{"role": "user", "content": "a"}], "completion": "b"}, [("user", "a"), ("assistant", "b")]),
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            [("user", "a"), ("assistant", "b")],
        ),
        (
            {"messages": [{"from": "system", "value": "s"}, {"from": "GPT", "value": "b"}]},
            [("system", "s"), ("assistant", "b")],
        ),
        (
            {
                "messages": [
                    {"role": "developer", "content": [{"type": "text", "text": "x"}, "y"]},
                    {"role": "assistant", "content": "b", "name": None},
                ]
            },
            [("system", "xy"), ("assistant", "b")],
        ),
    ],
)
def test_shapes_are_recognised(fields: dict[str, object], expected: list[tuple[str, str]]) -> None:
    assert turns(fields) == expected


def test_tool_calls_and_prompt_messages_are_kept() -> None:
    call = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    fields: dict[str, object] = {
        "tools": [{"name": "add"}],
        "messages": [
            {"role": "user", "content": "1+1"},
            {"role": "assistant", "content": None, "tool_calls": call},
            {"role": "tool", "name": "add", "content": "2"},
        ],
    }
    sample = to_sample(row(fields), Shape.messages)
    assert sample.tools == ({"name": "add"},)
    assert sample.messages[1].as_dict() == {"role": "assistant", "content": "", "tool_calls": call}
    assert to_sample(row(PAIR), Shape.prompt_completion).is_plain
    assert to_sample(row(ALPACA), Shape.alpaca).num_prompt_messages == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"text": "hi"}, "unknown shape: keys found: text"),
        ({"prompt": "a", "response": "b"}, "nearest shape prompt_completion, which also needs completion"),
        ({"instruction": "a", "answer": "b"}, "nearest shape alpaca, which also needs output"),
        ({}, "keys found: none"),
        ({"messages": []}, "empty list"),
        ({"messages": "hello"}, "a str, not a list of messages"),
        ({"messages": ["hello"]}, "not a message"),
        ({"messages": [{"content": "x"}]}, "has no role; its keys: content"),
        ({"messages": [{"role": "human", "content": "x"}]}, "role 'human'"),
        ({"messages": [{"role": "user", "content": None}]}, "content is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "part of type image"),
        ({"messages": [{"role": "user", "content": 3}]}, "is a int, not text"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no assistant turn with content; roles found: user"),
        ({"messages": [{"role": "assistant", "content": " "}]}, "no assistant turn with content"),
        ({"conversations": [{"from": "alien", "value": "x"}]}, "is from 'alien'"),
        ({"prompt": "a", "completion": " \n"}, "the completion is empty"),
        ({"instruction": "a", "output": ""}, "the output is empty"),
        ({"prompt": "a\ud800", "completion": "b"}, "invalid character at position 2"),
    ],
)
def test_unusable_rows(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(DataError) as caught:
        turns(fields)
    assert caught.value.line == 1
    assert problem in caught.value.problem
    assert caught.value.remedy


def test_rows_of_another_shape_are_reported_together() -> None:
    rows = [row(CHAT, 1), row(ALPACA, 2), row(CHAT, 3), row({"text": "x"}, 4)]
    with pytest.raises(DataErrors) as caught:
        parse(rows)
    first, second = caught.value.errors
    assert (first.line, second.line) == (2, 4)
    assert "messages missing, keys found: instruction, input, output; it looks like alpaca" in first.problem
    assert "data.shape=alpaca" in first.remedy
    assert "keys found: text" in second.problem


def test_a_set_shape_wins() -> None:
    assert parse([row({**CHAT, **PAIR})]).shape is Shape.messages
    assert parse([row({**CHAT, **PAIR})], Shape.prompt_completion).samples[0].is_plain


def test_problems_of_both_files_come_together(tmp_path: Path) -> None:
    train, evaluation = tmp_path / "train.jsonl", tmp_path / "eval.jsonl"
    train.write_text('{"prompt": "a", "completion": ""}\n', encoding="utf-8")
    evaluation.write_text('{\n{"text": 1}\n', encoding="utf-8")
    with pytest.raises(DataErrors) as caught:
        load_samples(DataSource(path=tmp_path))
    assert [error.path for error in caught.value.errors] == [train, evaluation, evaluation]


def test_an_eval_file_that_repeats_training_rows_is_noted(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(PAIR) + "\n" + json.dumps({**PAIR, "prompt": "c"}))
    (tmp_path / "eval.jsonl").write_text(json.dumps(PAIR))
    samples = load_samples(DataSource(path=tmp_path, eval_fraction=0.5, max_rows=1))
    assert (len(samples.train), len(samples.eval)) == (1, 1)
    assert samples.notes == ("1 of 1 eval rows are also in the training data",)
