"""The page of the fault matrix, from results of several runs."""

import json
from dataclasses import replace

from bench.fault_matrix_page import page
from orchestrator.fault_runs.present import Matrix, to_json
from orchestrator.fault_runs.row import Left, Outcome, Row

BASELINE = Left(summary={"steps": 12, "measured": {"step_seconds": 2.0}}, seconds=40.0)
ROW = Row(
    fault="kill_rank",
    outcome=Outcome.recovered,
    as_expected=True,
    detected_seconds=1.0,
    recovered_seconds=20.0,
    steps_lost=1,
    is_bitwise=True,
    eval_loss_deviation=0.0,
    message="rank 1 was killed",
)


def body_of(*rows: Row) -> dict[str, object]:
    """One row a run."""
    common = {
        "asked": (),
        "machine": "m",
        "world_size": 2,
        "baseline": BASELINE,
        "skipped": (("cut_link", "no hosts"),),
    }
    runs = [json.loads(json.dumps(to_json(Matrix(rows=(row,), **common)))) for row in rows]
    return {
        "when": "2030-01-01",
        "command": "python bench/fault_matrix.py",
        "machine": {"cores": 2, "kernel": "6", "torch": "2"},
        "settings": [{"name": "2 ranks", "asked": ["a=b"], "runs": runs}],
    }


def line_of(text: str) -> list[str]:
    return [cell.strip() for cell in next(x for x in text.splitlines() if x.startswith("| kill_rank")).split("|")[1:-1]]


def test_medians_and_spreads() -> None:
    text = page(body_of(ROW, replace(ROW, recovered_seconds=24.0), replace(ROW, recovered_seconds=22.0)))
    cells = line_of(text)
    assert cells[:5] == ["kill_rank", "recovered", "1.0", "22.0 [20.0-24.0]", "1"]
    assert cells[8:] == ["same bits", "-", "rank 1 was killed"]
    assert "Later than wanted" not in text
    assert "- cut_link: no hosts" in text


def test_what_is_late_or_wrong_is_told() -> None:
    hung = replace(ROW, outcome=Outcome.hung, as_expected=False, is_bitwise=False, recovered_seconds=None)
    text = page(body_of(replace(ROW, recovered_seconds=31.0, detected_seconds=11.0), hung))
    assert line_of(text)[1] == "1x recovered, 1x HUNG"
    assert "- kill_rank: HUNG in 1 of 2" in text
    assert "- kill_rank: recovered after 31.0 s, 30 s are wanted" in text
    assert "detected after" not in text  # its median is 6 s
