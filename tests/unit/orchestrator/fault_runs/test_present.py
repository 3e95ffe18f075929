"""The table of faults as text, Markdown and JSON."""

import json
import re

from orchestrator.fault_runs.present import Matrix, listing_text, to_json, to_markdown, to_text
from orchestrator.fault_runs.row import Left, Outcome, Row
from orchestrator.faults.fault import listing

BASELINE = Left(summary={"steps": 12, "measured": {"step_seconds": 2.0}, "eval_loss_after": 2.0}, seconds=40.0)
GOOD = Row(
    fault="kill_rank",
    outcome=Outcome.recovered,
    as_expected=True,
    detected_seconds=0.5,
    recovered_seconds=18.0,
    steps_lost=1,
    throughput=0.54,
    steps_to_same_loss=13,
    eval_loss_deviation=0.0,
    train_loss_deviation=0.0,
    is_bitwise=True,
    restarts=1,
    message="rank 1 was\nkilled | by SIGKILL",
)
HUNG = Row(fault="hang", outcome=Outcome.hung, as_expected=False, message="x" * 300, eval_loss_deviation=0.012)


def matrix(*rows: Row) -> Matrix:
    skipped = (("cut_link", "needs hosts"),)
    return Matrix(asked=("a=b",), machine="2 CPU slots", world_size=2, baseline=BASELINE, rows=rows, skipped=skipped)


def test_text() -> None:
    text = to_text(matrix(GOOD, HUNG))
    lines = text.splitlines()
    assert lines[0].startswith("2 CPU slots, 2 ranks. Without a fault: 12 steps in 40 s")
    cells = ["kill_rank", "recovered", "0.5 s", "18.0 s", "1", "1", "54%", "13", "same bits", "same bits"]
    assert re.split(r"  +", lines[2]) == cells
    assert lines[3].split() == ["hang", "HUNG", "-", "-", "-", "0", "-", "-", "+1.20%", "-"]
    assert "  kill_rank: rank 1 was killed | by SIGKILL" in lines
    assert "  cut_link: needs hosts" in lines
    assert lines[-1] == "2 faults, not as they must: hang"
    assert to_text(matrix(GOOD)).endswith("1 faults, all ended as they must\n")


def test_json_is_plain_and_markdown_is_made_of_it() -> None:
    body = json.loads(json.dumps(to_json(matrix(GOOD, HUNG))))
    assert body["rows"][1]["outcome"] == "HUNG"
    assert body["skipped"] == [{"fault": "cut_link", "why": "needs hosts"}]
    lines = to_markdown(body).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {12}
    assert "killed \\| by SIGKILL" in table[2]


def test_list() -> None:
    lines = listing_text(listing()).splitlines()
    assert len(lines) == len(listing())
    assert lines[0] == "  kill_rank            SIGKILL of a rank"
