"""What an evaluation keeps of its answers, and what it does while it reads the questions."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer

from orchestrator.compose import shipped_folder
from orchestrator.config import DataConfig, ModelConfig, RunConfig
from orchestrator.config_eval import EvalConfig
from orchestrator.dataset import checked
from orchestrator.dataset.examples import make_example
from orchestrator.evaluation.metrics import Answer
from orchestrator.train import answers as module
from orchestrator.train.answers import SAMPLES, Answers, stop_tokens
from orchestrator.train.generate import Generated
from orchestrator.train.groups import MetricsGroup
from orchestrator.train.run_files import read_json_lines
from orchestrator.train.settings import TrainSettings

BASE = shipped_folder("examples") / "base"


@pytest.fixture
def beats() -> list[int]:
    return []


@pytest.fixture
def answers(tmp_path: Path, beats: list[int]) -> Answers:
    rows = "".join(f'{{"prompt": "{i}", "completion": "b"}}\n' for i in range(8))
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    config = RunConfig(
        model=ModelConfig(path=str(BASE)),
        data=DataConfig(path=str(tmp_path / "rows.jsonl"), eval_fraction=0.5),
        eval=EvalConfig(prompts=("one",), metrics=("exact_match",)),
    )
    settings = TrainSettings(
        run_dir=tmp_path,
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device("cpu"),
        engine="ddp",
        precision="fp32",
        adapter_dtype="fp32",
        quant_storage="uint8",
        checkpointing="none",
        shares=(1,),
        micro=(1,),
        accumulation=1,
    )
    return Answers(
        config,
        settings,
        MetricsGroup(settings),
        AutoTokenizer.from_pretrained(BASE),
        seq_len=64,
        rows=(),
        beat=lambda: beats.append(1),
    )


def test_reading_the_questions_gives_signs_of_life(
    answers: Answers, beats: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "_ROWS_PER_BEAT", 2)
    assert answers.asked()
    assert len(beats) >= 4


def test_a_full_disk_costs_samples_alone(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers.asked()
    made = [Generated(tokens=(5,), ended=True)] * len(asked)
    told = [Answer(prediction="two")] * len(asked)
    answers._keep(4, asked, made, told)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        answers._keep(4, asked, made, told)  # the same step once more
    answers._keep(5, asked, made, told)
    records = read_json_lines(tmp_path / SAMPLES)
    assert {record["step"] for record in records} == {4, 5}
    assert "| 5 | two |" in (tmp_path / "samples.md").read_text(encoding="utf-8")


def test_only_special_tokens_at_the_end_of_whole_rows_stop_an_answer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.add_tokens([AddedToken("\n", normalized=False), AddedToken("</think>", normalized=False)])
    line, thought, end, user = map(tokenizer.convert_tokens_to_ids, ("\n", "</think>", "<|end|>", "<|user|>"))
    word = tokenizer("word", add_special_tokens=False)["input_ids"][-1]

    def stops(*tail: int, seq_len: int = 8) -> set[int]:
        row = [word, *tail]
        return {*stop_tokens(tokenizer, None, [make_example(row, row)], seq_len)} - {tokenizer.eos_token_id}

    assert stops(word, end, line, line) == {end}
    assert stops(end, word, line) == set()  # text stands between it and the end
    assert stops(word, thought) == set()
    assert stops(word, line) == set()
    assert stops(word, user, seq_len=3) == set()  # cut where a turn happened to begin
    assert stops(word, user, seq_len=4) == {user}


def test_scoring_gives_signs_of_life_and_says_which_tokens_bleu_counts(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(answers._config, eval=replace(answers._config.eval, metrics=("bleu", "exact_match")))
    monkeypatch.setattr(answers, "_config", config)
    asked = [replace(each, question=replace(each.question, reference="\u4f60\u597d")) for each in answers.asked()]
    monkeypatch.setattr(answers, "_asked", tuple(asked))
    monkeypatch.setattr(module, "generate", lambda *_: [Generated(tokens=(5,), ended=True)] * len(asked))
    told: list[int] = []
    for step in (0, 4):
        answers.evaluate(torch.nn.Linear(1, 1), step, told.append)
    assert capsys.readouterr().out.count("BLEU of prompts counts characters (sacrebleu's tokenizer zh)") == 1
    assert len(told) >= 2 * len(asked)
    assert set(told) == {len(asked)}
