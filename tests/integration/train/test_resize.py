"""Adapters get other ranks in the middle of a run: exactly, with their memory, and on every way to go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from orchestrator.planner.plan import dumps, loads
from orchestrator.planner.setbacks import Setbacks
from orchestrator.resize import reference

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

BASE = Path(__file__).parents[3] / "examples" / "base"
DEMO = ("experiment=demo", "batch.max_steps=6", "checkpoint.every=2", "data.max_eval_rows=16")
ASKED = ("adapter.rank=16", "adapter.resize.at=2:4,4:10", "checkpoint.keep=9")


@pytest.fixture(scope="module")
def resized(runs: Any) -> Path:
    """Two ranks; rank 16, 4 after step 2, 10 after step 4."""
    return _train(runs, "resized", "engine=ddp", *ASKED)


def _train(runs: Any, name: str, *overrides: str) -> Path:
    """A run to its end, on a machine that may be busy."""
    folder: Path = runs.root / name
    done = runs.run("train", *DEMO, f"run_dir={folder}", *overrides, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def _events(folder: Path, name: str = "resized") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def _records(folder: Path) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if "loss" in line}


def _same_adapter(one: Path, other: Path) -> bool:
    left, right = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, other))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_what_is_dropped_is_the_least_that_can_be(resized: Path) -> None:
    smaller, larger = _events(resized)
    saved = load_file(resized / "checkpoints" / "step-00000002" / "parameters.safetensors")
    ends = (".lora_A.default.weight", ".lora_B.default.weight")
    modules = [name.removesuffix(ends[0]) for name in saved if name.endswith(ends[0])]
    dropped = sum(reference.nearest(saved[name + ends[0]], saved[name + ends[1]], 4)[1] for name in modules)
    assert list(smaller["ranks"].values()) == [[16, 4]] * 28
    assert len(smaller["ranks"]) == len(modules) == 28
    assert smaller["dropped_energy"] == pytest.approx(dropped, rel=1e-6)
    assert 0 < smaller["dropped_share"] <= smaller["largest_dropped_share"] < 1
    assert larger["dropped_energy"] == 0
    assert list(larger["ranks"].values()) == [[4, 10]] * 28


def test_bytes_follow_the_rank(resized: Path) -> None:
    for event, share in zip(_events(resized), (4 / 16, 10 / 4), strict=True):
        before, after = event["bytes_before"], event["bytes_after"]
        for name in ("adapters", "gradients", "optimizer", "ddp_buckets"):
            assert after[name] == pytest.approx(before[name] * share, rel=1e-3), name
        assert event["freed_bytes"] == sum(before.values()) - sum(after.values())


def test_metrics_tell_rank_and_rate(resized: Path) -> None:
    records = _records(resized)
    assert [records[step]["adapter_rank"] for step in range(1, 7)] == [16, 16, 4, 4, 10, 10]
    assert records[3]["adapter_params"] * 4 == records[2]["adapter_params"]
    assert records[3]["learning_rate"] < records[4]["learning_rate"]  # it climbs again


def test_plain_peft_gives_the_logits_of_the_run(resized: Path) -> None:
    quantised = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    base = AutoModelForCausalLM.from_pretrained(BASE, quantization_config=quantised, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, resized / "adapter").eval()
    for module in model.modules():
        module.support_avx512bf16_for_cpu = False
    seen = load_file(resized / "eval" / "logits.safetensors")
    with torch.no_grad():
        logits = model(seen["input_ids"][None]).logits[0][seen["positions"]].float()
    torch.testing.assert_close(logits, seen["logits"].float(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_checkpoint_between_decision_and_change_goes_on_bit_by_bit(runs: Any, resized: Path) -> None:
    folder = runs.copy_at("resized", "resized_pending", step=2)
    done = runs.run("train", f"resume={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert runs.losses("resized_pending") == runs.losses("resized")
    assert _same_adapter(folder, resized)
    assert len(_events(folder)) == 2 + 2  # what the first attempt wrote stays


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_after_a_change(runs: Any, resized: Path) -> None:
    folder = runs.copy_at("resized", "resized_alone", step=4)
    done = runs.run("train", f"resume={folder}", "devices=1")
    assert done.returncode == 0, done.stdout + done.stderr
    for step, loss in runs.losses("resized").items():
        assert runs.losses("resized_alone")[step] == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_streamed_layers_give_the_same_bits(runs: Any, resized: Path) -> None:
    _train(runs, "resized_streamed", "engine=streamed", *ASKED)
    assert runs.losses("resized_streamed") == runs.losses("resized")
    assert _same_adapter(runs.root / "resized_streamed", resized)


def _worker(script: list[str], plan: Path) -> subprocess.CompletedProcess[str]:
    where = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return subprocess.run(
        [sys.executable, *script, str(plan)]
        if script[0] == "-m"
        else [sys.executable, script[0], str(plan), *script[1:]],
        env={**os.environ, **where, "LOCAL_WORLD_SIZE": "1", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_nothing_of_the_old_rank_stays_alive(runs: Any, demo: tuple[str, ...]) -> None:
    """Rank 23 is no size of the model, so that whatever has it is an adapter's, a gradient's or a moment's."""
    folder = runs.root / "resized_alive"
    asked = ("adapter.rank=23", "adapter.resize.at=3:4", "eval.before=false", "batch.max_steps=5", "checkpoint.every=0")
    planned = runs.run("plan", *demo, "devices=1", "engine=ddp", f"run_dir={folder}", *asked)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    done = _worker([str(Path(__file__).parent / "resize_rank.py"), "23"], folder / "plan.json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = next(line for line in done.stdout.splitlines() if line.startswith("ALIVE "))
    assert json.loads(told.removeprefix("ALIVE ")) == []


def test_an_attempt_after_memory_ran_out_goes_on_in_a_smaller_rank(runs: Any, resized: Path) -> None:
    """The plan is what `replan` writes as its last resort: a limit of ranks, and an alpha that leaves the scale."""
    folder = runs.copy_at("resized", "resized_pressure", step=4)
    plan = loads((folder / "plan.json").read_text())
    config = json.loads(json.dumps(plan.config, default=dict))
    adapter = config["adapter"]
    adapter.update(rank=2, alpha=adapter["alpha"] * 2 / 16)
    adapter["resize"].update(at=["2:2", "4:2"], under_pressure=True)
    again = replace(plan, config=config, setbacks=Setbacks(config=plan.config, rank=2))
    (folder / "plan.json").write_text(dumps(again))
    done = _worker(["-m", "orchestrator.train.worker"], folder / "plan.json")
    assert done.returncode == 0, done.stdout + done.stderr
    event = _events(folder)[-1]
    # Rank 10 was decided and not done when the checkpoint was taken: memory allows 2.
    assert set(map(tuple, event["ranks"].values())) == {(4, 2)}
    assert _records(folder)[6]["adapter_rank"] == 2
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 2)
