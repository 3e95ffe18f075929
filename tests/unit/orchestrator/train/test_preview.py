"""The preview shows the rows that a run makes, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from orchestrator.compose import shipped_folder
from orchestrator.config import DataConfig, ModelConfig, RunConfig, SourceConfig
from orchestrator.config_codec import dump_config
from orchestrator.data_inputs import data_source
from orchestrator.dataset.prepare import TokenOptions, build
from orchestrator.train.preview import answer, texts_of

BASE = shipped_folder("examples") / "base"
ROWS = shipped_folder("examples") / "data" / "train.jsonl"
IGNORED = -100


def config_of(**data: Any) -> RunConfig:
    given = {"path": str(ROWS), "eval_fraction": 0.1} | data
    return RunConfig(model=ModelConfig(path=str(BASE)), data=DataConfig(**given))


def asked(config: RunConfig, seq_len: int, rows: int) -> dict[str, Any]:
    found = answer({"config": dump_config(config), "seq_len": seq_len, "rows": rows})
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.mark.parametrize("assistant_only", [True, False])
def test_tokens_and_mask_are_those_of_the_run(*, assistant_only: bool) -> None:
    config = config_of(assistant_only=assistant_only)
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    options = TokenOptions(seq_len=30, assistant_only=assistant_only)
    made = build(data_source(config.data, config.seed), tokenizer, options).sides["train"].examples
    rows = asked(config, 30, 20)["rows"]
    kept = [row for (row,) in rows if row["trained_tokens"]]
    assert len(rows) == 20
    for row, example in zip(kept, made, strict=False):
        assert [token["id"] for token in row["tokens"]] == example.input_ids.tolist()
        assert [token["trained"] for token in row["tokens"]][1:] == (example.labels[1:] != IGNORED).tolist()
        assert row["trained_tokens"] == example.num_label_tokens
        assert len(row["tokens"]) == min(30, row["num_tokens"])
        assert row["cut_tokens"] == max(0, row["num_tokens"] - 30)
    assert any(row["cut_tokens"] and row["cut_trained_tokens"] for row in kept)
    assert kept[0]["tokens"][0]["special"]


def test_packed_blocks_are_those_of_the_run() -> None:
    config = config_of(packing=True, max_rows=60)
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    made = build(data_source(config.data, config.seed), tokenizer, TokenOptions(seq_len=200, packing=True))
    blocks = made.sides["train"].examples
    found = asked(config, 200, 4)
    assert found["notes"] == []
    for block, row in zip(found["rows"], blocks, strict=False):
        assert [token["id"] for document in block for token in document["tokens"]] == row.input_ids.tolist()
        assert tuple(len(document["tokens"]) for document in block) == row.seq_lengths
        assert sum(document["trained_tokens"] for document in block) == row.num_label_tokens
    assert len({document["place"] for block in found["rows"] for document in block}) > 4


def test_sources_take_turns_and_rows_without_an_answer_within_reach_are_shown(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "word " * 200, "completion": "yes"}) + "\n")
    sources = (SourceConfig(path=str(ROWS), name="chat"), SourceConfig(path=str(tmp_path / "long.jsonl")))
    rows = asked(config_of(path="", sources=sources, eval_fraction=0.0), 64, 3)["rows"]
    assert [row["source"] for (row,) in rows] == ["chat", "long.jsonl", "chat"]
    assert (rows[1][0]["trained_tokens"], rows[1][0]["cut_trained_tokens"] > 0) == (0, True)
    assert rows[1][0]["place"] == f"{tmp_path / 'long.jsonl'}, line 1"


def test_texts_of_tokens_make_the_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    text = "naïve 日本語 🙂 tab\tend\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = texts_of(ids, tokenizer)
    assert len(texts) == len(ids)
    assert "".join(texts) == text
    broken = texts_of(ids[:3] + ids[-4:], tokenizer)  # parts of a character alone
    assert len(broken) == 7
