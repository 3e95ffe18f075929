"""Rows that are there twice: found whatever their white space, told with places, left out on request."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dataset.duplicates import firsts, seen_in
from orchestrator.dataset.numbers import text_key
from orchestrator.dataset.samples import load_samples
from orchestrator.dataset.source import DataSource, DataSpec
from orchestrator.errors import UserError


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": text, "completion": "yes"}) + "\n" for text in texts))
    return path


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_against_plain_loops(keys: list[int], others: list[int]) -> None:
    assert firsts(array("Q", keys)).tolist() == [keys.index(key) for key in keys]
    assert seen_in(array("Q", keys), array("Q", others)).tolist() == [
        others.index(key) if key in others else -1 for key in keys
    ]


def test_white_space_does_not_count_but_roles_and_words_do(tmp_path: Path) -> None:
    rows = load_samples(DataSource(path=write(tmp_path / "a.jsonl", ["a b", " a\n b ", "ab", "A b"]))).train
    keys = [text_key(row) for row in rows]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_repeated_rows_are_told_with_their_places(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["one", "two", "one ", "three", "two", "one"])
    samples = load_samples(DataSource(path=path))
    found = samples.duplicates
    assert found is not None
    assert (found.repeated, found.leaked, found.dropped) == (3, 0, 0)
    assert found.repeated_examples[0] == (f"{path}, line 1", f"{path}, line 3")
    assert samples.notes == ()  # the plan tells it, with the places
    assert len(samples.train) == 6


def test_left_out_on_request_the_first_one_stays(tmp_path: Path) -> None:
    a = DataSource(path=write(tmp_path / "a.jsonl", ["one", "two", "one "]))
    b = DataSource(path=write(tmp_path / "b.jsonl", ["two", "three", "three"]))
    samples = load_samples(DataSpec(sources=(a, b), is_mixture=True, deduplicate=True))
    assert [(row.path.name, row.line) for row in samples.train] == [("a.jsonl", 1), ("a.jsonl", 2), ("b.jsonl", 2)]
    assert samples.duplicates is not None
    assert (samples.duplicates.repeated, samples.duplicates.dropped) == (3, 3)


def test_training_rows_that_are_held_out_are_a_leak(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", ["one", "two", "three", "two"])
    held = write(tmp_path / "eval.jsonl", ["two", "four"])
    found = load_samples(DataSource(path=tmp_path))
    assert found.duplicates is not None
    assert (found.duplicates.leaked, found.duplicates.leaked_eval) == (2, 1)
    assert found.duplicates.leaked_examples[0] == (f"{train}, line 2", f"{held}, line 1")
    assert "1 of 2 eval rows are also in the training data" in found.notes
    spec = DataSpec(sources=(DataSource(path=tmp_path),), deduplicate=True)
    clean = load_samples(spec)
    assert [row.line for row in clean.train] == [1, 3]
    assert [row.line for row in clean.eval] == [1, 2]
    assert clean.duplicates is not None
    assert clean.duplicates.dropped == 2


def test_a_split_of_repeated_rows_leaks_unless_they_are_left_out(tmp_path: Path) -> None:
    source = DataSource(path=write(tmp_path / "a.jsonl", [f"{i % 10}" for i in range(100)]), eval_fraction=0.2)
    found = load_samples(source).duplicates
    assert found is not None
    assert found.leaked_eval == 20
    clean = load_samples(DataSpec(sources=(source,), deduplicate=True))
    assert (len(clean.train), len(clean.eval)) == (8, 2)
    assert not {row.messages[0].content for row in clean.train} & {row.messages[0].content for row in clean.eval}


def test_rows_that_no_source_uses_leave_nothing_out(tmp_path: Path) -> None:
    a = DataSource(path=write(tmp_path / "a.jsonl", ["one", "one", "two", "three", "three"]), max_rows=2)
    b = DataSource(path=write(tmp_path / "b.jsonl", ["three", "two", "four"]))
    samples = load_samples(DataSpec(sources=(a, b), is_mixture=True, deduplicate=True))
    assert [(row.path.name, row.line) for row in samples.train] == [
        ("a.jsonl", 1),
        ("a.jsonl", 3),
        ("b.jsonl", 1),  # of the other source no row is used that says the same
        ("b.jsonl", 3),
    ]
    assert samples.duplicates is not None
    assert (samples.duplicates.repeated, samples.duplicates.dropped) == (2, 2)


def test_a_source_of_nothing_new_is_refused(tmp_path: Path) -> None:
    sources = tuple(DataSource(path=write(tmp_path / f"{name}.jsonl", ["one", "two"])) for name in "ab")
    with pytest.raises(UserError, match=r"b\.jsonl: each of its rows is there already"):
        load_samples(DataSpec(sources=sources, is_mixture=True, deduplicate=True))
