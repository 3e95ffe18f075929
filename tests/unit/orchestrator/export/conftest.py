"""A run directory as a finished training leaves it, without the training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from orchestrator.cli import main

_EXAMPLES = Path(__file__).parents[4] / "examples"
_ADAPTER = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "/home/somebody/private/base",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj"],
    "bias": "none",
    "init_lora_weights": True,
}


class Run:
    """A run directory that tests may change."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_adapter(self, **config: Any) -> Path:
        folder = self.path / "adapter"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(_ADAPTER | config))
        name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
        tensors = {name.format("A"): np.ones((4, 256), np.float32), name.format("B"): np.ones((256, 4), np.float32)}
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "tokenizer.json").write_text("{}")
        (folder / "README.md").write_text("of a library")
        return folder

    def write_checkpoint(self, step: int) -> Path:
        folder = self.path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        return folder

    def write_losses(self, losses: dict[int, float]) -> None:
        lines = [json.dumps({"step": step, "eval_loss": loss}) + "\n" for step, loss in losses.items()]
        (self.path / "metrics.jsonl").write_text("".join(lines) + '{"step": 9, "eval_l')  # cut by a kill

    def write_summary(self, **body: Any) -> None:
        (self.path / "summary.json").write_text(json.dumps({"schema": 1, "status": "done", "steps": 8} | body))


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planned") / "run"
    words = [f"model={_EXAMPLES / 'base'}", f"data={_EXAMPLES / 'data'}", "devices=1", "data.seq_len=128"]
    code = main(["plan", *words, "topology=cpu", "optimizer.lr=1e-3", "calibration=none", f"run_dir={path}"])
    assert code == 0
    return path


@pytest.fixture
def run(planned: Path, tmp_path: Path) -> Run:
    path = tmp_path / "run"
    path.mkdir()
    (path / "plan.json").write_bytes((planned / "plan.json").read_bytes())
    made = Run(path)
    made.write_adapter()
    made.write_losses({0: 4.5, 4: 3.0, 8: 3.5})
    made.write_summary()
    return made
