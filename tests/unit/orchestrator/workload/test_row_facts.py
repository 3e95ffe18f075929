"""Facts about lengths: against plain loops over the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.dataset.messages import Message, Sample
from orchestrator.dataset.numbers import answer_chars
from orchestrator.dataset.samples import load_samples
from orchestrator.dataset.source import DataSource, DataSpec
from orchestrator.workload.lengths import data_stats
from orchestrator.workload.row_counting import row_facts
from orchestrator.workload.row_facts import RowFacts

ROWS = st.lists(st.tuples(st.integers(2, 3000), st.floats(0, 1), st.integers(2, 9)), min_size=1, max_size=300)


def facts_of(rows: list[tuple[int, float, int]], seq_len: int) -> RowFacts:
    tokens = np.array([tokens for tokens, _, _ in rows])
    answers = np.array([int(tokens * part) for tokens, part, _ in rows])
    return row_facts(tokens, answers, np.array([turns for *_, turns in rows]), np.ones(len(rows)), seq_len)


@given(ROWS, st.integers(8, 4000))
def test_against_plain_loops(rows: list[tuple[int, float, int]], seq_len: int) -> None:
    facts = facts_of(rows, seq_len)
    lengths = sorted(tokens for tokens, _, _ in rows)
    assert sum(count for _, count in facts.bars) == len(rows)
    assert len(facts.bars) <= 12
    before = 0
    for end, count in facts.bars:
        assert count == sum(before < tokens <= end for tokens in lengths)
        before = end
    assert facts.p50 == lengths[-(-len(rows) // 2) - 1]
    assert facts.longest == lengths[-1]
    assert facts.cut.rows == sum(tokens > seq_len for tokens in lengths)
    lost = 0
    for tokens, part, turns in rows:
        over, answer = max(0, tokens - seq_len), int(tokens * part)
        lost += min(over, answer) if turns <= 3 else over * answer // tokens
    assert facts.cut.answer_tokens_lost == lost
    assert facts.shares == tuple(sorted(facts.shares))
    assert sum(facts.shares) / len(facts.shares) == pytest.approx(np.mean(lengths), abs=0.1)


def test_hundredths_have_the_mean_of_their_rows() -> None:
    facts = facts_of([(tokens, 0.5, 2) for tokens in range(2, 1002)], 4000)
    assert facts.shares == tuple(float(np.mean(range(2 + at, 12 + at))) for at in range(0, 1000, 10))
    assert facts.tighter is None  # above the 99th percentile there is no multiple of 64 that cuts a row


def test_a_cut_just_above_the_99th_percentile_is_looked_at() -> None:
    facts = facts_of([(100, 0.5, 2)] * 995 + [(900, 0.5, 2)] * 5, 1024)
    assert facts.tighter is not None
    assert (facts.tighter.seq_len, facts.tighter.rows) == (128, 5)
    assert facts.tighter.answer_tokens_lost == 5 * 450
    assert facts.tighter.emptied == 5
    assert facts_of([(100, 0.5, 2)] * 999, 1024).tighter is None


def test_rows_count_as_often_as_an_epoch_sees_them() -> None:
    tokens, weights = np.array([10, 100]), np.array([9.0, 1.0])
    facts = row_facts(tokens, tokens // 2, np.array([2, 2]), weights, 512)
    assert facts.shares == (10.0, 28.0)  # a fifth of the longer half is the long row


def _write(path: Path, num: int, words: int) -> None:
    row = '{"prompt": "a", "completion": "%s"}\n' % ("word " * words)
    path.write_text(row * num)


def test_the_lengths_of_a_mixture_are_those_of_an_epoch(tmp_path: Path) -> None:
    short, long = tmp_path / "short.jsonl", tmp_path / "long.jsonl"
    _write(short, 100, 10)
    _write(long, 100, 100)
    even = DataSpec(sources=(DataSource(path=short), DataSource(path=long)), is_mixture=True)
    mixed = DataSpec(sources=(DataSource(path=short, share=0.9), DataSource(path=long, weight=0.5)), is_mixture=True)
    plain, stats = data_stats(load_samples(even), None, 512), data_stats(load_samples(mixed), None, 512)
    assert (plain.rows, stats.rows) == (200, 500)
    assert stats.facts is not None
    assert [(part.name, part.rows, part.epoch_rows) for part in stats.facts.sources] == [
        ("short.jsonl", 100, 450),
        ("long.jsonl", 100, 50),
    ]
    a, b = (part.mean_tokens for part in stats.facts.sources)
    assert stats.mean_tokens == pytest.approx(0.9 * a + 0.1 * b)
    assert stats.total_tokens == pytest.approx(450 * a + 50 * b, abs=1)
    assert stats.quantiles.count(max(stats.quantiles)) == pytest.approx(0.1 * len(stats.quantiles), abs=1)
    assert plain.mean_tokens == pytest.approx((a + b) / 2)


def test_answers_are_what_assistants_say() -> None:
    turns = [("system", "abc"), ("user", "d"), ("assistant", "ef"), ("user", "g"), ("assistant", "hij")]
    messages = tuple(Message(role=role, content=text) for role, text in turns)
    assert answer_chars(Sample(path=Path("x"), line=1, messages=messages)) == 5
    assert answer_chars(Sample(path=Path("x"), line=1, messages=messages, num_prompt_messages=4)) == 3
