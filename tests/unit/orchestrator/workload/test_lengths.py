"""Row lengths: exact where rows are counted, on the safe side where they are not, and quick."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.dataset.messages import Message, Sample, Shape
from orchestrator.dataset.samples import Samples
from orchestrator.errors import UserError
from orchestrator.workload.lengths import MAX_COUNTED_CHARS, MAX_COUNTED_ROWS, data_stats

PER_TURN = 5


def _samples(texts: list[str]) -> Samples:
    train = tuple(
        Sample(path=Path("r"), line=i, messages=(Message(role="assistant", content=text),))
        for i, text in enumerate(texts, start=1)
    )
    return Samples(train=train, eval=(), shape=Shape.messages, files=())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One token a word."""
    core = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_few_rows_are_counted_exactly(folder: Path) -> None:
    # An average ratio would give the dense row 15 tokens and the sparse one 23.
    stats = data_stats(_samples(["a " * 20, "abcdefghijklmnopqrst " * 3]), folder)
    assert (stats.max_tokens, stats.total_tokens) == (20 + PER_TURN, 23 + 2 * PER_TURN)
    assert stats.source == "counted on 2 of 2 rows"


def test_rows_that_are_not_counted_are_allowed_more(folder: Path) -> None:
    texts = ["a " * 10, "abc " * 10] * MAX_COUNTED_ROWS
    texts[1] = "abc " * 100  # not counted, and the longest
    stats = data_stats(_samples(texts), folder)
    assert stats.source == f"counted on {MAX_COUNTED_ROWS} of {len(texts)} rows"
    # All rows counted have a token per two characters, which is more than enough for this one.
    assert stats.max_tokens >= 100 + PER_TURN
    spread = data_stats(_samples([*(["a " * 10, "abc " * 10, "abc " * 10] * MAX_COUNTED_ROWS)]), folder)
    assert 10 + PER_TURN <= spread.max_tokens <= 1.5 * 20 + PER_TURN


def test_of_a_huge_row_only_the_start_is_counted(folder: Path) -> None:
    stats = data_stats(_samples(["a " * 5 * MAX_COUNTED_CHARS]), folder)
    assert stats.max_tokens == 5 * MAX_COUNTED_CHARS + PER_TURN


def test_calls_and_tools_count(folder: Path) -> None:
    calls = {"tool_calls": [{"name": "f"}], "reasoning_content": "why not"}
    turn = Message(role="assistant", content="a", extra=calls)
    row = Sample(path=Path("r"), line=1, messages=(turn,), tools=({"type": "\ud800"},))
    stats = data_stats(Samples(train=(row,), eval=(), shape=Shape.messages, files=()), folder)
    assert stats.max_tokens == len(["a", '[{"name":', '"f"}]', "why", "not", '{"type":', '"?"}']) + PER_TURN


def test_without_a_tokenizer_lengths_are_guessed(tmp_path: Path) -> None:
    stats = data_stats(_samples(["abcdefghij", ""]), tmp_path)
    assert (stats.max_tokens, stats.total_tokens) == (3 + PER_TURN, 3 + 2 * PER_TURN)
    assert stats.source.startswith("guessed")
    assert data_stats(_samples(["abcdefghij", ""]), None) == stats


def test_a_damaged_tokenizer_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer"):
        data_stats(_samples(["a"]), tmp_path)
