"""Mixtures: how much of each source an epoch sees, and which rows of it are held out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from orchestrator.dataset import checked
from orchestrator.dataset.messages import Shape
from orchestrator.dataset.mixture import Part, allotted, epoch_rows
from orchestrator.dataset.prepare import TokenOptions, build
from orchestrator.dataset.samples import load_samples
from orchestrator.dataset.source import DataSource, DataSpec
from orchestrator.errors import UserError


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


def pairs(name: str, num: int) -> list[dict[str, object]]:
    return [{"prompt": f"{name} {i}", "completion": f"answer {i}"} for i in range(num)]


def talks(num: int) -> list[dict[str, object]]:
    turns = [("user", "hello"), ("assistant", "good day")]
    return [{"messages": [{"role": role, "content": f"{text} {i}"} for role, text in turns]} for i in range(num)]


def test_weights_are_times_an_epoch_and_shares_are_parts_of_it() -> None:
    assert epoch_rows([Part(rows=100, weight=2), Part(rows=50, weight=0.5)]) == (200, 25)
    # 30% of the rows come from the second one: 140 rows are the other 70%.
    assert epoch_rows([Part(rows=70, weight=2), Part(rows=9, share=0.3)]) == (140, 60)
    # By shares alone, as long as no row is seen twice: the second one ends first.
    assert epoch_rows([Part(rows=1000, share=0.75), Part(rows=100, share=0.25)]) == (300, 100)


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0.01, 20)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0.01, 0.19)), max_size=5),
)
def test_an_epoch_has_the_shares_asked_for(weighted: list[tuple[int, float]], shared: list[tuple[int, float]]) -> None:
    parts = [Part(rows=rows, weight=weight) for rows, weight in weighted]
    parts += [Part(rows=rows, share=share) for rows, share in shared]
    found = epoch_rows(parts)
    total = sum(found)
    for part, rows in zip(parts, found, strict=True):
        wanted = part.share * total if part.share else part.weight * part.rows
        assert abs(rows - wanted) <= 1 + part.share * len(parts) or rows == 1


@pytest.mark.parametrize("shares", [(0.5, 0.4), (0.6, 0.6)])
def test_shares_alone_make_a_whole(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="add up to"):
        epoch_rows([Part(rows=9, share=share) for share in shares])
    with pytest.raises(ValueError, match="leave nothing"):
        epoch_rows([Part(rows=9), Part(rows=9, share=1.0)])


@given(st.lists(st.integers(0, 200), min_size=1, max_size=8), st.integers(0, 500))
def test_what_is_cut_is_cut_in_proportion(counts: list[int], most: int) -> None:
    found = allotted(counts, most)
    assert sum(found) == (min(sum(counts), most) if most else sum(counts))
    for count, left in zip(counts, found, strict=True):
        assert 0 <= left <= count
        if most >= len(counts) and count:
            assert left >= 1
        if most:
            assert abs(left - count * most / max(sum(counts), most)) <= len(counts)


def test_each_source_has_its_shape_and_is_split_by_itself(tmp_path: Path) -> None:
    a = DataSource(path=write(tmp_path / "a.jsonl", pairs("a", 40)), eval_fraction=0.1, weight=2)
    b = DataSource(path=write(tmp_path / "b.jsonl", talks(20)), eval_fraction=0.1, max_rows=10, name="talk")
    samples = load_samples(DataSpec(sources=(a, b), is_mixture=True))
    assert [(p.name, len(p.train), len(p.eval), p.epoch_rows) for p in samples.parts] == [
        ("a.jsonl", 36, 4, 72),
        ("talk", 10, 2, 10),
    ]
    assert [p.train[0].is_plain for p in samples.parts] == [True, False]
    # One after the other, and each as it would be split alone.
    alone = load_samples(a)
    assert list(samples.train[:36]) == list(alone.train)
    assert list(samples.eval[:4]) == list(alone.eval)
    assert len(samples.train) == 46
    assert samples.train[-1] == samples.parts[1].train[9]
    assert alone.shape is Shape.prompt_completion


def test_a_source_whose_held_out_rows_are_too_long_is_not_evaluated(
    tmp_path: Path, make_tokenizer: Callable[..., PreTrainedTokenizerFast]
) -> None:
    long: list[dict[str, object]] = [{"prompt": "long " * 20, "completion": "x"}]
    held = [write(tmp_path / "a_eval.jsonl", pairs("a", 2)), write(tmp_path / "b_eval.jsonl", long)]
    sources = tuple(
        DataSource(path=write(tmp_path / f"{name}.jsonl", pairs(name, 3)), eval_path=path)
        for name, path in zip("ab", held, strict=True)
    )
    built = build(DataSpec(sources=sources, is_mixture=True), make_tokenizer(), TokenOptions(seq_len=32))
    assert [part.name for part in built.parts["train"]] == ["a.jsonl", "b.jsonl"]
    assert [(part.name, part.rows) for part in built.parts["eval"]] == [("a.jsonl", 2)]
    assert any(note.startswith("source b.jsonl: none of 1 rows") for note in built.notes)
    alone = DataSpec(sources=sources[1:], is_mixture=True)
    with pytest.raises(UserError, match="none of 1 rows has a token to learn"):
        build(alone, make_tokenizer(), TokenOptions(seq_len=32))


def test_reading_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "_ROWS_PER_BEAT", 5)
    monkeypatch.setattr(checked, "KEPT_CHARS", 1)
    beats: list[int] = []
    source = DataSource(path=write(tmp_path / "a.jsonl", pairs("a", 20)), eval_fraction=0.5)
    samples = load_samples(source, lambda: beats.append(1))
    assert len(beats) == 4
    assert len(list(samples.eval)) == 10
    assert len(beats) > 4  # the file is read once more


def test_held_out_rows_are_limited_over_all_sources(tmp_path: Path) -> None:
    sources = tuple(
        DataSource(path=write(tmp_path / f"{name}.jsonl", pairs(name, num)), eval_fraction=0.5)
        for name, num in (("a", 80), ("b", 20), ("c", 4))
    )
    samples = load_samples(DataSpec(sources=sources, is_mixture=True, max_eval_rows=13))
    assert [len(part.eval) for part in samples.parts] == [10, 2, 1]
    assert [len(part.train) for part in samples.parts] == [40, 10, 2]


def test_problems_of_all_sources_come_together(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    bad = write(tmp_path / "bad.jsonl", [{"prompt": "a", "completion": ""}])
    other = write(tmp_path / "other.jsonl", [{"text": "no shape"}])
    names = [
        DataSource(path=tmp_path / name, key=f"data.sources[{i}]") for i, name in enumerate(("x.jsonl", "y.jsonl"))
    ]
    with pytest.raises(UserError) as caught:
        load_samples(DataSpec(sources=tuple(names), is_mixture=True))
    assert [problem.where for problem in caught.value.problems] == [str(source.path) for source in names]
    assert "data.sources[1].path" in caught.value.problems[1].remedy
    with pytest.raises(UserError) as caught:
        load_samples(DataSpec(sources=tuple(DataSource(path=path) for path in (empty, bad, other)), is_mixture=True))
    found = [problem.where for problem in caught.value.problems]
    assert found == [str(empty), f"{bad}, line 1", f"{other}, line 1"]


def test_many_problems_of_one_source_hide_none_of_another(tmp_path: Path) -> None:
    many = write(tmp_path / "many.jsonl", [{"prompt": "a", "completion": ""}] * 50)
    one = write(tmp_path / "one.jsonl", [{"prompt": "a", "completion": ""}])
    with pytest.raises(UserError) as caught:
        load_samples(DataSpec(sources=(DataSource(path=many), DataSource(path=one)), is_mixture=True))
    assert len(caught.value.problems) == 12
    assert caught.value.problems[-2].found == "40 more problems not shown"
    assert caught.value.problems[-1].where == f"{one}, line 1"
