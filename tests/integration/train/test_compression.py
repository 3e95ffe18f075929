"""Sparse gradients in a real run: what the summary tells, and resumes at the same and at another number of ranks."""

import json
from typing import Any

import pytest
from safetensors.torch import load_file

from orchestrator.train.checkpoint_files import sealed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def sparse(runs: Any) -> str:
    # Of the five compressed steps 4 sends the largest elements, the others all.
    runs.train("sparse", "engine=ddp", "compress=topk", "compress.refresh=0.9", "checkpoint.keep=9")
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
    assert found["steps"]["refresh"] == 4
    for name in ("wire_bytes", "topk_bytes", "refresh_bytes"):
        assert found["measured"][name] == found["predicted"][name], name
    assert found["measured"]["topk_bytes"] < found["dense_bytes"] / 50
    # 4 bits of 32, and the paddings of small parameters.
    assert 1 < found["measured"]["refresh_bytes"] / (found["dense_bytes"] / 8) < 1.15
    mean = (4 * found["measured"]["refresh_bytes"] + found["measured"]["topk_bytes"]) / 5
    assert found["measured"]["wire_bytes"] == pytest.approx(mean, abs=1)
    live = summary["measured"]["live"]["compress_residual"]
    assert live == summary["predicted"]["live"]["compress_residual"] > 0


@pytest.mark.slow
def test_resume_is_bitwise_the_same(runs: Any, sparse: str) -> None:
    folder = runs.copy_at(sparse, "sparse_again", step=4)
    resumed = runs.run("train", f"resume={folder}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.losses(folder.name) == runs.losses(sparse)
    assert "restored as they were" in _events(folder)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_step_that_overflows_in_fp16_changes_nothing_but_the_scale(runs: Any) -> None:
    """The loss scaler of a real run: its step is left out on all ranks, and what was not sent stays as it was."""
    every = ("engine=ddp", "compress=topk", "compress.refresh=0.9", "checkpoint.keep=9", "checkpoint.every=1")
    every += ("batch.global=4", "data.max_eval_rows=2")  # products in fp16 are slow on a CPU
    summary = runs.train("sparse_fp16", *every, "precision=fp16", "batch.max_steps=5")
    assert summary["compression"]["steps"]["not_finite"] == 0
    folder = runs.copy_at("sparse_fp16", "sparse_overflow", step=4)
    state = folder / "checkpoints" / "step-00000004" / "state.json"
    held = json.loads(state.read_text())
    scale = held["state"]["scaler"]["scale"]
    held["state"]["scaler"]["scale"] = 2.0**100
    state.write_text(json.dumps(sealed(held)))
    resumed = runs.run("train", f"resume={folder}")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert runs.summary(folder.name)["compression"]["steps"]["not_finite"] == 1
    before, after, plain = (
        _files(runs.root / name / "checkpoints" / f"step-{step:08d}")
        for name, step in ((folder.name, 4), (folder.name, 5), ("sparse_fp16", 5))
    )
    for name in ("residuals", "parameters"):
        assert before[name].keys() == after[name].keys()
        assert all((before[name][key] == after[name][key]).all() for key in before[name]), name
        assert any((before[name][key] != plain[name][key]).any() for key in before[name]), name
    told = json.loads((folder / "checkpoints" / "step-00000005" / "state.json").read_text())
    assert told["state"]["scaler"]["scale"] == 2.0**99
    # Scaled ones would be as many times larger.
    largest = max(float(value.abs().max()) for key, value in before["residuals"].items() if key[0].isdigit())
    assert scale > 1000
    assert 0 < largest < 1


def _files(checkpoint: Any) -> dict[str, Any]:
    return {name: load_file(checkpoint / f"{name}.safetensors") for name in ("residuals", "parameters")}
