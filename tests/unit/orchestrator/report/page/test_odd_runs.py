"""Pages of runs that failed, lack files, or hold something else than they should."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.orchestrator.report.page.looking import page, read, well_formed


def test_a_failed_run_says_why_and_what_to_do(run_dir: Path) -> None:
    (run_dir / "summary.json").write_text(json.dumps({"schema": 1, "status": "failed", "reason": "CUDA out of memory"}))
    text = page(read(run_dir, "failed"))
    assert "CUDA out of memory" in text
    assert f"trainmaster train resume={run_dir}" in text
    assert "held-out loss 3.6017 over 1750 tokens" in text  # the end of its log
    assert "346 ms predicted" in text  # of the plan, since the summary has nothing


@pytest.mark.parametrize("status", ["running", "stopped", "planned", "waiting", "ended", "not known", "cancelled"])
def test_a_run_in_any_state(run_dir: Path, status: str) -> None:
    (run_dir / "summary.json").unlink()
    if status == "planned":
        for name in ("metrics.jsonl", "events.jsonl"):
            (run_dir / name).unlink()
    text = page(read(run_dir, status))
    well_formed(text)
    assert "It stands as it was at" in text


def test_a_run_without_readings(run_dir: Path) -> None:
    for path in (run_dir / "telemetry").iterdir():
        path.unlink()
    text = page(read(run_dir))
    well_formed(text)
    assert "There are no readings" in text
    assert "not timed" in text


def test_a_plan_of_another_version_is_shown_as_far_as_it_is_known(run_dir: Path) -> None:
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["schema"] = 0
    del plan["workload"]["text"], plan["knobs"]
    (run_dir / "plan.json").write_text(json.dumps(plan))
    text = page(read(run_dir))
    well_formed(text)
    assert "plan.json is not of this version" in text
    assert "ddp on 2 ranks, micro-batch 8, fp32" in text
    assert "activations" in text


@pytest.mark.parametrize("name", ["plan.json", "topology.json", "summary.json", "metrics.jsonl", "events.jsonl"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1}\n', "\x00\xff"])
def test_a_file_that_holds_something_else(run_dir: Path, name: str, text: str) -> None:
    (run_dir / name).write_text(text, encoding="latin-1")
    well_formed(page(read(run_dir)))


def _mangled(value: Any, at: int) -> Iterator[Any]:
    """The same JSON with each value of the first levels replaced by others in turn."""
    if isinstance(value, dict) and at < 4:
        for key, entry in value.items():
            for odd in (None, "text", -1, [], {}, [None], {"terms": [1]}):
                if at == 3 or not isinstance(entry, dict):
                    yield {**value, key: odd}
            for other in _mangled(entry, at + 1):
                yield {**value, key: other}


@pytest.mark.parametrize("name", ["summary.json", "plan.json"])
def test_any_value_may_be_of_another_kind(run_dir: Path, name: str) -> None:
    record, body = read(run_dir), json.loads((run_dir / name).read_text())
    if name == "plan.json":
        body = {key: body[key] for key in ("chosen", "workload", "rejected", "warnings", "calibration", "num_fit")}
        body["ranked"] = [body["chosen"]]
    from dataclasses import replace

    for at, odd in enumerate(_mangled(body, 0)):
        if at % 9 == 0:  # of several hundred; another part of each kind
            changed = {"summary": odd} if name == "summary.json" else {"plan": {**record.plan, **odd}}
            assert page(replace(record, labels=(), **changed)).endswith("</html>\n")


def test_a_line_that_is_cut_is_left_out_and_told(run_dir: Path) -> None:
    path = run_dir / "metrics.jsonl"
    path.write_text(path.read_text()[:-40])
    record = read(run_dir)
    assert len(record.losses) == 12 - 1 + 0 or len(record.metrics) == 13
    assert any("1 lines of metrics.jsonl are cut" in note for note in record.notes)


def test_one_step_and_losses_that_are_no_number(run_dir: Path) -> None:
    line = {"time": 1796062910.0, "step": 1, "loss": None, "step_seconds": 0.5, "tokens_per_second": 10.0}
    (run_dir / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    text = page(read(run_dir))
    well_formed(text)
    (run_dir / "metrics.jsonl").write_text(json.dumps({**line, "loss": 2.5}) + "\n")
    assert "2.5" in page(read(run_dir))
    steps = [{**line, "step": step, "loss": None if step % 3 == 0 else 3.0} for step in range(1, 30)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    assert "In 9 steps the loss was not a number" in page(read(run_dir))
