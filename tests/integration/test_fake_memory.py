"""The fast memory formula against whole models on fake tensors, and the fake tensors against real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.simulate.case import Case
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


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_formula_and_fake_tensors_agree_within_3_percent() -> None:
    done = _run("bench/fake_memory.py", "--quick")
    rows = [line.split() for line in done.stdout.splitlines() if line.rstrip().endswith("%")]
    errors = [float(row[-1].rstrip("%")) for row in rows]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(errors) >= 5
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


def test_layers_are_additive() -> None:
    peaks = [simulate(replace(CASE, quant="nf4", checkpointing="none", layers=n)).peak_bytes for n in (2, 4, 6)]
    assert peaks[2] - peaks[1] == pytest.approx(peaks[1] - peaks[0], rel=1e-3)


def test_a_case_is_simulated_from_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"model": TINY, "micro": 1, "tokens": 64, "rank": 4}))
    done = _run("-m", "orchestrator.simulate.memory", str(path))
    result = json.loads(done.stdout)
    assert result["peak_bytes"] > result["state_bytes"] > 0
    assert result["layers"] == 3
    assert result["at_peak"]


def test_a_bad_case_is_told_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"model": {"model_type": "no-such-model"}, "micro": 1, "tokens": 64, "rank": 4}))
    done = _run("-m", "orchestrator.simulate.memory", str(path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "no-such-model" in done.stderr
