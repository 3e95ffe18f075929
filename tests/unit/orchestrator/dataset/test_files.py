"""Files -> rows: formats, and the place of every mistake."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.dataset.errors import MAX_SHOWN, DataError, DataErrors
from orchestrator.dataset.files import read_rows
from orchestrator.dataset.locate import locate, locate_sides
from orchestrator.dataset.samples import DataSource, load_samples
from orchestrator.errors import UserError

PAIR = {"prompt": "2+2?", "completion": "vier ✓"}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def problems(path: Path) -> list[tuple[int | None, str]]:
    with pytest.raises(DataErrors) as caught:
        read_rows((path,))
    return [(error.line, error.problem) for error in caught.value.errors]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", "\ufeff" + json.dumps(PAIR, ensure_ascii=False) + "\n\n" + json.dumps(PAIR)),
        ("a.json", json.dumps([PAIR, PAIR], indent=1).replace("\n", "\r")),
        ("a.ndjson", json.dumps(PAIR) + "\r\n" + json.dumps(PAIR) + "\r\n"),
        ("a.json", json.dumps([PAIR, PAIR], indent=1)),
        ("a.json", json.dumps({"version": 1, "data": [PAIR, PAIR]})),
        ("a.json", json.dumps(PAIR) + "\n" + json.dumps(PAIR)),
        ("a.jsonl", json.dumps([PAIR, PAIR])),
        ("a.jsonl", json.dumps([PAIR, PAIR], indent=2)),
        ("a", json.dumps(PAIR) + "\n" + json.dumps(PAIR)),
        ("a.csv", "\ufeffprompt,completion\n2+2?,vier ✓\n\n2+2?,vier ✓\n"),
        ("a.tsv", "prompt\tcompletion\n2+2?\tvier ✓\n2+2?\tvier ✓"),
        ("a.jsonl.gz", gzip.compress((json.dumps(PAIR) + "\n" + json.dumps(PAIR)).encode(), mtime=0)),
    ],
)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str, content: str | bytes) -> None:
    rows = read_rows((write(tmp_path, name, content),))
    assert [dict(row.fields) for row in rows] == [PAIR, PAIR]


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([PAIR, {"prompt": "x", "completion": None}]), tmp_path / "a.parquet")
    rows = read_rows((tmp_path / "a.parquet",))
    assert [(row.line, row.unit) for row in rows] == [(1, "row"), (2, "row")]
    assert rows[1].fields["completion"] is None
    damaged = write(tmp_path, "b.parquet", (tmp_path / "a.parquet").read_bytes()[:-20])
    assert "damaged Parquet" in problems(damaged)[0][1]


def test_csv_cells_may_be_long_hold_line_breaks_and_json(tmp_path: Path) -> None:
    long = "x" * 200_000
    turns = json.dumps([{"role": "user", "content": "hi"}]).replace('"', '""')
    path = write(tmp_path, "a.csv", f'id,messages\n"1\n2","{turns}"\n3,{long}\n')
    rows = read_rows((path,))
    assert [row.line for row in rows] == [2, 4]
    assert rows[0].fields == {"id": "1\n2", "messages": [{"role": "user", "content": "hi"}]}
    assert rows[1].fields["messages"] == long


def test_mistakes_in_jsonl_name_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", b'{"a": 1}\n{"a": 1,}\n[1]\n\n{"a": "\xe9"}\n' + b"[" * 100_000 + b"\n7\nnull\n")
    found = problems(path)
    assert [line for line, _ in found] == [2, 3, 5, 6, 7, 8]
    assert "column 9" in found[0][1]
    assert "an array where an object" in found[1][1]
    assert "0xe9 at position 8 is not UTF-8" in found[2][1]
    assert "null where" in found[5][1]


@pytest.mark.parametrize(
    ("name", "content", "line", "problem"),
    [
        ("a.jsonl", "", None, "no rows"),
        ("a.jsonl", "\n \n", None, "no rows"),
        ("a.json", "[]", None, "no rows"),
        ("a.csv", "prompt,completion\n", None, "no rows"),
        ("a.json", '{"a": 1,\n "b": }', 2, "malformed JSON at column 7"),
        ("a.json", '{"items": [1]}', None, "its keys: items"),
        ("a.json", "3", None, "a number, not a list"),
        ("a.json", "[1]", 1, "a number where an object"),
        ("a.jsonl", "{}\n".encode("utf-16"), None, "UTF-16"),
        ("a.csv", "a,a\n1,2\n", 1, "repeated column 'a'"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", 3, "3 cells where the header has 2"),
        ("a.csv", 'a,b\n"1" x,2\n', 2, "malformed CSV"),
        ("a.csv", b"a,b\n1,2\n\xff,2\n", 3, "not UTF-8"),
        ("a.csv", "a,b\r1,2\r", None, "CR alone"),
        ("a.jsonl", '{"a": 1}\r{"a": 2}\r', None, "CR alone"),
        ("a.json", '{"a": 1}\r{"a": 2}', None, "CR alone"),
        ("a.csv", "a,b\n1\r,2\n", 2, "carriage return inside a cell"),
        ("a.csv", "a,b\n1,2\n1,\0\n", 3, "NUL character at position 3"),
        ("a.txt", "hello", None, "format is not known"),
        ("a.jsonl.gz", "not gzip", None, "gzip"),
        ("a.jsonl.gz", gzip.compress(b"{}\n" * 9, mtime=0)[:-9], None, "gzip"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, content: str | bytes, line: int | None, problem: str) -> None:
    found = problems(write(tmp_path, name, content))
    assert found[0][0] == line
    assert problem in found[0][1]


def test_only_the_first_problems_are_shown(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", "{\n" * 25)
    with pytest.raises(UserError) as caught:
        read_rows((path,))
    assert isinstance(caught.value, DataErrors)
    assert len(caught.value.errors) == MAX_SHOWN
    assert caught.value.num_more == 15
    assert str(caught.value).count("\n") == MAX_SHOWN
    assert "15 more problems" in str(caught.value)


def test_missing_paths_say_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "rows.jsonl", "{}")
    with pytest.raises(DataError, match=r"no such file.*rows\.jsonl"):
        locate(tmp_path / "row.jsonl")
    for name in ("abc.jsonl", "bbb.csv", "rows2.csv", "rows3.csv", "rows4.csv", "rows5.csv"):
        write(tmp_path, name, "{}")
    with pytest.raises(DataError) as caught:
        locate(tmp_path / "row.jsonl", "data.eval_path")
    names = caught.value.remedy.partition(": ")[2].partition(". Set data.eval_path to ")[0].split(", ")
    assert (len(names), names[0]) == (5, "rows.jsonl")
    assert "bbb.csv" not in names
    with pytest.raises(DataError, match="does not exist either"):
        locate(tmp_path / "no" / "row.jsonl")


def test_directories(tmp_path: Path) -> None:
    only = write(tmp_path, "rows.jsonl", "{}")
    assert locate(tmp_path).train_files == (only,)
    other = write(tmp_path, "more.csv", "a\n1")
    with pytest.raises(DataError, match=r"no train\.\* file; it holds more\.csv, rows\.jsonl"):
        locate(tmp_path)
    shards = tuple(write(tmp_path, f"train-0000{i}-of-00002.parquet", "PAR1") for i in range(2))
    write(tmp_path, "test.jsonl", "{}")
    validation = write(tmp_path, "validation.jsonl.gz", "{}")
    write(tmp_path, "training_notes.txt", "no")
    found = locate(tmp_path)
    assert found.train_files == shards
    assert found.eval_files == (validation,)
    assert other not in found.train_files


def test_a_folder_of_eval_files(tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    rows = write(tmp_path, "rows.jsonl", "{}")
    held = write(tmp_path / "held", "test.jsonl", "{}")
    found = locate_sides(rows, tmp_path / "held")
    assert (found.train_files, found.eval_files) == ((rows,), (held,))
    write(tmp_path / "held", "train.jsonl", "{}")
    assert locate_sides(rows, tmp_path / "held").eval_files == (held,)


def test_light_tier_is_quick_and_imports_no_heavy_package(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "wie? " * 40}, {"role": "assistant", "content": "só " * 80}]}
    line = json.dumps(row, ensure_ascii=False)
    path = write(tmp_path, "a.jsonl", "\n".join([line] * 10_000))
    start_seconds = time.process_time()
    samples = load_samples(DataSource(path=path, eval_fraction=0.05))
    seconds = time.process_time() - start_seconds
    assert (len(samples.train), len(samples.eval)) == (9500, 500)
    assert seconds < 2.0  # 0.3 s on an idle core; the margin is for a busy machine
    code = "import sys, orchestrator.dataset.samples; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "datasets", "numpy", "pyarrow", "jinja2"} & set(loaded)
