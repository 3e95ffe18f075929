"""The token cache: made once, mapped after, made again when stale or damaged."""

from __future__ import annotations

import errno
import json
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from orchestrator.dataset import checked, signs
from orchestrator.dataset.cache import Built, Side, _own_home, content_key, prepare_once
from orchestrator.dataset.examples import Example, make_example
from orchestrator.dataset.prepare import TokenOptions, _scratch, prepare
from orchestrator.dataset.samples import DataSource
from orchestrator.dataset.stats import summarise
from orchestrator.dataset.store import ROWS_PER_BATCH, TokenRows, write_rows

MakeTokenizer = Callable[..., PreTrainedTokenizerFast]


def examples(num: int) -> list[Example]:
    return [make_example(ids := [i % 100 + 1] * (i % 7 + 2), ids) for i in range(num)]


def built(num: int = 3) -> Built:
    rows = examples(num)
    return Built(sides={"train": Side(examples=rows, stats=summarise(rows, num, 1, 2))}, notes=("n",))


def test_rows_come_back_from_the_memory_map(tmp_path: Path) -> None:
    rows = examples(ROWS_PER_BATCH + 5)
    packed = Example(input_ids=np.arange(5, dtype=np.int32), labels=np.arange(5, dtype=np.int32), seq_lengths=(2, 3))
    write_rows(tmp_path / "a.arrow", [*rows, packed])
    mapped = TokenRows(tmp_path / "a.arrow")
    assert len(mapped) == len(rows) + 1
    for i in (0, ROWS_PER_BATCH - 1, ROWS_PER_BATCH, len(rows) - 1):
        assert mapped[i].input_ids.tolist() == rows[i].input_ids.tolist()
    assert mapped[-1].seq_lengths == (2, 3)
    assert not mapped[0].input_ids.flags.owndata
    assert mapped.lengths.tolist() == [len(row) for row in [*rows, packed]]
    assert [len(row) for row in mapped[2:4]] == [4, 5]
    with pytest.raises(IndexError):
        mapped[len(mapped)]
    assert len(Dataset.from_file(str(tmp_path / "a.arrow"))) == len(mapped)


def test_the_second_call_maps_what_the_first_made(tmp_path: Path) -> None:
    said: list[str] = []
    first = prepare_once(tmp_path, "k", built, said.append)
    second = prepare_once(tmp_path, "k", lambda: pytest.fail("built twice"), said.append)
    assert (first.is_rebuilt, second.is_rebuilt) == (True, False)
    assert second.rows["train"][1].input_ids.tolist() == [2, 2, 2]
    assert second.stats["train"].truncated == 1
    assert second.notes == ("n",)
    assert said == []
    assert json.loads((tmp_path / "stats.json").read_text())["train"]["rows"] == 3
    assert not list(tmp_path.glob("*.tmp"))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: damage(folder / "train.arrow"), "damaged"),
        (lambda folder: (folder / "train.arrow").unlink(), "No such file"),
        (lambda folder: (folder / "train.arrow").write_bytes(b""), "damaged"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "not an object"),
        (lambda folder: (folder / "manifest.json").write_text('{"schema": 1, "key": "k"}'), "files"),
    ],
)
def test_a_damaged_cache_is_made_again(tmp_path: Path, spoil: Callable[[Path], None], reason: str) -> None:
    said: list[str] = []
    prepare_once(tmp_path, "k", built, said.append)
    spoil(tmp_path)
    again = prepare_once(tmp_path, "k", built, said.append)
    assert again.is_rebuilt
    assert len(again.rows["train"]) == 3
    assert len(said) == 1
    assert reason in said[0]


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> Built:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        prepare_once(tmp_path, "k", fail, print)
    assert prepare_once(tmp_path, "k", built, print).is_rebuilt


def _rank(folder: Path, ready: object, results: object) -> None:
    def build() -> Built:
        with (folder / "builds").open("a") as file:
            file.write("x")
        return built(500)

    ready.wait()  # type: ignore[attr-defined]
    cached = prepare_once(folder, "k", build, lambda _: None)
    results.put(len(cached.rows["train"]))  # type: ignore[attr-defined]


def test_one_process_of_a_host_builds(tmp_path: Path) -> None:
    context = get_context("fork")
    ready, results = context.Barrier(3), context.Queue()
    ranks = [context.Process(target=_rank, args=(tmp_path, ready, results)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    assert [results.get(timeout=30) for _ in ranks] == [500] * 3
    for rank in ranks:
        rank.join()
    assert (tmp_path / "builds").read_text() == "x"


def test_a_file_system_without_locks_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("orchestrator.dataset.cache.fcntl.lockf", no_locks)
    said: list[str] = []
    assert prepare_once(tmp_path, "k", built, said.append).is_rebuilt
    assert "no file locks (No locks available)" in said[0]


def test_rows_of_killed_processes_of_this_host_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.dataset.cache.socket.gethostname", lambda: "node1.lan")
    own, other = (tmp_path / f"train-0.{node}.lan.{_own_home()}.7.scratch" for node in ("node1", "node2"))
    cloned = tmp_path / "train-0.node1.lan.0123abcd.7.scratch"  # another host of that name
    for path in (own, other, cloned):
        path.touch()
    prepare_once(tmp_path, "k", built, print)
    assert (own.exists(), other.exists(), cloned.exists()) == (False, True, True)


def test_scratch_names_are_those_of_a_process(tmp_path: Path) -> None:
    path = _scratch(tmp_path, "train-0")
    assert path is not None
    assert path.name == f"train-0.{socket.gethostname()}.{_own_home()}.{os.getpid()}.scratch"
    assert _scratch(None, "train-0") is None


def test_reading_gives_signs_of_life(
    tmp_path: Path, make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.dataset.cache._CHUNK_BYTES", 16)
    monkeypatch.setattr("orchestrator.dataset.cache._CHUNKS_PER_BEAT", 1)
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n')
    beats: list[int] = []
    prepare(DataSource(path=path), make_tokenizer(), TokenOptions(seq_len=8), tmp_path / "data", lambda _: None)
    prepare(
        DataSource(path=path),
        make_tokenizer(),
        TokenOptions(seq_len=8),
        tmp_path / "data",
        lambda _: None,
        lambda: beats.append(1),
    )
    arrow = (tmp_path / "data" / "train.arrow").stat().st_size
    assert len(beats) == -(-path.stat().st_size // 16) - (-arrow // 16)


@pytest.mark.parametrize("packing", [False, True])
def test_rows_that_are_made_again_give_signs_of_life(
    tmp_path: Path, make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch, *, packing: bool
) -> None:
    """No step of it is silent for longer than its rows take: reading, tokenising, packing, counting and writing."""
    for module, name in ((checked, "_ROWS_PER_BEAT"), (signs, "ROWS_PER_BEAT")):
        monkeypatch.setattr(module, name, 1)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i}", "completion": "b"}) + "\n" for i in range(10)))
    at: list[str] = []

    def beat() -> None:
        at.extend(found.name for found in traceback.extract_stack())

    options = TokenOptions(seq_len=8, packing=packing)
    prepare(DataSource(path=path), make_tokenizer(), options, tmp_path / "data", print, beat)
    steps = {"check_rows": 10, "_encode_all": 10, "summarise": 20, "write_rows": 5 if packing else 10}
    for step, least in (steps | ({"_packed": 5} if packing else {})).items():
        assert at.count(step) >= least, step


def test_the_key_follows_data_tokenizer_and_options(tmp_path: Path, make_tokenizer: MakeTokenizer) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}")
    tokenizer = make_tokenizer("x")
    key = content_key((path,), tokenizer, {"seq_len": 8})
    assert key == content_key((path,), make_tokenizer("x"), {"seq_len": 8})
    assert key != content_key((path,), tokenizer, {"seq_len": 9})
    assert key != content_key((path,), make_tokenizer("y"), {"seq_len": 8})
    assert key != content_key((path,), make_tokenizer("x", adds_bos=False), {"seq_len": 8})
    path.write_text("{ }")
    assert key != content_key((path,), tokenizer, {"seq_len": 8})


@pytest.mark.parametrize("packing", [False, True])
def test_prepare_from_file_to_tokens(tmp_path: Path, make_tokenizer: MakeTokenizer, packing: bool) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{i}+1=", "completion": str(i + 1)} for i in range(40)]
    rows.append({"prompt": "?" * 99, "completion": "!"})
    path.write_text("\n".join(map(json.dumps, rows)))
    source = DataSource(path=path, eval_fraction=0.1)
    options = TokenOptions(seq_len=32, packing=packing)
    said: list[str] = []
    made = prepare(source, make_tokenizer(), options, tmp_path / "data", said.append)
    assert len(made.rows["eval"]) == made.stats["eval"].rows
    stats = made.stats["train"]
    assert stats.rows + made.stats["eval"].rows + stats.dropped + made.stats["eval"].dropped == 41
    assert sum(len(row) for row in made.rows["train"]) == stats.tokens
    assert sum(row.num_label_tokens for row in made.rows["train"]) == stats.label_tokens
    assert (len(made.rows["train"]) < stats.rows) is packing
    assert stats.packed_rows == len(made.rows["train"])
    assert any("were dropped" in note for note in made.notes)
    assert not prepare(source, make_tokenizer(), options, tmp_path / "data", said.append).is_rebuilt
    assert said == []
    other = TokenOptions(seq_len=31, packing=packing)
    assert prepare(source, make_tokenizer(), other, tmp_path / "data", said.append).is_rebuilt
    assert "has changed" in said[0]
