"""Gradients summed by a schedule of ours in real runs of two ranks: the losses, the summary, a resume."""

import json
from typing import Any

import pytest
from safetensors.torch import load_file

pytestmark = [pytest.mark.integration, pytest.mark.timeout(330)]

# 4 and 3 rows in passes of 2: the ranks differ, and of a step's two backward passes only the last one reduces.
ROWS = ("engine=ddp", "batch.global=7", "batch.micro=2", "data.max_eval_rows=4", "precision=fp16")
OURS = (*ROWS, "engine.gradient_route=executor")


def adapter(runs: Any, name: str) -> dict[str, Any]:
    tensors: dict[str, Any] = load_file(runs.root / name / "adapter" / "adapter_model.safetensors")
    return tensors


@pytest.mark.slow
def test_the_executor_trains_as_the_library_does(runs: Any) -> None:
    library = runs.train("by-library", *ROWS, "engine.gradient_route=library", "batch.max_steps=3")
    ours = runs.train("by-executor", *OURS, "batch.max_steps=3")
    # A sum of two has one order only: nothing is rounded otherwise.
    assert runs.losses("by-executor") == runs.losses("by-library")
    assert ours["eval_loss_after"] == library["eval_loss_after"]
    assert library["gradient_route"]["runner"] == "library"
    told = ours["gradient_route"]
    assert told["runner"] == "executor"
    assert told["algorithm"]
    assert 0 < told["measured_seconds"] < ours["wall_seconds"]
    assert told["gradient_bytes"] == 4 * sum(tensor.numel() for tensor in adapter(runs, "by-executor").values())
    plan = json.loads((runs.root / "by-executor" / "plan.json").read_text())
    assert plan["chosen"]["strategy"]["gradient_route"]["algorithm"] == told["algorithm"]


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits(runs: Any) -> None:
    if not (runs.root / "by-executor").exists():
        runs.train("by-executor", *OURS, "batch.max_steps=3")
    folder = runs.copy_at("by-executor", "by-executor-resumed", 2)
    done = runs.run("train", f"resume={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Gradients:" in done.stdout
    assert runs.summary("by-executor-resumed")["gradient_route"]["runner"] == "executor"
    whole, resumed = adapter(runs, "by-executor"), adapter(runs, "by-executor-resumed")
    assert all(whole[name].equal(resumed[name]) for name in whole)
