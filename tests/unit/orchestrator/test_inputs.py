"""What planning reads: all problems at once, each with its place, and estimates that cut nothing."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator import machine
from orchestrator.config import DataConfig, Engine, EngineConfig, ModelConfig, Offload, RunConfig, TopologyConfig
from orchestrator.dataset import disk
from orchestrator.errors import UserError
from orchestrator.inputs import check_nvme, gather, located, model_folder
from topology.presets import preset

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
}
LONG_NAME = "n" * 300


def _weights(path: Path) -> None:
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, 8), "lm_head.weight": (32, 8)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        tensors |= {f"{prefix}self_attn.{name}_proj.weight": (8, 8) for name in "qkvo"}
        tensors |= {f"{prefix}mlp.{name}_proj.weight": (24, 8) for name in ("gate", "up")}
        tensors |= {f"{prefix}mlp.down_proj.weight": (8, 24)}
    header = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 16]} for name, shape in tensors.items()}
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(16))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A complete small job; the machine is drawn."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    _weights(folder / "model.safetensors")
    core = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.enable_truncation(4)
    core.save(str(folder / "tokenizer.json"))
    rows = [{"prompt": "a a", "completion": " a" * (1 + i % 50)} for i in range(100)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(machine, "machine_of", lambda _config: preset("cpu"))
    data = DataConfig(path=str(tmp_path / "rows.jsonl"))
    return RunConfig(model=ModelConfig(path=str(folder)), data=data)


def _problems(config: RunConfig) -> list[str]:
    with pytest.raises(UserError) as caught:
        gather(config)
    for problem in caught.value.problems:
        assert not problem.found.endswith("."), problem
        assert problem.remedy.endswith("."), problem
        assert not problem.remedy.endswith(".."), problem
    return [str(problem) for problem in caught.value.problems]


def test_a_complete_job_is_read(config: RunConfig) -> None:
    found = gather(config)
    assert (found.data.rows, found.data.eval_rows) == (95, 5)
    assert found.data.source == "counted on 95 of 95 rows"
    # Exact, though the tokenizer's file asks for a cut at four tokens.
    assert found.data.max_tokens == 2 + 50 + 2 * 5


def test_everything_that_is_missing_comes_at_once(config: RunConfig, tmp_path: Path) -> None:
    folder = Path(config.model.path)
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text("{")
    data = replace(config.data, path=str(tmp_path / "row.jsonl"), eval_path=str(tmp_path / "eval.jsonl"))
    engine = EngineConfig(offload_param=Offload.nvme, nvme_path=str(tmp_path / "fast"))
    text = "\n".join(_problems(replace(config, data=data, engine=engine)))
    for words in (
        "config.json: ",
        "none of model.safetensors, model.safetensors.index.json, pytorch_model.bin",
        "found part-1.safetensors",
        "no tokenizer.json",
        "row.jsonl: there is no such file",
        "eval.jsonl: there is no such file",
        "Set data.eval_path to a file",
        f"there is no folder {tmp_path / 'fast'}",
    ):
        assert words in text


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors.index.json"])
def test_other_weights_that_transformers_reads(config: RunConfig, name: str) -> None:
    folder = Path(config.model.path)
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = {"weight_map": {"model.embed_tokens.weight": "one.safetensors"}}
    (folder / name).write_text(json.dumps(index) if name.endswith("json") else "PK")
    assert gather(config).model.layers == 2


def test_names_too_long_and_circles_of_links(config: RunConfig, tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    text = "\n".join(
        _problems(
            replace(
                config,
                model=ModelConfig(path=str(tmp_path / LONG_NAME)),
                data=replace(config.data, path=str(circle)),
            )
        )
    )
    assert f"{LONG_NAME}: File name too long. Give a shorter path." in text
    assert f"{circle}: Too many levels of symbolic links" in text


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "rows.jsonl"])
def test_files_without_permission(config: RunConfig, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    opened = Path.open

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    (problem,) = _problems(config)
    assert f"{name}: " in problem
    assert "Permission denied" in problem
    assert "Give this user access" in problem


def test_folders_without_permission(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(disk.os, "listdir", refuse)
    (problem,) = _problems(config)
    assert problem.startswith(f"{config.model.path}: Permission denied")


def test_a_user_without_home_can_use_local_folders(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(*_args: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(Path, "expanduser", no_home)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert model_folder(located(config), download=False) == Path(config.model.path)


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = RunConfig(
        model=ModelConfig(path="org/name"),
        data=DataConfig(path="rows.jsonl"),
        engine=EngineConfig(nvme_path="fast"),
    )
    found = located(config)
    assert (found.model.path, found.data.path) == ("org/name", str(tmp_path / "rows.jsonl"))
    assert found.engine.nvme_path == str(tmp_path / "fast")
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").symlink_to("name")
    assert located(config).model.path == str(tmp_path / "org" / "name")


def test_nvme_needs_a_folder_that_can_be_written(config: RunConfig, tmp_path: Path) -> None:
    def engine(path: Path | str, name: Engine = Engine.auto) -> RunConfig:
        return replace(config, engine=EngineConfig(name=name, offload_optimizer=Offload.nvme, nvme_path=str(path)))

    check_nvme(engine(tmp_path))
    check_nvme(engine("/absent", Engine.ddp))
    check_nvme(replace(engine("/absent"), topology=TopologyConfig(path="other.json")))
    for path, words in (("", "no folder given"), (config.data.path, "is a file"), ("/absent", "no folder /absent")):
        with pytest.raises(UserError, match=words):
            check_nvme(engine(path))


def test_a_folder_that_cannot_be_written(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_args: False)
    engine = EngineConfig(offload_param=Offload.nvme, nvme_path=str(tmp_path))
    with pytest.raises(UserError, match="cannot be written"):
        check_nvme(replace(config, engine=engine))


def test_a_plan_needs_no_more_than_config_json(config: RunConfig) -> None:
    folder = Path(config.model.path)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "float16"}))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
    found = gather(config, by_name=True)
    assert found.model.layers == 2
    weights, tokens = found.notes[-2:]
    assert "Planned from config.json alone (it says float16); train needs them" in weights
    assert "tokens are guessed from the length of the text; train needs a tokenizer" in tokens
    assert "guessed" in found.data.source
    text = "\n".join(_problems(config))
    assert "none of model.safetensors" in text
    assert "no tokenizer.json" in text


@pytest.mark.parametrize(
    ("index", "shard"),
    [
        ("model.safetensors.index.json", "model-00002-of-00002.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model-00002-of-00002.bin"),
    ],
)
def test_a_plan_does_without_shards_and_a_run_does_not(config: RunConfig, index: str, shard: str) -> None:
    folder = Path(config.model.path)
    (folder / "model.safetensors").unlink()
    (folder / index).write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
    (note,) = gather(config, by_name=True).notes
    assert f"1 files of weights that the index names are missing ({shard})" in note
    (problem,) = _problems(config)
    assert shard in problem


def test_damaged_weights_stop_a_plan(config: RunConfig) -> None:
    path = Path(config.model.path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="the download was cut"):
        gather(config, by_name=True)


def test_rows_beyond_a_table_of_positions_are_refused(config: RunConfig) -> None:
    long = replace(config, data=replace(config.data, seq_len=4096))
    assert gather(long).model.max_positions == 2048  # rotary embeddings extrapolate: the plan warns
    for model in (ModelConfig(path="gpt2"), ModelConfig(path="facebook/opt-6.7b")):
        with pytest.raises(UserError, match=r"data.seq_len: found 4096, the model takes at most (1024|2048) positions"):
            gather(replace(long, model=model), by_name=True)


def test_a_misspelt_model_gets_the_nearest_names(config: RunConfig, tmp_path: Path) -> None:
    def said(name: str, *, by_name: bool) -> str:
        with pytest.raises(UserError) as caught:
            gather(replace(config, model=ModelConfig(path=name)), by_name=by_name)
        return str(caught.value)

    assert "Did you mean llama-2-7b or " in said("llama-2-7", by_name=True)
    assert "Did you mean mistral-7b" in said("mistrl-7b", by_name=True)
    assert f"Did you mean {tmp_path / 'model'}?" in said(str(tmp_path / "modle"), by_name=False)
    assert "Did you mean" not in said("llama-2-7", by_name=False)  # a name alone is enough for a plan only
    assert "a run needs its files: hf download meta-llama/Llama-2-7b-hf" in said("llama-2-7b", by_name=False)
    assert "Did you mean" not in said("/no/such/folder", by_name=True)
