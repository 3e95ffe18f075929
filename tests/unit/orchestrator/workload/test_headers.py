"""Checkpoints as libraries write them: read through their headers, and compared with config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from orchestrator.errors import UserError
from orchestrator.workload.families import shape_from_config
from orchestrator.workload.headers import Uncountable, load_shape
from orchestrator.workload.model import ModelShape

from .architectures import SMALL, config_of

# What is stored otherwise than it is held: experts one by one, other prefixes, tied heads, buffers, 3-D parameters.
STORED = (
    "llama-tied",
    "gpt2",
    "bloom",
    "opt-350m",
    "falcon-40b",
    "mixtral",
    "qwen3_moe-mixed",
    "granitemoe",
    "deepseek_v3",
    "gpt_oss",
    "llama4-mixed",
    "gemma3-whole",
)
QUANTISED: dict[str, dict[str, object]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_storage": torch.bfloat16},
    "int8": {"load_in_8bit": True},
}


def _saved(folder: Path, name: str, **options: object) -> Path:
    model = transformers.AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16)
    model.save_pretrained(folder, **options)
    return folder


def _packed(shape: ModelShape) -> set[str]:
    inner = {
        f"{shape.prefix}.{index}.{parameter.name}"
        for group in shape.groups
        for index in group.layers
        for parameter in group.parameters
        if parameter.packed
    }
    return inner | {parameter.name for parameter in shape.outside if parameter.packed}


@pytest.mark.parametrize("name", STORED)
def test_saved_checkpoints_confirm_their_configuration(tmp_path: Path, name: str) -> None:
    folder = _saved(tmp_path, name)
    shape = load_shape(folder, name)
    alone = shape_from_config(name, json.loads((folder / "config.json").read_text()))
    assert shape.total_params == alone.total_params
    assert shape.stored[0][0] == "BF16"
    assert shape.dtype == "bfloat16"


def test_shards_are_added_up(tmp_path: Path) -> None:
    folder = _saved(tmp_path, "mixtral", max_shard_size="300KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    shape = load_shape(folder)
    assert shape.stored == (("BF16", shape.total_params),)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2_moe", "olmo-tied", "falcon-7b", "opt-350m"])
@pytest.mark.parametrize("quant", QUANTISED)
def test_prequantised_checkpoints_load_as_they_are(tmp_path: Path, name: str, quant: str) -> None:
    folder = _saved(tmp_path / "plain", name)
    config = transformers.BitsAndBytesConfig(**QUANTISED[quant])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=config)
    model.save_pretrained(tmp_path / "packed")

    shape = load_shape(tmp_path / "packed", name)

    assert (shape.prequantised, shape.double_quant) == (quant, quant == "nf4")
    assert shape.total_params == load_shape(folder, name).total_params
    kinds = ("Params4bit", "Int8Params")
    assert _packed(shape) == {key for key, value in model.named_parameters() if type(value).__name__ in kinds}
    assert "base.quant has no say" in shape.notes[-1]


def test_skipped_modules_stay_unpacked(tmp_path: Path) -> None:
    skipped = ["lm_head", "model.layers.1.mlp"]
    told = {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": skipped}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL, "quantization_config": told}))
    shape = load_shape(tmp_path)
    assert sorted(group.layers for group in shape.groups) == [(0, 2), (1,)]
    assert shape.packed_params == shape.linear_params - 3 * 64 * 176
    assert "It left lm_head, model.layers.1.mlp in 16 bits" in shape.notes[0]


@pytest.mark.parametrize(
    ("method", "word"), [("gptq", "GPTQ"), ("awq", "AWQ"), ("mxfp4", "MXFP4"), ("fp8", "FP8"), ("", "an unnamed")]
)
def test_other_quantisers_are_refused(tmp_path: Path, method: str, word: str) -> None:
    config = {"model_type": "llama", **SMALL, "quantization_config": {"quant_method": method, "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"quantised by {word}.*16-bit weights"):
        load_shape(tmp_path)


def _resized(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.embed_tokens.weight"] = torch.zeros(321, 64)


def _lost(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[next(name for name in tensors if ".2." in name and name.endswith("experts.3.w1.weight"))]


def _wider(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_proj.weight"] = torch.zeros(96, 64)


def _foreign(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.extra.weight"] = torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_resized, r"fewer than 2 of \(320, 64\) \(embeddings and head\)"),
        (_lost, r"layer 2, mlp.experts.gate_up_proj: absent, not \(4, 352, 64\)"),
        (_wider, r"layer 0, self_attn.q_proj: \(96, 64\), not \(64, 64\)"),
        (_foreign, "layer 1: .* elements that config.json does not tell of"),
    ],
)
def test_disagreements_are_one_problem(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], words: str
) -> None:
    folder = _saved(tmp_path, "mixtral")
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=words) as caught:
        load_shape(folder)
    assert len(caught.value.problems) == 1


def test_layers_that_predict_more_tokens_are_ignored(tmp_path: Path) -> None:
    folder = _saved(tmp_path, "deepseek_v3")
    tensors = load_file(folder / "model.safetensors")
    spare = {
        name.replace("layers.2.", "layers.3."): value.clone() for name, value in tensors.items() if "layers.2." in name
    }
    save_file({**tensors, **spare}, folder / "model.safetensors")
    assert load_shape(folder).layers == 3
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 0}))
    with pytest.raises(UserError, match="4 layers instead of 3"):
        load_shape(folder)


def test_what_only_the_meta_device_can_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "novel", "text_config": {"model_type": "other"}}))
    with pytest.raises(Uncountable):
        load_shape(tmp_path)
    # Inside a wrapper the rest are defaults; a model of its own must tell its sizes.
    part = {"model_type": "llama", "vocab_size": 32_064}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": part}))
    with pytest.raises(Uncountable, match="hidden_size"):
        load_shape(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(part))
    with pytest.raises(UserError, match="hidden_size") as caught:
        load_shape(tmp_path)
    assert not isinstance(caught.value, Uncountable)
