"""Sources of a mixture in a run: kept with the token rows, named when they change, told in the summary."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from orchestrator.compose import shipped_folder
from orchestrator.config import DataConfig, ModelConfig, RunConfig, SourceConfig
from orchestrator.data_inputs import data_source
from orchestrator.dataset.cache import Cached, PartRows
from orchestrator.dataset.prepare import TokenOptions, prepare
from orchestrator.train import identity
from orchestrator.train.evaluate import EvalResult
from orchestrator.train.evaluating import source_losses_of
from orchestrator.train.identity import resume_keys
from orchestrator.train.rows import lengths_of
from orchestrator.train.run_files import append_json_line
from orchestrator.train.sources import order_of, seen_of, source_losses, summary_of, told
from orchestrator.train.summary import _earlier_loss

BASE = shipped_folder("examples") / "base"
Make = Callable[..., Cached]


def config_of(folder: Path, *weights: float) -> RunConfig:
    sources = tuple(
        SourceConfig(path=str(folder / f"{name}.jsonl"), name=name, weight=weight)
        for name, weight in zip("ab", weights, strict=True)
    )
    return RunConfig(model=ModelConfig(path=str(BASE)), data=DataConfig(path="", sources=sources, eval_fraction=0.2))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, said: list[str]) -> Make:
    for name, num in (("a", 20), ("b", 10)):
        rows = [json.dumps({"prompt": f"{name} {i}", "completion": f"the answer {i}"}) for i in range(num)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(BASE)

    def build(config: RunConfig, *, packing: bool = False) -> Cached:
        options = TokenOptions(seq_len=64, packing=packing)
        return prepare(data_source(config.data, 0), tokenizer, options, tmp_path / "data", said.append)

    return build


def test_parts_are_kept_and_weights_need_no_new_rows(tmp_path: Path, make: Make, said: list[str]) -> None:
    config = config_of(tmp_path, 1, 1)
    first = make(config)
    assert [(part.name, part.rows) for part in first.parts["train"]] == [("a", 16), ("b", 8)]
    assert [(part.name, part.rows) for part in first.parts["eval"]] == [("a", 4), ("b", 2)]
    assert sum(part.tokens for part in first.parts["train"]) == first.stats["train"].tokens
    other = config_of(tmp_path, 2, 0.5)
    second = make(other)
    assert (second.is_rebuilt, second.parts, said) == (False, first.parts, [])
    assert seen_of(config, first.parts["train"]) == ((16, 16), (8, 8))
    assert seen_of(other, first.parts["train"]) == ((16, 32), (8, 4))
    # What a checkpoint is compared with says so: the order of the rows is another.
    assert order_of(config, first.parts["train"]) != order_of(other, first.parts["train"])
    assert told(other, first.parts)[1].endswith("an epoch sees 4 rows of 8 (0.50 times); 2 held out")


def test_a_changed_source_is_named(tmp_path: Path, make: Make, said: list[str]) -> None:
    config = config_of(tmp_path, 1, 1)
    make(config)
    path = tmp_path / "b.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("answer 3", "answer three"), encoding="utf-8")
    assert make(config).is_rebuilt
    assert said == [f"the token cache in {tmp_path / 'data'} is made again: {path} has changed"]


def test_blocks_belong_to_one_source(tmp_path: Path, make: Make) -> None:
    cached = make(config_of(tmp_path, 1, 1), packing=True)
    a, b = cached.parts["train"]
    assert (a.documents, b.documents) == (16, 8)
    rows = cached.rows["train"]
    assert len(rows) == a.rows + b.rows < 24
    assert sum(len(row.seq_lengths) for row in rows[: a.rows]) == 16


def test_held_out_losses_by_source(tmp_path: Path, make: Make) -> None:
    config = config_of(tmp_path, 1, 1)
    cached = make(config)
    held = cached.rows["eval"]
    tokens = [row.num_label_tokens for row in held]
    losses = tuple(float(count * (1 if at < 4 else 3)) for at, count in enumerate(tokens))
    after = EvalResult(
        loss=sum(losses) / sum(tokens), tokens=sum(tokens), row_losses=losses, row_tokens=tuple(tokens), seconds=1
    )
    found = summary_of(config, cached.parts, {}, source_losses(cached.parts["eval"], after))
    assert found is not None
    assert [(one["eval_rows"], one["eval_loss_before"], one["eval_loss_after"]) for one in found] == [
        (4, None, pytest.approx(1.0)),
        (2, None, pytest.approx(3.0)),
    ]
    parts = zip(found, (sum(tokens[:4]), sum(tokens[4:])), strict=True)
    assert sum(one["eval_loss_after"] * count for one, count in parts) / sum(tokens) == pytest.approx(after.loss)


def test_the_loss_of_a_source_is_of_the_tokens_that_were_counted() -> None:
    held = [PartRows(name="a", rows=2, documents=2, tokens=99, label_tokens=99)]
    held += [PartRows(name="b", rows=1, documents=1, tokens=9, label_tokens=9)]
    result = EvalResult(loss=1.0, tokens=7, row_losses=(4.0, 6.0, 0.0), row_tokens=(3, 2, 0), seconds=1.0)
    assert source_losses(held, result) == {"a": 2.0, "b": None}


def test_losses_of_an_earlier_attempt_are_read_back(tmp_path: Path) -> None:
    append_json_line(tmp_path / "metrics.jsonl", {"step": 0, "eval_loss": math.nan, "source_losses": {"a": 2.5}})
    assert source_losses_of(None, tmp_path, 0) == {"a": 2.5}
    assert source_losses_of({"eval_loss": 1.0}, tmp_path, 0) == {}
    assert _earlier_loss(tmp_path) is None  # it was NaN, which stands there as null


def test_what_takes_long_for_millions_of_rows(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, 1, 1)
    rows = make(config).rows["train"]
    assert lengths_of(rows).tolist() == [len(row) for row in rows] == lengths_of(list(rows)).tolist()
    monkeypatch.setattr(identity, "_ROWS_PER_BEAT", 4)
    beats: list[int] = []
    assert resume_keys(config, rows, beat=lambda: beats.append(1)) == resume_keys(config, list(rows))
    assert len(beats) == 6  # of 24 rows


def test_a_single_file_has_no_parts(tmp_path: Path, make: Make) -> None:
    config = config_of(tmp_path, 1, 1)
    alone = replace(config, data=DataConfig(path=str(tmp_path / "a.jsonl")))
    cached = make(alone)
    assert (cached.parts, seen_of(alone, ()), summary_of(alone, {}, {}, {})) == ({}, (), None)
