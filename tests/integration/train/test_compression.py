"""Sparse gradients in a real run: what the summary tells, and resumes at the same and at another number of ranks."""

import json
from typing import Any

import pytest
from safetensors.torch import load_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def sparse(runs: Any) -> str:
    runs.train("sparse", "engine=ddp", "compress=topk", "checkpoint.keep=9")
    return "sparse"


def test_summary_tells_what_travelled(runs: Any, sparse: str) -> None:
    summary = runs.summary(sparse)
    found = summary["compression"]
    assert found["kind"] == "topk"
    assert found["steps"]["not_finite"] == 0
    assert found["steps"]["dense"] == found["warmup_steps"]
    assert found["steps"]["compressed"] == summary["steps"] - found["warmup_steps"]
    assert found["measured"].keys() == found["predicted"].keys()
    assert found["measured"]["seconds"].keys() == found["predicted"]["seconds"].keys()
    assert found["measured"]["wire_bytes"] == found["predicted"]["wire_bytes"]
    assert found["measured"]["wire_bytes"] < found["dense_bytes"] / 50
    live = summary["measured"]["live"]["compress_residual"]
    assert live == summary["predicted"]["live"]["compress_residual"] > 0


def test_resume_is_bitwise_the_same(runs: Any, sparse: str) -> None:
    folder = runs.copy_at(sparse, "sparse_again", step=4)
    resumed = runs.run("train", f"resume={folder}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.losses(folder.name) == runs.losses(sparse)
    assert "restored as they were" in _events(folder)


def test_other_number_of_ranks_shares_out_anew(runs: Any, sparse: str) -> None:
    folder = runs.copy_at(sparse, "sparse_on_3", step=4)
    resumed = runs.run("train", f"resume={folder}", "devices=3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "the mean of 2 ranks on each of 3" in _events(folder)
    losses, before = runs.losses(folder.name), runs.losses(sparse)
    assert losses.keys() == before.keys()
    assert all(losses[step] == pytest.approx(before[step], rel=0.02) for step in before)


def test_residuals_of_all_ranks_are_in_the_checkpoint(runs: Any, sparse: str) -> None:
    newest = max((runs.root / sparse / "checkpoints").iterdir())
    state = json.loads((newest / "state.json").read_text())["state"]
    assert state["compression"] == {"exchange": "gather", "island": 1}
    residuals = load_file(newest / "residuals.safetensors")
    names = set(load_file(newest / "parameters.safetensors"))
    for owner in ("0", "1"):
        assert {key.split(".", 1)[1] for key in residuals if key.startswith(f"{owner}.")} == names


def _events(folder: Any) -> str:
    return str((folder / "events.jsonl").read_text())
