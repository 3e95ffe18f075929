"""What a rank tells when memory runs out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from orchestrator.engines.live import Named
from orchestrator.monitor.beat import Heart
from orchestrator.recovery.event import FAULT_PREFIX
from orchestrator.train.out_of_memory import IN_PROCESS, live_report, tell, told_of

CPU = torch.device("cpu")


def _fail(heart: Heart, folder: Path, named: object = dict) -> None:
    assert callable(named)
    with told_of(heart, folder, CPU, named):
        torch.empty(2**50, dtype=torch.uint8)


def test_terms_tensors_and_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heart = Heart(tmp_path, rank=3, attempt=2)
    heart.beat("training", step=7)
    base, adapters = torch.ones(3_000_000), torch.ones(500_000)
    layer = torch.nn.Linear(1000, 700)
    layer(torch.ones(1, 1000)).sum().backward()
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        _fail(heart, tmp_path, lambda: {"base_packed": [base], "adapters": [adapters, base]})
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith(FAULT_PREFIX)]
    told = json.loads(line.removeprefix(FAULT_PREFIX))
    body = json.loads((tmp_path / "logs" / "oom-2-3.json").read_text())
    assert told["kind"] == "out_of_memory"
    assert told["report"] == str(tmp_path / "logs" / "oom-2-3.json")
    assert "rank 3 ran out of host memory while training, asking for" in told["words"]
    for found in (told, body):
        assert (found["where"], found["phase"], found["step"], found["rank"]) == ("host", "training", 7, 3)
        assert found["asked_bytes"] == 2**50
        assert found["allocated_bytes"] > 0
        assert found["free_bytes"] > 0
    assert body["schema"] == 1
    terms = {entry["name"]: entry["bytes"] for entry in body["terms"]}
    assert terms["base_packed"] == 12_000_000
    assert terms["adapters"] == 2_000_000
    assert terms["gradients"] >= 2_800_000
    assert IN_PROCESS in terms
    assert {"name": "base_packed", "bytes": 12_000_000, "shape": [3_000_000], "dtype": "float32"} in body["largest"]
    sizes = [entry["bytes"] for entry in body["largest"]]
    assert sizes == sorted(sizes, reverse=True)


def test_it_is_told_once_however_often_it_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heart = Heart(tmp_path, rank=0, attempt=1)
    with pytest.raises(RuntimeError) as caught:
        _fail(heart, tmp_path)
    assert tell(caught.value, heart, tmp_path)
    assert capsys.readouterr().out.count(FAULT_PREFIX) == 1


def test_other_errors_pass_in_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heart = Heart(tmp_path, rank=0, attempt=1)
    with pytest.raises(ZeroDivisionError), told_of(heart, tmp_path, CPU, dict):
        _ = 1 // 0
    assert FAULT_PREFIX not in capsys.readouterr().out
    assert not list(tmp_path.glob("logs/oom-*"))


def test_a_model_that_is_half_there_has_a_report_without_its_terms(tmp_path: Path) -> None:
    def named() -> Named:
        raise AttributeError("no model yet")

    heart = Heart(tmp_path, rank=0, attempt=1)
    heart.beat("loading")
    held = torch.ones(1_000_000)
    with pytest.raises(RuntimeError):
        _fail(heart, tmp_path, named)
    body = json.loads((tmp_path / "logs" / "oom-1-0.json").read_text())
    assert body["phase"] == "loading"
    assert {entry["name"] for entry in body["terms"]} >= {"other_tensors"}
    assert held.numel() == 1_000_000


def test_a_folder_that_takes_no_file_costs_the_report_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heart = Heart(tmp_path, rank=0, attempt=1)
    (tmp_path / "file").write_text("")
    error = MemoryError()
    assert tell(error, heart, tmp_path / "file")
    assert FAULT_PREFIX in capsys.readouterr().out


def test_storages_that_two_share_count_once() -> None:
    whole = torch.zeros(1000, dtype=torch.uint8)
    terms, largest = live_report({"one": [whole[:500]], "two": [whole]}, None, 0)
    assert next(entry["bytes"] for entry in terms if entry["name"] == "one") == 1000
    assert "two" not in {entry["name"] for entry in terms}
    assert all(entry["bytes"] > 0 for entry in largest)


def test_where_even_the_look_needs_too_much_the_whole_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_left() -> list[object]:
        raise MemoryError

    monkeypatch.setattr("orchestrator.train.out_of_memory.gc.get_objects", nothing_left)
    assert tell(MemoryError(), Heart(tmp_path, rank=0, attempt=1), tmp_path)
    body = json.loads((tmp_path / "logs" / "oom-1-0.json").read_text())
    assert body["terms"] == [{"name": IN_PROCESS, "bytes": body["allocated_bytes"]}]
