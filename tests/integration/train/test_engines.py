"""The same job on each engine and launcher, and what its adapter is worth outside of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BASE = Path(__file__).parents[3] / "examples" / "base"
# fp32 arithmetic in another order (whole rows instead of padded batches): logits of about 10.
LOGIT_TOLERANCE = 2e-3
# On CPUs with AVX512-BF16 bitsandbytes computes the products of an idle model in bf16, 8 bits of mantissa.
BF16_TOLERANCE = 0.25


def check_adapter(folder: Path) -> None:
    """Plain PEFT on the quantised base gives the logits that the run's own evaluation saw."""
    quantised = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    base = AutoModelForCausalLM.from_pretrained(BASE, quantization_config=quantised, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    seen = load_file(folder / "eval" / "logits.safetensors")
    inputs = seen["input_ids"][None]
    with torch.no_grad():
        as_is = model(inputs).logits[0][seen["positions"]].float()
    assert (as_is - seen["logits"]).abs().max() < BF16_TOLERANCE
    # Loaded again with that switched off, the arithmetic is the run's own.
    base = AutoModelForCausalLM.from_pretrained(BASE, quantization_config=quantised, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    for module in model.modules():
        module.support_avx512bf16_for_cpu = False
    with torch.no_grad():
        logits = model(inputs).logits[0][seen["positions"]].float()
        with model.disable_adapter():
            without = model(inputs).logits[0][seen["positions"]].float()
    assert (logits - seen["logits"]).abs().max() < LOGIT_TOLERANCE
    assert (without - seen["logits"]).abs().max() > 100 * LOGIT_TOLERANCE, "the adapter changes nothing"


def adapter_tensors(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(folder / "adapter" / "adapter_model.safetensors")
    return tensors


def test_ddp_learns_and_reports(runs: Any, ddp: str) -> None:
    summary = runs.summary(ddp)
    assert summary["status"] == "done"
    assert (summary["engine"], summary["world_size"], summary["steps"]) == ("ddp", 2, 6)
    assert summary["eval_loss_after"] < 0.95 * summary["eval_loss_before"]
    assert set(summary["predicted"]) == set(summary["measured"])
    assert summary["measured"]["step_seconds"] > 0
    assert summary["measured"]["memory"]["train"]["host_bytes"] > 100 * 2**20
    check_adapter(runs.root / ddp)


def test_ddp_adapter_is_whole(runs: Any, ddp: str) -> None:
    tensors = adapter_tensors(runs.root / ddp)
    config = json.loads((BASE / "config.json").read_text())
    assert len(tensors) == config["num_hidden_layers"] * 7 * 2
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in tensors.values())
    changed = [name for name, tensor in tensors.items() if "lora_B" in name and tensor.abs().max() > 0]
    assert len(changed) == len(tensors) // 2, "a lora_B that is still zero has not been trained"


def test_zero3_partitions_the_base_and_agrees_with_ddp(runs: Any, ddp: str) -> None:
    summary = runs.train("zero3", "engine=zero3", "engine.param_persistence_threshold=0")
    whole = runs.summary(ddp)["live_base_bytes"]
    config = json.loads((runs.root / "zero3" / "deepspeed.json").read_text())["zero_optimization"]
    assert config["offload_param"]["device"] == config["offload_optimizer"]["device"] == "cpu"
    strategy = json.loads((runs.root / "zero3" / "plan.json").read_text())["chosen"]["strategy"]
    assert strategy["quant_storage"] == "bfloat16"
    # A rank keeps half of the weights, and the scales of the blocks, which travel with nobody.
    assert 0.45 * whole < summary["live_base_bytes"] < 0.58 * whole
    for step, loss in runs.losses(ddp).items():
        assert runs.losses("zero3")[step] == pytest.approx(loss, rel=1e-4)
    check_adapter(runs.root / "zero3")


@pytest.mark.slow
def test_zero3_resumes_at_another_world_size(runs: Any, ddp: str) -> None:
    if not (runs.root / "zero3" / "checkpoints").is_dir():
        runs.train("zero3", "engine=zero3", "engine.param_persistence_threshold=0")
    folder = runs.copy_at("zero3", "zero3_three", step=4)
    resumed = runs.run("train", f"resume={folder}", "devices=3")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    for step, loss in runs.losses(ddp).items():
        assert runs.losses("zero3_three")[step] == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_zero3_with_an_unquantised_base(runs: Any) -> None:
    summary = runs.train("zero3_whole", "engine=zero3", "base=none", "batch.max_steps=2")
    assert summary["status"] == "done"
    assert summary["eval_loss_after"] < summary["eval_loss_before"]


@pytest.mark.slow
def test_deepspeed_launcher(runs: Any, ddp: str) -> None:
    runs.train("deepspeed", "engine=ddp", "launch=deepspeed")
    assert runs.losses("deepspeed") == runs.losses(ddp)
    check_adapter(runs.root / "deepspeed")


@pytest.mark.slow
def test_ranks_started_by_hand(runs: Any, ddp: str, demo: tuple[str, ...]) -> None:
    folder = runs.root / "by_hand"
    planned = runs.run("plan", *demo, "engine=ddp", f"run_dir={folder}")
    assert planned.returncode == 0, planned.stderr
    argv = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-endpoint", "127.0.0.1:0"]
    worker = ["-m", "orchestrator.train.worker", str(folder / "plan.json")]
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *argv, "--rdzv-backend", "c10d", "--local-addr", "127.0.0.1", *worker],
        cwd=runs.root,
        env=env,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert runs.losses("by_hand") == runs.losses(ddp)
    check_adapter(folder)
