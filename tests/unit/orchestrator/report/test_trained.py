"""A sweep's runs side by side."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from orchestrator.report.trained import TrainTrial, best_of, csv_text, exit_code_of, table_text, to_json


def _trial(number: int, code: int | None, *more: str, **summary: Any) -> TrainTrial:
    return TrainTrial(
        number=number,
        overrides=("experiment=demo", f"adapter.rank={2**number}", *more),
        code=code,
        reason="" if code == 0 else f"reason {number}",
        run_dir=f"runs/s/{number}",
        place="GPU-1",
        summary=summary,
    )


MEASURED = {
    "step_seconds": 0.25,
    "tokens_per_second": 1234.5,
    "memory": {"train": {"device_bytes": 2**30, "host_bytes": 2**40}, "save": {"device_bytes": 2**31}},
}


@pytest.fixture
def trials() -> list[TrainTrial]:
    losses = {"eval_loss_before": 3.0, "train_loss_last": 2.5, "steps": 7, "status": "done", "measured": MEASURED}
    return [
        _trial(0, 0, eval_loss_after=2.0, **losses),
        _trial(1, 2),
        _trial(2, 0, eval_loss_after=1.5, **losses),
        _trial(3, 4, status="failed", eval_loss_after=0.1),
        _trial(4, 75, status="stopped", steps=3),
        _trial(5, None),
    ]


def test_table_has_swept_keys_results_and_reasons(trials: list[TrainTrial]) -> None:
    lines = table_text(trials).splitlines()
    assert lines[0].split()[:3] == ["trial", "adapter.rank", "status"]
    assert "experiment" not in lines[0]
    assert [line.split()[1] for line in lines[1:]] == ["1", "2", "4", "8", "16", "32"]
    words = ("done", "bad input", "lowest loss", "exit 4: reason 3", "stopped", "not started")
    assert all(word in line for word, line in zip(words, lines[1:], strict=True))
    assert "2.0 GiB" in lines[1]
    assert sum("lowest loss" in line for line in lines) == 1


def test_csv_and_json_tell_the_same(trials: list[TrainTrial]) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(trials))))
    body = to_json(trials, "runs/s")
    assert body["best"] == 2
    for row, trial in zip(rows, body["trials"], strict=True):
        assert row["adapter.rank"] == trial["values"]["adapter.rank"]
        for key in ("status", "eval_loss_after", "steps", "step_seconds", "peak_bytes", "exit_code", "reason"):
            assert row[key] == ("" if trial[key] is None else str(trial[key])), key
    assert (rows[0]["peak_bytes"], rows[5]["exit_code"], rows[1]["steps"]) == (str(2**31), "", "")


def test_only_finished_trials_can_be_the_best(trials: list[TrainTrial]) -> None:
    best = best_of(trials)
    assert best is not None
    assert best.number == 2, "a failed trial's loss does not count"
    assert best_of([_trial(0, 0, eval_loss_after=float("nan"), status="done"), _trial(1, 2)]) is None


@pytest.mark.parametrize(
    ("codes", "whole"),
    [
        ((0, 0), 0), ((0, 2), 2), ((3, 2, 0), 3), ((0, 75), 75), ((0, None), 75), ((75, 4), 4), ((0, -9), 4),
        ((2, 4), 4), ((None, 2), 2), ((0, 130), 75),
    ],
)  # fmt: skip
def test_exit_code_of_the_whole(codes: tuple[int | None, ...], whole: int) -> None:
    assert exit_code_of([_trial(at, code) for at, code in enumerate(codes)]) == whole


def test_a_long_reason_is_cut_in_the_table_alone() -> None:
    trial = TrainTrial(
        number=0, overrides=(), code=4, reason="x" * 300, run_dir="r", place="", summary={"measured": None}
    )
    assert "x" * 98 not in table_text([trial])
    assert "x" * 300 in csv_text([trial])
