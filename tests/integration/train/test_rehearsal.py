"""What is tried before the first step leaves no trace in the run."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SHORT = ("batch.max_steps=3", "checkpoint.every=0", "data.max_eval_rows=6", "adapter.dropout=0.1", "batch.micro=2")


def _events(runs: Any, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (runs.root / name / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("engine", ["ddp", pytest.param("streamed", marks=pytest.mark.slow)])
def test_losses_are_the_same_bit_by_bit(runs: Any, engine: str) -> None:
    for word in ("false", "true"):
        runs.train(f"{engine}_{word}", f"engine={engine}", *SHORT, f"recovery.rehearse={word}")
    plain, tried = f"{engine}_false", f"{engine}_true"
    assert runs.losses(plain) == runs.losses(tried)
    assert runs.summary(plain)["eval_loss_before"] == runs.summary(tried)["eval_loss_before"]
    assert runs.summary(plain)["eval_loss_after"] == runs.summary(tried)["eval_loss_after"]
    (told,) = [event for event in _events(runs, tried) if event["event"] == "rehearsed"]
    assert told["rows"] == 2
    assert told["tokens"] >= 2 * 8
    assert told["eval_rows"] == 2
    assert not [event for event in _events(runs, plain) if event["event"] == "rehearsed"]


@pytest.mark.slow
def test_deepspeed_is_left_out(runs: Any) -> None:
    runs.train("zero3_tried", "engine=zero3", *SHORT[:3], "recovery.rehearse=true")
    (told,) = [event for event in _events(runs, "zero3_tried") if event["event"] == "rehearsal_skipped"]
    assert "DeepSpeed" in told["why"]
