"""A run is exported, loaded by PEFT and by transformers alone, and answers as the run itself did."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, LlamaConfig

from .conftest import Runs, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
_BASE = Path(__file__).parents[3] / "examples" / "base"
_MIB = 2**20
_NF4 = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.float32,
)


def _export(runs: Runs, name: str, *words: str) -> dict[str, Any]:
    done = runs.run("export", str(runs.root / name), "format=json", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def _error(model: Any, seen: dict[str, torch.Tensor]) -> float:
    """Largest distance of a model's logits from those that the run recorded at its end."""
    with torch.no_grad():
        logits = model.eval()(input_ids=seen["input_ids"][None]).logits[0]
    return float((logits[seen["positions"]].float() - seen["logits"]).abs().max())


@pytest.fixture(scope="module")
def seen(runs: Runs, ddp: str) -> dict[str, torch.Tensor]:
    return load_file(runs.root / ddp / "eval" / "logits.safetensors")


def test_plain_peft_loads_it(runs: Runs, ddp: str, seen: dict[str, torch.Tensor]) -> None:
    body = _export(runs, ddp)
    base = AutoModelForCausalLM.from_pretrained(_BASE, dtype=torch.float32, quantization_config=_NF4)
    model = PeftModel.from_pretrained(base, body["path"])
    assert _error(model, seen) < 1e-3
    assert AutoTokenizer.from_pretrained(body["path"]).chat_template


def _without_exports(folder: Path) -> Path:
    """The copied run may have been exported by another test."""
    shutil.rmtree(folder / "export", ignore_errors=True)
    return folder


@pytest.mark.slow
def test_a_checkpoint_of_a_stopped_run_is_the_same_adapter(runs: Runs, ddp: str) -> None:
    _without_exports(runs.copy_at(ddp, "stopped-export", 6))
    body = _export(runs, "stopped-export")
    assert body["step"] == 6
    ours = load_file(Path(body["path"]) / "adapter_model.safetensors")
    theirs = load_file(runs.root / ddp / "adapter" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(runs: Runs, ddp: str) -> None:
    folder = _without_exports(runs.copy_at(ddp, "damaged-export", 6))
    other = folder / "checkpoints" / "step-00000004"
    (runs.root / ddp / "checkpoints" / other.name).rename(other)  # put back below
    try:
        path = folder / "checkpoints" / "step-00000006" / "parameters.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        body = _export(runs, "damaged-export")
    finally:
        other.rename(runs.root / ddp / "checkpoints" / other.name)
    assert body["step"] == 4
    assert "checksum" in body["notes"][0]


def test_the_merged_model_is_the_one_that_was_evaluated(runs: Runs, ddp: str, seen: dict[str, torch.Tensor]) -> None:
    words = ("export.format=merged", "export.dtype=fp32")
    exact = _export(runs, ddp, *words, "export.shard_gib=0.004", f"export.to={runs.root / 'exact'}")
    near = _export(runs, ddp, *words, "export.onto=original", f"export.to={runs.root / 'near'}")
    short = _export(runs, ddp, "export.format=merged", f"export.to={runs.root / 'short'}")

    errors = {}
    for name, body in (("exact", exact), ("near", near), ("short", short)):
        model = AutoModelForCausalLM.from_pretrained(body["path"], dtype=torch.float32)
        errors[name] = _error(model, seen)
    print(errors)
    assert short["dtype"] == "bf16"
    assert len([file for file in exact["files"] if file["name"].endswith(".safetensors")]) > 2
    assert errors["exact"] < 1e-3
    assert errors["near"] > 10 * errors["exact"]  # without the rounding to 4 bits it is another model
    assert errors["exact"] < errors["short"] < errors["near"]  # 16 bits cost less than that


@pytest.fixture(scope="module")
def large(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run on a random base of 400 MiB, as a training leaves it."""
    base = tmp_path_factory.mktemp("large")
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=1024,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = empty.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(0.01)
    model.save_pretrained(base, max_shard_size="100MB")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (base / name).write_bytes((_BASE / name).read_bytes())
    path = runs.root / "large"
    data = _BASE.parent / "data"
    words = ("topology=cpu", "devices=1", "data.seq_len=128", "calibration=none", "base.quant=none")
    done = runs.run("plan", f"model={base}", f"data={data}", *words, f"run_dir={path}")
    assert done.returncode == 0, done.stderr
    _write_adapter(path / "adapter", config)
    (path / "summary.json").write_text('{"schema": 1, "status": "done", "steps": 1}')
    yield path
    for file in base.iterdir():
        file.unlink()  # 400 MiB


def _write_adapter(folder: Path, config: LlamaConfig) -> None:
    folder.mkdir()
    own = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none", "use_dora": True}
    (folder / "adapter_config.json").write_text(json.dumps(own | {"target_modules": ["q_proj", "up_proj"]}))
    tensors = {}
    shapes = {"self_attn.q_proj": (1024, 1024), "mlp.up_proj": (2816, 1024)}
    for layer in range(config.num_hidden_layers):
        for name, (rows, columns) in shapes.items():
            key = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{key}.lora_A.weight"] = np.full((4, columns), 0.01, np.float32)
            tensors[f"{key}.lora_B.weight"] = np.full((rows, 4), 0.01, np.float32)
            tensors[f"{key}.lora_magnitude_vector"] = np.ones(rows, np.float32)
    save_arrays(tensors, folder / "adapter_model.safetensors")


@pytest.mark.slow
def test_memory_is_that_of_a_tensor_not_of_the_model(runs: Runs, ddp: str, large: Path) -> None:
    small = _export(runs, ddp, "export.format=merged", f"export.to={runs.root / 'small'}")
    body = _export(runs, "large", "export.format=merged", f"export.to={runs.root / 'merged-large'}")
    nbytes = sum(file["bytes"] for file in body["files"])
    more = body["peak_host_bytes"] - small["peak_host_bytes"]
    print(f"{nbytes / _MIB:.0f} MiB written with {more / _MIB:.0f} MiB more than a base of 8 MiB takes")
    assert nbytes > 380 * _MIB
    assert [file["name"] for file in body["files"] if file["name"].endswith(".safetensors")] == ["model.safetensors"]
    assert more < 180 * _MIB  # a few times the largest tensor in fp32 (16 MiB), and what the allocator keeps


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_killed_in_the_middle_leaves_no_half_model(runs: Runs, large: Path, how: signal.Signals) -> None:
    target = runs.root / "killed" / how.name
    process = runs.start("export", str(large), "export.format=merged", f"export.to={target}", "export.shard_gib=0.05")

    def writes() -> bool:
        return (
            any(target.parent.glob(f".{target.name}.incomplete-*/*.safetensors")) if target.parent.exists() else False
        )

    wait_for(writes, process=process)
    os.kill(process.pid, how)
    process.communicate(timeout=60)
    assert not target.exists()
    if how is signal.SIGTERM:
        assert process.returncode == 130
        assert not list(target.parent.iterdir())
    else:
        _wait_for_silence(target)
        assert _export(runs, "large", f"export.to={target}")["format"] == "peft"
        assert [path.name for path in target.parent.iterdir()] == [target.name]  # what was left is gone


def _wait_for_silence(target: Path) -> None:
    """The writing process has ended with its parent."""
    for _ in range(200):
        found = subprocess.run(["pgrep", "-f", f"merge.worker.*{target}"], capture_output=True, check=False)
        if not found.stdout:
            return
        time.sleep(0.05)
    raise AssertionError("the writing process lives on")
