"""The fast memory formula against whole models on fake tensors, and the fake tensors against real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.simulate.case import Case
from orchestrator.simulate.memory import main
from orchestrator.simulate.step import simulate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 640,
}
CASE = Case(model=TINY, micro=2, tokens=96, rank=8, quant="none", attention="eager")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products run faster without a thread pool, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_formula_and_fake_tensors_agree_within_3_percent() -> None:
    command = [sys.executable, "bench/fake_memory.py", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines() if line.rstrip().endswith("%")]
    errors = [float(row[-1].rstrip("%")) for row in rows]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(errors) >= 8
    assert sum("half" in row for row in rows) >= 3
    assert max(map(abs, errors)) <= 3.0
    assert {"trl", "hf_plain"} <= {word for row in rows for word in row}


@pytest.mark.parametrize("stack", ["trl", "hf_plain"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_fake_tensors_count_as_real_ones(stack: str, checkpointing: str) -> None:
    case = replace(CASE, stack=stack, checkpointing=checkpointing, accumulation=2)
    fake, real = simulate(case), simulate(case, real=True)
    assert (fake.peak_bytes, fake.state_bytes, fake.optimizer_bytes) == (
        real.peak_bytes,
        real.state_bytes,
        real.optimizer_bytes,
    )


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_a_part_of_the_layers_counts_as_in_reality(checkpointing: str) -> None:
    case = replace(CASE, checkpointing=checkpointing, recomputed=2)
    peak = simulate(case).peak_bytes
    assert peak == simulate(case, real=True).peak_bytes
    none, every = (simulate(replace(CASE, checkpointing=x)).peak_bytes for x in ("none", checkpointing))
    assert every < peak < none


def test_layers_are_additive() -> None:
    peaks = [simulate(replace(CASE, quant="nf4", checkpointing="none", layers=n)).peak_bytes for n in (2, 4, 6)]
    assert peaks[2] - peaks[1] == pytest.approx(peaks[1] - peaks[0], rel=1e-3)


def test_a_case_is_simulated_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"model": TINY, "micro": 1, "tokens": 64, "rank": 4}))
    assert main([str(path)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["peak_bytes"] > result["state_bytes"] > 0
    assert result["layers"] == 3
    assert result["at_peak"]


def test_an_unknown_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"model": {"model_type": "no-such-model"}, "micro": 1, "tokens": 64, "rank": 4}))
    assert main([str(path)]) == 2
    assert "no-such-model" in capsys.readouterr().err
