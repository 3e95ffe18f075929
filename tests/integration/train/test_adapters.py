"""Kinds of adapters train, go on after a stop, and are worth the same outside of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BASE = Path(__file__).parents[3] / "examples" / "base"
SHORT = ("batch.max_steps=4", "devices=1", "engine=ddp")
LOGIT_TOLERANCE = 2e-3


def _difference(folder: Path) -> float:
    """Largest difference of logits between plain PEFT on the base of the files and the run's own evaluation."""
    seen = load_file(folder / "eval" / "logits.safetensors")
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    with torch.no_grad():
        logits = model(input_ids=seen["input_ids"][None]).logits[0][seen["positions"]]
    return float((logits - seen["logits"]).abs().max())


@pytest.mark.slow
def test_pissa_is_exported_for_the_base_it_changed(runs: Any) -> None:
    summary = runs.train("pissa", "adapter=pissa", "base=none", *SHORT)
    folder = runs.root / "pissa"
    assert summary["eval_loss_after"] < summary["eval_loss_before"] - 0.1
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (32, 32)
    assert _difference(folder) < LOGIT_TOLERANCE


@pytest.mark.slow
def test_dora_streams_with_ranks_by_pattern(runs: Any) -> None:
    """The same losses as with a whole copy: magnitudes are taken from the layers as they come by."""
    wanted = ("adapter=dora", r"adapter.rank_pattern=q_proj:8,layers\.0\..*_proj:4", "batch.max_steps=3", "devices=2")
    for engine in ("ddp", "streamed"):
        runs.train(f"dora-{engine}", *wanted, f"engine={engine}")
    assert runs.losses("dora-streamed") == pytest.approx(runs.losses("dora-ddp"), abs=1e-4)
