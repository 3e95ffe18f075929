"""Files larger than memory: the same rows as from small ones, in memory that does not grow with the text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from orchestrator.dataset import batching, checked, spool
from orchestrator.dataset.prepare import TokenOptions, build, prepare
from orchestrator.dataset.samples import DataSource, load_samples
from orchestrator.dataset.store import TokenRows
from orchestrator.errors import UserError

MakeTokenizer = Callable[..., PreTrainedTokenizerFast]
MIB = 2**20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [{"prompt": f"question {i}", "completion": "so " * (i % 17 + 1)} for i in range(300)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def tiny_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "KEPT_CHARS", 100)
    monkeypatch.setattr(spool, "KEPT_TOKENS", 500)


def test_rows_that_are_read_again_are_the_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DataSource(path=path, eval_fraction=0.1, max_rows=200)
    small = load_samples(source)
    monkeypatch.setattr(checked, "KEPT_CHARS", 100)
    large = load_samples(source)
    assert large.parts[0].train.checked.kept is None
    assert list(large.train) == list(small.train) == list(large.train)
    assert list(large.eval) == list(small.eval)
    assert [large.train[i] for i in (3, 150, 7, 199, -1)] == [small.train[i] for i in (3, 150, 7, 199, -1)]
    assert list(large.train[10:20]) == list(small.train[10:20])
    assert (large.notes, large.duplicates) == (small.notes, small.duplicates)


@pytest.mark.usefixtures("tiny_limits")
@pytest.mark.parametrize("edit", [lambda text: text + text[:90], lambda text: text[:-200], lambda text: "\n" + text])
def test_a_file_that_changes_while_it_is_read_is_told(path: Path, edit: Callable[[str], str]) -> None:
    samples = load_samples(DataSource(path=path))
    path.write_text(edit(path.read_text()))
    with pytest.raises(UserError, match="changed while it was read"):
        list(samples.parts[0].train.checked.reread())


@pytest.mark.parametrize("packing", [False, True])
def test_token_rows_are_the_same_through_files(
    path: Path, tmp_path: Path, make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch, *, packing: bool
) -> None:
    tokenizer = make_tokenizer()
    options = TokenOptions(seq_len=64, packing=packing)
    source = DataSource(path=path, eval_fraction=0.1)
    small = build(source, tokenizer, options)
    monkeypatch.setattr(checked, "KEPT_CHARS", 100)
    monkeypatch.setattr(spool, "KEPT_TOKENS", 500)
    large = prepare(source, tokenizer, options, tmp_path / "data", print)
    for side, made in small.sides.items():
        rows = large.rows[side]
        assert [row.input_ids.tolist() for row in rows] == [row.input_ids.tolist() for row in made.examples]
        assert [row.labels.tolist() for row in rows] == [row.labels.tolist() for row in made.examples]
        assert [row.seq_lengths for row in rows] == [row.seq_lengths for row in made.examples]
        assert large.stats[side] == made.stats
    assert not list((tmp_path / "data").glob("*.scratch"))


def test_windows_of_packing_lose_nothing(
    path: Path, make_tokenizer: MakeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build(DataSource(path=path), make_tokenizer(), TokenOptions(seq_len=64))
    whole = list(batching.pack_windows(made.sides["train"].examples, 64))
    monkeypatch.setattr(batching, "WINDOW_TOKENS", 1000)
    cut = list(batching.pack_windows(made.sides["train"].examples, 64))
    assert sum(map(len, cut)) == made.sides["train"].stats.tokens
    assert sum(len(row.seq_lengths) for row in cut) == made.sides["train"].stats.rows
    assert len(whole) <= len(cut) <= len(whole) + sum(map(len, whole)) // 900 + 1


_MEASURE = """
import sys, threading, time
from pathlib import Path
from orchestrator.dataset import checked
from orchestrator.dataset.samples import DataSource, load_samples
from orchestrator.workload.lengths import data_stats

def own():  # anonymous memory: pages of mapped files are the kernel's to take back
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) * 1024

start, peak, done = own(), [0], threading.Event()
def watch():
    while not done.wait(0.01):
        peak[0] = max(peak[0], own())
threading.Thread(target=watch, daemon=True).start()
checked.KEPT_CHARS = int(sys.argv[2])
samples = load_samples(DataSource(path=Path(sys.argv[1]), eval_fraction=0.05))
stats = data_stats(samples, None, 1024)
done.set()
print(len(samples.train), stats.facts.rows, peak[0] - start)
"""


def big_file(path: Path, size_bytes: int) -> int:
    row, num = json.dumps({"prompt": "what is it " * 40, "completion": "this and that " * 80}) + "\n", 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size_bytes:
            file.write(row * 100)
            num += 100
    return num


def measured(path: Path, kept_chars: int) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path), str(kept_chars)], capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_text_of_a_large_file_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    num = big_file(path, 12 * MIB)
    size_bytes = path.stat().st_size
    train, facts, peak_bytes = measured(path, 1_000_000)
    assert train == facts == num - round(0.05 * num)
    assert peak_bytes < size_bytes / 2
    *_, kept_bytes = measured(path, 1 << 40)
    assert kept_bytes > size_bytes  # or the measurement says nothing


_PREPARE = """
import sys, threading
from pathlib import Path
from transformers import AutoTokenizer
from orchestrator.compose import shipped_folder
from orchestrator.dataset import checked, spool
from orchestrator.dataset.prepare import TokenOptions, prepare
from orchestrator.dataset.samples import DataSource
from orchestrator.train.sampler import GlobalSampler

def own():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) * 1024

checked.KEPT_CHARS, spool.KEPT_TOKENS = 1_000_000, 250_000  # a thirty-second of what they are, as is the file
tokenizer = AutoTokenizer.from_pretrained(shipped_folder("examples") / "base")
source = DataSource(path=Path(sys.argv[1]), eval_fraction=0.05)
start, peak, done = own(), [0], threading.Event()
def watch():
    while not done.wait(0.01):
        peak[0] = max(peak[0], own())
threading.Thread(target=watch, daemon=True).start()
rows = prepare(source, tokenizer, TokenOptions(seq_len=1024), Path(sys.argv[2]), print).rows["train"]
order = GlobalSampler(num_rows=len(rows), global_batch=16, seed=0)
tokens = sum(int(rows[i].input_ids.astype("int64").sum() > 0) for step in range(order.num_steps)
             for i in order.step_rows(step) if i >= 0)
done.set()
print(len(rows), tokens, peak[0] - start)
"""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(900)
def test_token_rows_are_prepared_and_read_in_a_third_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    num = big_file(path, 48 * MIB)
    done = subprocess.run(
        [sys.executable, "-c", _PREPARE, str(path), str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )
    assert done.returncode == 0, done.stderr
    rows, read, peak_bytes = (int(word) for word in done.stdout.split()[-3:])
    assert rows == read == num - round(0.05 * num)
    # Kept in memory, ids and labels alone would take more.
    assert TokenRows(tmp_path / "data" / "train.arrow").lengths.sum() * 8 > path.stat().st_size
    assert peak_bytes < path.stat().st_size / 3
