"""A mixture from start to end: seen by its weights, resumed in the middle, refused where a source has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.compose import shipped_folder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def sources(root: Path) -> str:
    """Write 60 chat rows and 30 plain pairs; return them as an override."""
    rows = (shipped_folder("examples") / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    chat, plain = root / "chat.jsonl", root / "plain.csv"
    chat.write_text("\n".join(rows[:60]) + "\n", encoding="utf-8")
    lines = ["prompt,completion"] + [f"{i} and {i + 1} make,{2 * i + 1}" for i in range(30)]
    plain.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"data.sources=[{{path: {chat}, weight: 0.5}}, {{path: {plain}, share: 0.5, name: sums}}]"


@pytest.mark.slow
def test_a_mixture_is_trained_resumed_and_refused_when_a_source_has_changed(runs: Any, tmp_path: Path) -> None:
    mixture = (
        sources(tmp_path),
        "data.path=''",
        "data.eval_fraction=0.1",
        "batch.global=8",
        "devices=1",
        "launch=local",
        "monitor.enabled=false",
    )
    summary = runs.train("mixture", *mixture)
    # Half of the 54 chat rows left of the split are half of an epoch.
    told = {source["name"]: source for source in summary["sources"]}
    assert [(told[name]["rows"], told[name]["epoch_rows"], told[name]["eval_rows"]) for name in told] == [
        (54, 27, 6),
        (27, 27, 3),
    ]
    tokens = sum(summary["eval_row_losses"])
    assert told["sums"]["eval_loss_after"] != told["chat.jsonl"]["eval_loss_after"]
    assert tokens == pytest.approx(sum(summary["eval_row_losses"][:6]) + sum(summary["eval_row_losses"][6:]))
    low, high = sorted(source["eval_loss_after"] for source in told.values())
    assert low < summary["eval_loss_after"] < high

    resumed = runs.copy_at("mixture", "mixture-resumed", 4)
    done = runs.run("train", f"resume={resumed}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Sources   chat.jsonl  54 rows, 27 in an epoch" in done.stdout
    assert runs.losses("mixture-resumed") == runs.losses("mixture")

    changed = runs.copy_at("mixture", "mixture-changed", 4)
    path = tmp_path / "plain.csv"
    path.write_text(path.read_text().replace("make,1\n", "make,one\n"))
    done = runs.run("train", f"resume={changed}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"is made again: {path} has changed" in done.stdout
    assert "data" in done.stderr


def test_a_preview_trains_nothing_and_prints_one_document(runs: Any) -> None:
    done = runs.run("train", "preview=2", "experiment=demo", f"run_dir={runs.root / 'previewed'}", "format=json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert len(body["rows"]) == 2
    assert any(token["trained"] for token in body["rows"][0][0]["tokens"])
    assert not (runs.root / "previewed").exists()
